"""A line on stderr that says how far it is, where stderr is a terminal."""

from __future__ import annotations

import shutil
import sys
import time

WIDTH = 24


class Progress:
    """``total`` steps; each :meth:`step` begins one, :meth:`done` wipes the line."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.begun = 0
        self.start = time.perf_counter()
        self.shown = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """Say that ``what`` is done now."""
        finished, self.begun = self.begun, self.begun + 1
        if not self.shown:
            return
        filled = WIDTH * finished // max(1, self.total)
        seconds = time.perf_counter() - self.start
        left = f", {seconds / finished * (self.total - finished):.0f} s left" if finished else ""
        line = f"[{'█' * filled}{'·' * (WIDTH - filled)}] {finished}/{self.total}{left}  {what}"
        sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()

    def done(self) -> None:
        """Wipe the line."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
