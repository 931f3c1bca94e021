"""Settings of the process: the value of a call, else of an environment variable, else a default."""

import os
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeGuard, get_args

from .errors import GridSampleError

CoreName: TypeAlias = Literal["auto", "numpy", "jit"]
OpsName: TypeAlias = Literal["auto", "compiled", "python"]
#: What errors state as the expected number of threads.
VALID_NUM_THREADS = "a whole number, at least 1"


def is_valid_num_threads(num_threads: object) -> bool:
    """Whether ``num_threads`` is a whole number, at least 1."""
    return is_whole_number(num_threads) and index(num_threads) >= 1


def is_whole_number(value: object) -> TypeGuard[SupportsIndex]:
    """Whether ``value`` can be converted to an int without loss."""
    try:
        index(value)  # type: ignore[arg-type]
    except TypeError:  # numpy's arrays have __index__, but most of them are no whole numbers
        return False
    return True


@dataclass
class Setting:
    """One setting, which is either one of several names or a number of threads."""

    function: str  #: the function that sets it
    label: str  #: its name in errors
    variable: str  #: its environment variable
    choices: tuple[str, ...]  #: the names that are allowed; empty for a number of threads
    default: str | None  #: its value if neither a call nor the variable sets one
    value: Any = None  #: the value that a call set, or None

    def get(self) -> Any:
        """Return the value in force.

        Raises:
            GridSampleError: the value of the environment variable is not allowed.
        """
        if self.value is not None:
            return self.value
        text = os.environ.get(self.variable)
        if not text:
            return self.default
        is_number = not self.choices and text.isdecimal()
        value = int(text) if is_number else text
        self._check(value, "environment", self.variable, text)
        return value

    def set(self, value: str | None) -> None:
        """Set the value; None restores the environment variable or the default.

        Raises:
            GridSampleError: the value is not allowed.
        """
        if value is not None:
            self._check(value, self.function, self.label, value)
        self.value = value

    def _check(self, value: object, where: str, argument: str, found: object) -> None:
        """Check that ``value`` is allowed.

        Raises:
            GridSampleError: it is not. The error states that ``argument`` is ``found``.
        """
        if self.choices:
            is_allowed = value in self.choices
            expected = f"one of {', '.join(map(repr, self.choices))}"
        else:
            is_allowed = is_valid_num_threads(value)
            expected = VALID_NUM_THREADS
        if not is_allowed:
            raise GridSampleError(where, argument, repr(found), expected)


CORE = Setting("set_core", "name", "ORT_GRIDSAMPLE_CORE", get_args(CoreName), "auto")
OPS = Setting("set_ops", "name", "ORT_GRIDSAMPLE_OPS", get_args(OpsName), "auto")
#: Its default None is the number of processors that the process may use.
NUM_THREADS = Setting("set_num_threads", "num_threads", "ORT_GRIDSAMPLE_NUM_THREADS", (), None)
