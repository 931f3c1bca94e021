"""ONNX GridSample and AffineGrid for ONNX Runtime: every type, rank and mode, defined in Python."""

# The first import: it checks the installed releases.
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
from .library.builder import build_library
from .patching import coordinate_nodes, inspect_model, patch_model
from .reference.num_threads import get_num_threads, set_num_threads
from .session.forks import keep_sessions_through_forks
from .session.placement import Placement, get_ops, set_ops
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


def __dir__() -> list[str]:
    return __all__
