"""The ways to call the operators, with the same interface: function, sessions and files."""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.custom_ops.provider import ep_api
from ort_gridsample.custom_ops.python_ops import extensions
from support import faults
from support.cases import Attributes, dtype_of
from support.compare import type_name
from support.models import affine_grid_model, grid_sample_model

Array = np.ndarray
Open = Callable[[onnx.ModelProto], onnxruntime.InferenceSession]
HAS_PYTHON_OPS = extensions.is_installed()
NO_PYTHON_OPS = "Python ops need onnxruntime-extensions, which is not installed"
needs_python_ops = pytest.mark.skipif(not HAS_PYTHON_OPS, reason=NO_PYTHON_OPS)
#: The kind of ops of sessions, for tests that do not concern it.
DEFAULT_OPS: Literal["python", "compiled"] = "python" if HAS_PYTHON_OPS else "compiled"


def skip_unrunnable(model: onnx.ModelProto) -> None:
    """Skip the test if onnxruntime cannot read the model, or no op takes its strings."""
    faults.skip_unread(model)
    element_types = {value.type.tensor_type.elem_type for value in model.graph.input}
    if not HAS_PYTHON_OPS and TensorProto.STRING in element_types:
        pytest.skip(f"{NO_PYTHON_OPS}, and only they take strings")


def quiet_options() -> onnxruntime.SessionOptions:
    """Return options of a session whose threads do not spin, as many tests run at once."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_native(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open onnxruntime's session of an unpatched model."""
    faults.skip_unread(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )


@contextmanager
def core_set_to(core: str) -> Iterator[None]:
    """Select a core, and the previous one at the end."""
    before = ogs.get_core()
    ogs.set_core(core)
    try:
        yield
    finally:
        ogs.set_core(before)


@contextmanager
def running_on(ops: Literal["auto", "compiled", "python"]) -> Iterator[None]:
    """Let sessions that are opened in the block run on these ops."""
    ogs.set_ops(ops)
    try:
        yield
    finally:
        ogs.set_ops(None)


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open this package's session; all nodes run on Python ops if they are installed."""
    skip_unrunnable(model)
    with running_on(DEFAULT_OPS):
        return ogs.InferenceSession(model, providers=["CPUExecutionProvider"], nodes="all")


