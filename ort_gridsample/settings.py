"""Settings of the process: the value of a call, else of an environment variable, else a default."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Generic, Literal, SupportsIndex, TypeAlias, TypeGuard, TypeVar, get_args

from .errors import GridSampleError

CoreName: TypeAlias = Literal["auto", "numpy", "jit"]
OpsName: TypeAlias = Literal["auto", "compiled", "python"]
#: What errors state as the expected number of threads.
VALID_NUM_THREADS = "a whole number, at least 1"
#: The same, where None selects the default.
VALID_NUM_THREADS_OR_NONE = f"{VALID_NUM_THREADS}, or None"


def is_positive_integer(value: object) -> bool:
    """Whether ``value`` is a whole number, at least 1."""
    return is_whole_number(value) and index(value) >= 1


def is_whole_number(value: object) -> TypeGuard[SupportsIndex]:
    """Whether ``value`` is an int or of another integer type, such as NumPy's."""
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:  # numpy's arrays have __index__, but most of them are no whole numbers
        return False
    return True


T = TypeVar("T")


@dataclass
class Setting(Generic[T]):
    """One setting."""

    function: str  #: the function that sets it
    label: str  #: its name in errors
    variable: str  #: its environment variable
    parse: Callable[[str], T]  #: reads the variable; returns a value that is not allowed on failure
    is_allowed: Callable[[object], bool]  #: whether a value is allowed
    expected: str  #: what errors state as allowed values
    default: T | None  #: its value if neither a call nor the variable sets one
    value: T | None = None  #: the value that a call set, or None

    def get(self) -> T | None:
        """Return the value in force.

        Raises:
            GridSampleError: the value of the environment variable is not allowed.
        """
        if self.value is not None:
            return self.value
        text = os.environ.get(self.variable) if _may_be_set(self.variable) else None
        if not text:
            return self.default
        value = self.parse(text)
        if not self.is_allowed(value):
            raise GridSampleError("environment", self.variable, repr(text), self.expected)
        return value

    def set(self, value: T | None) -> None:
        """Set the value; None restores the environment variable or the default.

        Raises:
            GridSampleError: the value is not allowed.
        """
        if value is not None and not self.is_allowed(value):
            raise GridSampleError(self.function, self.label, repr(value), self.expected)
        self.value = value


def _may_be_set(variable: str) -> bool:
    """Whether there may be an environment variable of this name.

    To get a missing variable takes 0.9 µs, in which Python raises and catches two exceptions.
    """
    data = getattr(os.environ, "_data", None)
    return data is None or os.environ.encodekey(variable) in data


def _choice_setting(
    function: str,
    variable: str,
    choices: Sequence[str],
    default: str,
) -> Setting[str]:
    """Return a setting whose value is one of several names."""
    return Setting(
        function=function,
        label="name",
        variable=variable,
        parse=str,
        is_allowed=lambda value: value in choices,
        expected=f"one of {', '.join(map(repr, choices))}",
        default=default,
    )


def _parse_count(text: str) -> int:
    """Return the whole number in ``text``, or else 0, which is not allowed."""
    return int(text) if text.isdecimal() else 0


CORE = _choice_setting("set_core", "ORT_GRIDSAMPLE_CORE", get_args(CoreName), default="auto")
OPS = _choice_setting("set_ops", "ORT_GRIDSAMPLE_OPS", get_args(OpsName), default="auto")
#: Its default None is the number of processors that the process may use.
NUM_THREADS = Setting[int](
    function="set_num_threads",
    label="num_threads",
    variable="ORT_GRIDSAMPLE_NUM_THREADS",
    parse=_parse_count,
    is_allowed=is_positive_integer,
    expected=VALID_NUM_THREADS,
    default=None,
)
#: The size of X, in bytes, from which all pixels of an incoherent grid are prefetched in mode
#: nearest. Its default None is what was measured on this machine.
PREFETCHED_BYTES = Setting[int](
    function="environment",
    label="prefetched_bytes",
    variable="ORT_GRIDSAMPLE_PREFETCHED_BYTES",
    parse=_parse_count,
    is_allowed=is_positive_integer,
    expected=VALID_NUM_THREADS,
    default=None,
)
