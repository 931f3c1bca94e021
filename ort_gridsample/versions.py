"""The supported releases, as pyproject.toml requires them, and the check of the installed ones.

numpy and onnx are checked before the rest of the package is imported, and onnxruntime before the
first module that needs it. The ImportErrors state what is installed and what is needed.
"""

import importlib
import re
import sys

PYTHON = (3, 11)
#: Distribution -> its oldest supported release.
OLDEST = {
    "numpy": "1.26",
    "onnx": "1.17",
    "onnxruntime": "1.17",
    "onnxruntime-extensions": "0.11",
    "numba": "0.61",
}
#: The first release of Numba that is not tested. The vector code uses Numba's internals.
UNTESTED_NUMBA = "0.69"
#: The first release of onnxruntime whose own GridSample kernel reads only inside X. Older releases
#: convert a coordinate to an integer before they compare it with the image. A coordinate that does
#: not fit in 64 bits then reads outside X's memory. Sources: onnxruntime issues 27975 and 28302.
ONNXRUNTIME_STAYS_INSIDE_X = "1.26"
#: The names in errors of modules that several distributions provide.
_DISTRIBUTIONS = {"onnxruntime": "onnxruntime (or another build of it, such as onnxruntime-gpu)"}


def incompatibility_message(name: str, release: str) -> str:
    """Return the error message for an installed ``release``; empty if the release is supported."""
    oldest = OLDEST[name]
    if name == "numba" and is_at_least(release, UNTESTED_NUMBA):
        needed = f"older than {UNTESTED_NUMBA}"
        specifier = f">={oldest},<{UNTESTED_NUMBA}"
    elif is_at_least(release, oldest):
        return ""
    else:
        needed = f"{oldest} or newer"
        specifier = f">={oldest}"
    command = f"pip install '{name}{specifier}'"
    return f"ort_gridsample needs {name} {needed}, and {release} is installed: {command}"


def missing_module_message(name: str, message: str) -> str:
    """Return the error message for a missing module.

    It is ``message``, but not in a frozen program: nothing can be installed into it later.
    """
    if not getattr(sys, "frozen", False):
        return message
    return (
        f"this frozen program lacks the module {name}: build it with PyInstaller and the hook of "
        "ort_gridsample, or include the module by its name (INSTALL.md, Frozen programs)"
    )


def is_at_least(release: str, oldest: str) -> bool:
    """Whether ``release`` is ``oldest`` or newer. Only the first two numbers are compared."""
    return _first_two_numbers(release) >= _first_two_numbers(oldest)


def _first_two_numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:2]]


def _check_python() -> None:  # pragma: no mutate block
    if sys.version_info < PYTHON:
        oldest = ".".join(map(str, PYTHON))
        running = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(f"ort_gridsample needs Python {oldest} or newer, and this is {running}")


def check_module(name: str) -> None:  # pragma: no mutate block
    """Import a required module and check its release.

    Raises:
        ImportError: it is not installed, not complete, or its release is not supported.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        distribution = _DISTRIBUTIONS.get(name, name)
        message = f"ort_gridsample needs {name}, and none is installed: pip install {distribution}"
        raise ImportError(missing_module_message(name, message), name=name) from None
    release = getattr(module, "__version__", None)
    if release is None:
        # Uninstalling one of two builds of onnxruntime leaves such a module.
        remedy = "uninstall every build of it, and install one of them"
        raise ImportError(f"what is installed as {name} is incomplete: {remedy}", name=name)
    message = incompatibility_message(name, release)
    if message:
        raise ImportError(message, name=name)


_check_python()
for _name in ("numpy", "onnx"):
    check_module(_name)
