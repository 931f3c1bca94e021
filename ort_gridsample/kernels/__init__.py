"""The compiled core: the operators as machine code, compiled by Numba and cached on disk."""
