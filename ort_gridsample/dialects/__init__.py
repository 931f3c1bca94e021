"""The spellings of the operators in the standard and elsewhere, and their translation."""
