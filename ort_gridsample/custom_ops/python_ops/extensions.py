"""Import the module of onnxruntime-extensions that runs Python ops, without its package.

Only Python ops need it. The package imports PyTorch and transformers if they are installed, which
takes seconds, and sets an environment variable that makes protobuf several times slower in every
process started afterwards.
"""

import importlib.util
import sys
import threading
from typing import Any

from ... import versions
from ...system.process import after_fork

_NAME = "onnxruntime_extensions"
#: The main domain of the operators of onnxruntime-extensions.
DOMAIN = "ai.onnx.contrib"
#: The domains of the operators of onnxruntime-extensions.
DOMAINS = frozenset({DOMAIN, "com.microsoft.extensions"})
_lock = threading.RLock()


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held the lock


def is_installed() -> bool:
    """Whether onnxruntime-extensions is installed. It is not imported."""
    if _NAME in sys.modules:
        return sys.modules[_NAME] is not None
    return importlib.util.find_spec(_NAME) is not None


def is_imported() -> bool:
    """Whether the part of onnxruntime-extensions that runs Python ops has been imported."""
    return f"{_NAME}._extensions_pydll" in sys.modules


def load() -> Any:
    """Import and return ``onnxruntime_extensions._ocos``.

    The package itself uses the same module object, whichever is imported first.

    Raises:
        ImportError: onnxruntime-extensions is missing, too old, or cannot be imported.
    """
    try:
        return _load()
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and getattr(sys, "frozen", False):
            reason = versions.missing_module_message(error.name or _NAME, str(error))
            message = f"Python ops need onnxruntime-extensions: {reason}"
        else:
            message = f"Python ops need onnxruntime-extensions ({error}): {_remedy()}"
        raise ImportError(message, name=_NAME) from None


def _load() -> Any:
    """Import the module through a placeholder for its package, which is not executed."""
    with _lock:
        if not is_installed():
            raise ModuleNotFoundError("it is not installed", name=_NAME)
        if _NAME in sys.modules:
            return _import_ocos()
        spec = importlib.util.find_spec(_NAME)
        assert spec is not None
        placeholder = importlib.util.module_from_spec(spec)
        vars(placeholder)["__getattr__"] = _package_attribute
        sys.modules.setdefault(_NAME, placeholder)
        try:
            return _import_ocos()
        finally:
            if sys.modules.get(_NAME) is placeholder:
                del sys.modules[_NAME]


def _package_attribute(name: str) -> Any:
    """Return an attribute of the executed package, for a thread that imported the placeholder."""
    with _lock:  # held until the placeholder is removed
        package = importlib.import_module(_NAME)
    if vars(package).get("__getattr__") is _package_attribute:
        raise AttributeError(name)
    return getattr(package, name)


def _import_ocos() -> Any:
    """Check the version of onnxruntime-extensions, and import its module."""
    version = importlib.import_module(f"{_NAME}._version").__version__
    complaint = versions.incompatibility_message("onnxruntime-extensions", version)
    # Before the library is loaded: that of older versions ends the process in the first run.
    if complaint:
        raise ImportError(complaint)
    return importlib.import_module(f"{_NAME}._ocos")


def _remedy() -> str:
    """Return what to do without onnxruntime-extensions."""
    remedy = "pip install onnxruntime-extensions"
    if sys.version_info >= (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        remedy = f"there is no release of it for Python {version}, use Python 3.13 or older"
    return f"{remedy}, or patch the model to a target that needs no ops, such as 'primitives'"
