"""The modes and paddings of the package in error messages, and names that none can have."""

from collections.abc import Iterable

from ort_gridsample import spec
from ort_gridsample.reference.coordinates import PADDING_RULES
from ort_gridsample.reference.taps import MODE_RULES

#: The tables refuse such names: they are no identifiers.
NO_MODE = "no-mode"
NO_PADDING = "no-padding"


def listed(names: Iterable[str]) -> str:
    """Return ``'a', 'b' or 'c'``."""
    return " or ".join(", ".join(map(repr, names)).rsplit(", ", 1))


ANY_MODE = listed((*MODE_RULES, *spec.MODE_SYNONYMS))
ANY_PADDING = listed(PADDING_RULES)
#: The modes of strings.
COPYING_MODES = listed(name for name, mode in MODE_RULES.items() if mode.copies_values)
