"""The same operators as machine code that Numba compiles, with their memory, vectors, workers and cache."""
