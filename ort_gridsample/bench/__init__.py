"""The benchmark: cases as data, contestants as adapters, timing in rounds, and what is printed of it."""
