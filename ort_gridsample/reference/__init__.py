"""The definition of every operator, in NumPy."""
