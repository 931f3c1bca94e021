"""The public functions on arrays, the checks of their arguments, and the choice of a core."""
