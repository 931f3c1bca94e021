"""The folder in which this package keeps files for later processes."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/ort_gridsample``, or the system's equivalent. The folder need not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "ort_gridsample"
