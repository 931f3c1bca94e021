"""The NumPy reference: the definition of every operator."""
