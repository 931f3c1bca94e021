"""The table of all spellings of the operators, and their translation to the standard's attributes."""
