"""Errors in a line: whose mistake it is, which file it is about, and what helps."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import GridSampleError

#: Module -> its package.
_PACKAGES = {"PIL": "pillow", **{n: n.replace("_", "-") for n in ("matplotlib", "numba", "onnxruntime_extensions")}}

REPORT = "please report it, with what --version and, for this command, --traceback print"


class AboutFileError(Exception):
    """An error with the name of the file that it is about."""


@contextmanager
def about(path: str) -> Iterator[None]:
    """Have errors that the user can mend name the user's file ``path``."""
    try:
        yield
    except (OSError, AboutFileError):  # these name their file
        raise
    except Exception as error:
        if remedy(error) is None or path in str(error):
            raise
        raise AboutFileError(f"{path}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """The error in a line; with its type where there is no text, or none that a user would understand."""
    text = " ".join(str(error).split())
    if remedy(error) is None or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def remedy(error: BaseException) -> str | None:
    """The text to put after the ``error``'s, with what the user may do; None where it is not the user's mistake."""
    if isinstance(error, ModuleNotFoundError):
        package = _PACKAGES.get((error.name or "").partition(".")[0])
        return package and f": pip install {package}"
    if isinstance(error, MemoryError):
        return " (there is not enough memory)"
    of_onnxruntime = type(error).__module__.startswith("onnxruntime.")
    return "" if of_onnxruntime or isinstance(error, (GridSampleError, AboutFileError, OSError, ImportError)) else None
