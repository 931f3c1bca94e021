"""Build shared libraries of compiled ops for programs in other languages."""
