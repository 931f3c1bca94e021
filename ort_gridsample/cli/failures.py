"""Turn errors into one line of text: what is wrong, with which file, and what helps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import GridSampleError, one_line

#: Module -> the package to install for it.
_PACKAGES = {
    "PIL": "pillow",
    "matplotlib": "matplotlib",
    "ml_dtypes": "ml_dtypes",
    "numba": "numba",
    "onnxruntime_extensions": "onnxruntime-extensions",
}

REPORT = "please report it, with the output of --version and of this command with --traceback"


class AboutFileError(Exception):
    """A mistake of the user, with a text that names the file."""


@contextmanager
def about(path: str) -> Iterator[None]:
    """Add the file ``path`` to the text of errors that are mistakes of the user."""
    try:
        yield
    except (OSError, AboutFileError):  # these name their file
        raise
    except Exception as error:
        if remedy(error) is None or _names_file(str(error), path):
            raise
        raise AboutFileError(f"{path}: {sentence(error)}") from error


def _names_file(text: str, path: str) -> bool:
    """Whether the text of an error has ``path`` at its start, in quotes or after "from"."""
    return re.search(rf"(^|['\"]|\bfrom ){re.escape(path)}($|['\":,\s])", text) is not None


def sentence(error: BaseException) -> str:
    """Return the error in one line.

    The line starts with the type of the error if the error has no text, or is not the user's.
    """
    text = one_line(error)
    name = type(error).__name__
    if not text:
        return name
    return text if remedy(error) is not None else f"{name}: {text}"


def remedy(error: BaseException) -> str | None:
    """Return what the user can do about an error, as text to append to the error's.

    Returns:
        The text, which may be empty. None if the error is not a mistake of the user.
    """
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        package = _PACKAGES.get(module)
        return None if package is None else f": pip install {package}"
    if isinstance(error, MemoryError):
        return " (there is not enough memory)"
    if isinstance(error, (GridSampleError, AboutFileError, OSError, ImportError)):
        return ""
    is_from_onnxruntime = type(error).__module__.startswith("onnxruntime.")
    return "" if is_from_onnxruntime else None
