"""ONNX GridSample and AffineGrid for ONNX Runtime: every type, rank and mode, defined in Python."""

import importlib
from typing import TYPE_CHECKING

# The first import of the package: it checks the installed releases.
from . import versions  # noqa: F401
from .detection.records import NodeRecord
from .dialects.registry import add_dialect
from .dialects.spelling import Dialect, Spelling
from .errors import GridSampleError
from .functions.affine import affine_grid
from .functions.attention import deformable_attention
from .functions.cores import get_core, set_core
from .functions.sampling import grid_sample
from .interop.evaluator import reference_ops
from .interop.openvino import openvino_extensions
from .interop.pytorch import torch_symbolics, torch_translation_table
from .patching import coordinate_nodes, inspect_model, patch_model
from .system.num_threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from .library.builder import build_library
    from .session.forks import keep_sessions_through_forks
    from .session.ops_choice import get_ops, set_ops
    from .session.placement import Placement
    from .session.provider import register_provider
    from .session.quantization import quantization_sessions
    from .session.registration import register
    from .session.session import InferenceSession

__version__ = "0.2.0"

__all__ = [
    "Dialect",
    "GridSampleError",
    "InferenceSession",
    "NodeRecord",
    "Placement",
    "Spelling",
    "__version__",
    "add_dialect",
    "affine_grid",
    "build_library",
    "coordinate_nodes",
    "deformable_attention",
    "get_core",
    "get_num_threads",
    "get_ops",
    "grid_sample",
    "inspect_model",
    "keep_sessions_through_forks",
    "openvino_extensions",
    "patch_model",
    "quantization_sessions",
    "reference_ops",
    "register",
    "register_provider",
    "set_core",
    "set_num_threads",
    "set_ops",
    "torch_symbolics",
    "torch_translation_table",
]

#: The names that need onnxruntime -> their modules, which the first use of a name imports.
_MODULES_WITH_ONNXRUNTIME = {
    "InferenceSession": "session.session",
    "Placement": "session.placement",
    "build_library": "library.builder",
    "get_ops": "session.ops_choice",
    "keep_sessions_through_forks": "session.forks",
    "quantization_sessions": "session.quantization",
    "register": "session.registration",
    "register_provider": "session.provider",
    "set_ops": "session.ops_choice",
}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        module = _MODULES_WITH_ONNXRUNTIME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{module}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