def open_compiled(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open this package's session; all nodes run on compiled ops."""
    faults.skip_unread(model)
    with running_on("compiled"):
        return ogs.InferenceSession(
            model, quiet_options(), providers=["CPUExecutionProvider"], nodes="all"
        )


def open_patched_file(
    model: onnx.ModelProto, target: Literal["ort_gridsample", "compiled"] = "ort_gridsample"
) -> onnxruntime.InferenceSession:
    """Patch and save a model; open the file in onnxruntime's session."""
    skip_unrunnable(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patched.onnx"
        onnx.save(ogs.patch_model(model, target=target), path)
        return onnxruntime.InferenceSession(
            path, ogs.register(quiet_options()), providers=["CPUExecutionProvider"]
        )


def open_compiled_file(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Patch a model to compiled ops and save it; open the file in onnxruntime's session."""
    return open_patched_file(model, "compiled")


#: A library of all ops, which is tested like compiled ops.
LIBRARY = os.environ.get("ORT_GRIDSAMPLE_TESTED_LIBRARY", "")


def open_library(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Patch a model to compiled ops; open it in onnxruntime's session with a library's ops.

    Without :data:`LIBRARY`, the library has the kernels of a few models.
    """
    from support.built_library import built_library  # which imports this module

    options = quiet_options()
    options.register_custom_ops_library(LIBRARY or str(built_library()))
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, options, providers=["CPUExecutionProvider"])


HAS_PROVIDER = versions.is_at_least(onnxruntime.__version__, ep_api.OLDEST)
#: Whether onnxruntime makes values of bfloat16 from the bits in an array.
HAS_BFLOAT16_VALUES = hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type")
_NO_COMPILED_OPS = registry.unavailable_reason()
HAS_COMPILED_OPS = not _NO_COMPILED_OPS
#: A library has the kernels of the compiled core, too.
_HAS_KERNELS = bool(importlib.util.find_spec("numba") or os.environ.get("ORT_GRIDSAMPLE_LIBRARY"))
INSTALLED_CORES = ("numpy", "jit") if _HAS_KERNELS else ("numpy",)
#: The marks of a test module of the execution provider.
needs_provider = [
    pytest.mark.skipif(not HAS_PROVIDER, reason=f"onnxruntime is older than {ep_api.OLDEST}"),
    pytest.mark.skipif(bool(_NO_COMPILED_OPS), reason=f"no compiled ops: {_NO_COMPILED_OPS}"),
]


def provider_options() -> onnxruntime.SessionOptions:
    """Options whose sessions run on the execution provider, and have its ops."""
    provider = ogs.register_provider()
    options = quiet_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    options.add_provider_for_devices(devices, {})
    return options


def open_provider(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The unmodified model, in onnxruntime's own session, with the execution provider."""
    faults.skip_unread(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), provider_options())


def run(
    session: onnxruntime.InferenceSession, output_type: np.dtype, *inputs: np.ndarray
) -> list[np.ndarray]:
    """Return a session's outputs for ``inputs`` in the model's order, bfloat16 as float32."""
    bfloat16 = dtype_of("bfloat16")
    feeds = {
        description.name: value.astype(np.float32) if value.dtype == bfloat16 else value
        for description, value in zip(session.get_inputs(), inputs, strict=True)
    }
    outputs = session.run(None, feeds)
    return [Y.astype(bfloat16) for Y in outputs] if output_type == bfloat16 else outputs


class Function:
    """Call the Python functions."""

    def grid_samples(
        self, X: Array, grid: Array, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[Array]:
        return [ogs.grid_sample(X, grid, *astuple(values)) for values in attributes]

    def grid_sample(self, X: Array, grid: Array, *attributes: str | bool, opset: int = 22) -> Array:
        return self.grid_samples(X, grid, [Attributes(*attributes)], opset)[0]

    def affine_grid(self, theta: Array, size: Sequence[int], align_corners: bool = False) -> Array:
        return ogs.affine_grid(theta, size, align_corners)


class Model(Function):
    """Run models in sessions that ``open`` returns."""

    def __init__(self, open: Open, planar: bool = False) -> None:
        """Store how to open a session.

        Args:
            open: a function of a model that returns a session.
            planar: whether the coordinates of a grid are planes, which the model transposes; the
                session fuses the Transpose.
        """
        self.open = open
        self.planar = planar

    def grid_samples(
        self, X: Array, grid: Array, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[Array]:
        planar = self.planar and grid.dtype.name in ("float32", "float64")
        model = grid_sample_model(
            type_name(X.dtype), type_name(grid.dtype), X.ndim - 2, attributes, opset, planar
        )
        if planar:
            grid = np.ascontiguousarray(np.moveaxis(grid, -1, 1))
        return run(self.open(model), X.dtype, X, grid)

    def affine_grid(self, theta: Array, size: Sequence[int], align_corners: bool = False) -> Array:
        model = affine_grid_model(type_name(theta.dtype), theta.shape[1], align_corners)
        return run(self.open(model), theta.dtype, theta, np.array(size, np.int64))[0]


PATHS = {
    "function": Function(),
    "session": Model(open_session),
    "patched file": Model(open_patched_file),
}
if not registry.unavailable_reason():
    PATHS |= {"compiled": Model(open_compiled), "compiled file": Model(open_compiled_file)}
    PATHS |= {"compiled, planes": Model(open_compiled, planar=True)}
    if HAS_PROVIDER:
        PATHS["provider"] = Model(open_provider)
if LIBRARY:
    PATHS["library"] = Model(open_library)
OPENERS = {path.open for path in PATHS.values() if isinstance(path, Model)}
