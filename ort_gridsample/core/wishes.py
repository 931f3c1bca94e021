"""What a user asked for by name: in a call, else in an environment variable, else ``"auto"``."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Wish:
    """A choice among ``names``.

    Attributes:
        what: what is chosen, as errors name it.
        names: the names there are.
        variable: the environment variable.
        asked: what was asked for in a call; None where nothing was.
    """

    what: str
    names: tuple[str, ...]
    variable: str
    asked: str | None = None

    def name(self) -> str:
        """What is asked for.

        Raises:
            ValueError: the environment variable's value is not one of the names.
        """
        if self.asked is not None:
            return self.asked
        name = os.environ.get(self.variable) or "auto"
        self.check(name, f"the environment variable {self.variable}")
        return name

    def check(self, name: str, what: str = "") -> None:
        """Raise ValueError if ``name`` is not one of the names."""
        if name not in self.names:
            raise ValueError(f"{what or self.what} is {name!r}, expected one of {', '.join(map(repr, self.names))}")
