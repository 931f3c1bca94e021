"""What a user sets for the whole process: by a call, else by an environment variable, else the default."""

import os
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

CoreName: TypeAlias = Literal["auto", "numpy", "jit"]
OpsName: TypeAlias = Literal["auto", "compiled", "python"]
#: What a number of threads must be.
A_NUMBER = "a whole number, at least 1"


def is_number(num_threads: object) -> bool:
    """Whether there can be so many threads."""
    return isinstance(num_threads, SupportsIndex) and index(num_threads) >= 1


@dataclass
class Setting:
    """One setting."""

    what: str  #: how errors name it
    variable: str  #: its environment variable
    names: tuple[str, ...]  #: the values that it may have; none: a number of threads
    default: str | None  #: its value where neither a call nor the variable gives one
    value: Any = None  #: the value that a call gave; None where none did

    def get(self) -> Any:
        """The value in force; ValueError where the environment variable's is not allowed."""
        text = os.environ.get(self.variable)
        if self.value is not None or not text:
            return self.default if self.value is None else self.value
        value = int(text) if text.isdecimal() and not self.names else text
        self.check(value, f"the environment variable {self.variable}", text)
        return value

    def set(self, value: str | None) -> None:
        """Set the value, None goes back to the environment variable; ValueError where it is not allowed."""
        if value is not None:
            self.check(value, self.what, value)
        self.value = value

    def check(self, value: object, what: str, shown: object) -> None:
        """Raise ValueError, which shows ``shown`` as what ``what`` is, if ``value`` is not allowed."""
        if not (value in self.names if self.names else is_number(value)):
            expected = f"one of {', '.join(map(repr, self.names))}" if self.names else A_NUMBER
            raise ValueError(f"{what} is {shown!r}, expected {expected}")


#              in errors            environment variable          values              default
CORE = Setting("the core", "ORT_GRIDSAMPLE_CORE", get_args(CoreName), "auto")
OPS = Setting("the choice of ops", "ORT_GRIDSAMPLE_OPS", get_args(OpsName), "auto")
NUM_THREADS = Setting("num_threads", "ORT_GRIDSAMPLE_NUM_THREADS", (), None)  # None: the processors there are
