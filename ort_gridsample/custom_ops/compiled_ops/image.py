"""Records as bytes, with addresses among them: in memory for this process, or as the data of a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .catalog import Fields
from .structs import TEXT


class Inside(int):
    """A place in an image, in bytes from its beginning, which becomes an address."""


class Image:
    """Records that point to one another."""

    def __init__(self) -> None:
        self.data = bytearray()  #: their bytes, with 0 for every address
        self.places: dict[int, Inside] = {}  #: where in these the address of another place belongs
        #: Where a compiled function's belongs, as :data:`ort_gridsample.kernels.compilation.KernelSpec`.
        self.functions: dict[int, tuple[Any, ...]] = {}

    def text(self, text: bytes) -> Inside:
        """Where ``text`` now is, with a 0 behind it."""
        return self._append(text + b"\0")

    def texts(self, texts: Sequence[bytes]) -> Inside:
        """Where a row of TEXTs now is."""
        return self.put(TEXT, *({"at": self.text(text), "length": len(text)} for text in texts))

    def row(self, places: Sequence[Any]) -> Inside:
        """Where a row of addresses now is, of places or functions."""
        return self.put(np.dtype([("at", np.int64)]), *({"at": place} for place in places))

    def put(self, record: np.dtype[Any], *rows: Fields) -> Inside:
        """Where a ``record`` now is that has the fields of a row, and 0 for all others; or one behind the other."""
        here = self._append(bytes(record.itemsize * len(rows)))
        for number, fields in enumerate(rows):
            self.fill(here + number * record.itemsize, record, fields)
        return here

    def _append(self, data: bytes) -> Inside:
        here = Inside(len(self.data))
        self.data += data + bytes(-len(data) % 8)
        return here

    def fill(self, at: int, record: np.dtype[Any], fields: Fields) -> None:
        """Let the ``record`` that lies ``at`` a place have these ``fields``."""
        for name, value in fields.items():
            kind, offset, *_ = record.fields[name]  # type: ignore[index]
            if isinstance(value, dict):
                self.fill(at + offset, kind, value)
            elif isinstance(value, tuple):
                self.functions[at + offset] = value
            elif isinstance(value, Inside):
                self.places[at + offset] = value
            elif value is not None:
                self.data[at + offset : at + offset + kind.itemsize] = np.array(value, kind.base).tobytes()
