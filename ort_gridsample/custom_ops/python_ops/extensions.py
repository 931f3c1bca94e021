"""Import the module of onnxruntime-extensions that runs ops defined in Python, without its package.

Only Python ops need it. The package imports PyTorch and transformers where they are installed, which takes seconds, and
sets an environment variable that makes protobuf several times slower in every process started afterwards.
"""

import importlib.util
import sys
import threading
from typing import Any

from ... import versions
from ...dialects.table import EXTENSIONS_DOMAIN
from ...reference.threads import after_fork

_NAME = "onnxruntime_extensions"
#: The domains of its own operators.
DOMAINS = frozenset({EXTENSIONS_DOMAIN, "com.microsoft.extensions"})
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
    """Whether somebody imported the part of onnxruntime-extensions that runs Python ops."""
    return f"{_NAME}._extensions_pydll" in sys.modules


def load() -> Any:
    """``onnxruntime_extensions._ocos``, the module that the package itself uses, whichever is imported first."""
    try:
        with _lock:
            if not is_installed():
                raise ModuleNotFoundError("it is not installed", name=_NAME)
            if _NAME in sys.modules:
                return _ocos()
            spec = importlib.util.find_spec(_NAME)
            assert spec is not None
            # While the module is imported, a package that was not executed says where it lies.
            package = importlib.util.module_from_spec(spec)
            vars(package)["__getattr__"] = _of_package
            sys.modules.setdefault(_NAME, package)
            try:
                return _ocos()
            finally:
                if sys.modules.get(_NAME) is package:
                    del sys.modules[_NAME]
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and getattr(sys, "frozen", False):
            reason = versions.missing_module_message(error.name or _NAME, str(error))
            raise ImportError(f"Python ops need onnxruntime-extensions: {reason}", name=_NAME) from None
        raise ImportError(f"Python ops need onnxruntime-extensions ({error}): {_remedy()}", name=_NAME) from None


def _remedy() -> str:
    remedy = "pip install onnxruntime-extensions"
    if sys.version_info >= (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        remedy = f"there is no release of it for Python {version}, use Python 3.13 or older"
    return f"{remedy}, or patch the model to a target that needs no ops, such as 'primitives'"


def _of_package(name: str) -> Any:
    """The executed package's ``name``, for a thread that meanwhile imported the package that was not executed."""
    with _lock:  # until that one is removed
        package = importlib.import_module(_NAME)
    if vars(package).get("__getattr__") is _of_package:
        raise AttributeError(name)
    return getattr(package, name)


def _ocos() -> Any:
    complaint = versions.incompatibility_message(
        "onnxruntime-extensions", importlib.import_module(f"{_NAME}._version").__version__
    )
    if complaint:  # before its library is loaded: older ones end the process in the first run
        raise ImportError(complaint)
    return importlib.import_module(f"{_NAME}._ocos")
