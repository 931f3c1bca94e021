"""The ways in which a user reaches the operators: each answers the same calls."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache
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
from ort_gridsample.detection import programs
from support import faults
from support.cases import Attributes, Case, dtype_of
from support.compare import type_name
from support.models import affine_grid_model, grid_sample_model

Array = np.ndarray
Open = Callable[[onnx.ModelProto], onnxruntime.InferenceSession]
HAS_PYTHON_OPS = extensions.is_installed()
NO_PYTHON_OPS = "Python ops need onnxruntime-extensions, which is not installed"
needs_python_ops = pytest.mark.skipif(not HAS_PYTHON_OPS, reason=NO_PYTHON_OPS)
#: The ops of sessions that a test opens for something else than the ops.
DEFAULT_OPS: Literal["python", "compiled"] = "python" if HAS_PYTHON_OPS else "compiled"


def skip_unrunnable(model: onnx.ModelProto) -> None:
    """Skip the test where onnxruntime does not read the model, or there are no ops for its tensors of strings."""
    faults.skip_unread(model)
    if not HAS_PYTHON_OPS and any(
        v.type.tensor_type.elem_type == TensorProto.STRING for v in model.graph.input
    ):
        pytest.skip(f"{NO_PYTHON_OPS}, and only they take strings")


def quiet_options() -> onnxruntime.SessionOptions:
    """For sessions beside many others: their threads do not spin on the processors that all of them need."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_native(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session of onnxruntime's own, which knows nothing of this package."""
    faults.skip_unread(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )


@contextmanager
def running_on(ops: Literal["auto", "compiled", "python"]) -> Iterator[None]:
    """Let the sessions that are made within run on these ops."""
    ogs.set_ops(ops)
    try:
        yield
    finally:
        ogs.set_ops(None)


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The package's own session, patching in memory, all on Python ops where there are any."""
    skip_unrunnable(model)
    with running_on(DEFAULT_OPS):
        return ogs.InferenceSession(model, providers=["CPUExecutionProvider"], nodes="all")


def open_compiled(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The package's own session, patching in memory, on compiled ops where there are any."""
    faults.skip_unread(model)
    with running_on("compiled"):
        return ogs.InferenceSession(
            model, quiet_options(), providers=["CPUExecutionProvider"], nodes="all"
        )


def open_patched_file(
    model: onnx.ModelProto, target: Literal["ort_gridsample", "compiled"] = "ort_gridsample"
) -> onnxruntime.InferenceSession:
    """A model patched and saved earlier, in onnxruntime's own session."""
    skip_unrunnable(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patched.onnx"
        onnx.save(ogs.patch_model(model, target=target), path)
        return onnxruntime.InferenceSession(
            path, ogs.register(quiet_options()), providers=["CPUExecutionProvider"]
        )


def open_compiled_file(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A model turned to compiled ops and saved earlier, in onnxruntime's own session."""
    return open_patched_file(model, "compiled")


#: A library of all ops, which this variable may name, is tested wherever compiled ops are.
LIBRARY = os.environ.get("ORT_GRIDSAMPLE_TESTED_LIBRARY", "")


def open_library(model: onnx.ModelProto, path: str = LIBRARY) -> onnxruntime.InferenceSession:
    """A model turned to compiled ops, in onnxruntime's own session, which knows the ops of a library alone."""
    options = quiet_options()
    options.register_custom_ops_library(path)
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, options, providers=["CPUExecutionProvider"])


HAS_PROVIDER = versions.is_at_least(onnxruntime.__version__, ep_api.OLDEST)


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
    """All outputs for ``inputs`` in the model's order; bfloat16 travels as float32."""
    bfloat16 = dtype_of("bfloat16")
    feeds = {
        description.name: value.astype(np.float32) if value.dtype == bfloat16 else value
        for description, value in zip(session.get_inputs(), inputs, strict=True)
    }
    outputs = session.run(None, feeds)
    return [Y.astype(bfloat16) for Y in outputs] if output_type == bfloat16 else outputs


@cache
def function_answer(case: Case, core: str) -> np.ndarray:
    """What the function answers on ``core``, which must be the current one."""
    return ogs.grid_sample(case.X, case.grid, *astuple(case.attributes))


class Function:
    """The Python functions themselves."""

    def grid_samples(
        self, X: Array, grid: Array, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[Array]:
        return [ogs.grid_sample(X, grid, *astuple(each)) for each in attributes]

    def grid_sample(self, X: Array, grid: Array, *attributes: str | bool, opset: int = 22) -> Array:
        return self.grid_samples(X, grid, [Attributes(*attributes)], opset)[0]

    def affine_grid(self, theta: Array, size: Sequence[int], align_corners: bool = False) -> Array:
        return ogs.affine_grid(theta, size, align_corners)


class Model(Function):
    """Models of nodes side by side, in the session that ``open`` makes of them."""

    def __init__(self, open: Open, planar: bool = False) -> None:
        """``planar``: the coordinates of a grid come in planes, where a session takes the node in that moves them."""
        self.open, self.planar = open, planar

    def grid_samples(
        self, X: Array, grid: Array, attributes: Sequence[Attributes], opset: int = 22
    ) -> list[Array]:
        planar = self.planar and grid.dtype.name in programs.TYPES
        model = grid_sample_model(
            type_name(X.dtype), type_name(grid.dtype), X.ndim - 2, attributes, opset, planar
        )
        return run(
            self.open(model),
            X.dtype,
            X,
            np.ascontiguousarray(np.moveaxis(grid, -1, 1)) if planar else grid,
        )

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
