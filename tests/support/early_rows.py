"""Add rows to the tables of the package before the rest of it is imported.

This module imports nothing of the package.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PACKAGE = "ort_gridsample"


@contextmanager
def before_the_package_is_imported() -> Iterator[list[ModuleType]]:
    """Yield the modules of paddings and of modes. Kernels will contain the rows added to them."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    stub = ModuleType(PACKAGE)
    stub.__path__ = [str(Path(spec.origin).parent)]
    sys.modules[PACKAGE] = stub
    names = ("reference.coordinates", "reference.taps")
    yield [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    del sys.modules[PACKAGE]
