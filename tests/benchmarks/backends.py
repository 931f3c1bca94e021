"""Backends: adapters that turn a case into a function to time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnxruntime

from ort_gridsample import versions
from ort_gridsample.cli.timing import Turn
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.custom_ops.provider import ep_api
from ort_gridsample.custom_ops.python_ops import extensions
from ort_gridsample.functions.affine import affine_grid
from ort_gridsample.functions.cores import get_core, set_core
from ort_gridsample.functions.sampling import grid_sample
from ort_gridsample.reference.arrays import Array
from ort_gridsample.session.ops_choice import set_ops
from ort_gridsample.session.provider import register_provider
from ort_gridsample.session.session import InferenceSession
from ort_gridsample.settings import CoreName, OpsName

from .suite import Arrays, Case

Answers = list[Array]
Call = Callable[[], Answers]
#: The available cores of this package, the fastest first.
CORES: tuple[CoreName, ...] = ("jit", "numpy") if find_spec("numba") else ("numpy",)
#: The names of PyTorch and OpenVINO, where they are not ONNX's.
_OLD_MODES = {"linear": "bilinear", "cubic": "bicubic"}


@dataclass(frozen=True)
class Backend:
    """A way to run a case.

    Attributes:
        name: its name in the report.
        prepare: returns a function that runs a case, from the case, feeds and the number of threads
            (0: the library's default). An exception of either says why the case cannot run.
        core: the core of this package, or None for another library.
        ops: the ops of this package's sessions.
        needs: the module of another library that must be installed.
        networks: whether it runs whole models.
        oldest: the oldest onnxruntime that has it.
    """

    name: str
    prepare: Callable[[Case, Arrays, int], Call]
    core: CoreName | None = None
    ops: OpsName | None = None
    needs: str = "onnxruntime"
    networks: bool = False
    oldest: str = versions.OLDEST["onnxruntime"]

    @property
    def installed(self) -> bool:
        if not versions.is_at_least(onnxruntime.__version__, self.oldest):
            return False
        if self.core is None:
            return find_spec(self.needs) is not None
        if self.ops == "compiled" and registry.unavailable_reason():
            return False
        if self.ops == "python" and not extensions.is_installed():
            return False
        return self.core in CORES

    def begin(self) -> None:
        if self.core is not None:
            set_core(self.core)
            set_ops(self.ops)

    def turn(self, case: Case, feeds: Arrays, threads: int) -> tuple[Turn, Answers]:
        self.begin()
        call = self.prepare(case, feeds, threads)
        return Turn(call, self.begin), call()


@contextmanager
def kept() -> Iterator[None]:
    """Restore the core, and the default ops, at the end."""
    before = get_core()
    try:
        yield
    finally:
        set_core(before)
        set_ops(None)


def options_for(threads: int) -> onnxruntime.SessionOptions:
    """Return options with a number of threads, or 0 for onnxruntime's default."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are part of the report
    options.intra_op_num_threads = threads
    return options


def session_call(
    case: Case, feeds: Arrays, threads: int, make: Callable[..., Any] = InferenceSession, **how: str
) -> Call:
    """Return a function that runs a case in a session, which ``make`` opens."""
    session = make(case.model(), options_for(threads), providers=["CPUExecutionProvider"], **how)
    return partial(session.run, None, feeds)


def _provider(case: Case, feeds: Arrays, threads: int) -> Call:
    """Return a function that runs the unmodified model on the execution provider."""
    provider = register_provider()
    options = options_for(threads)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    options.add_provider_for_devices(devices, {})
    session = onnxruntime.InferenceSession(case.model(), options)
    return partial(session.run, None, feeds)


def _function(case: Case, feeds: Arrays, threads: int) -> Call:
    function: Callable[..., Array] = grid_sample if case.operator == "GridSample" else affine_grid
    call = partial(function, *feeds.values(), **case.attributes, num_threads=threads)
    return lambda: [call()]


def _pytorch(case: Case, feeds: Arrays, threads: int) -> Call:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    attributes: dict[str, Any] = {**case.attributes, "align_corners": False}
    if attributes.get("mode") == "cubic" and feeds["X"].dtype == np.float16:
        # Releases 2.11 and 2.13 read outside X: results are NaN, or the process ends.
        raise NotImplementedError("bicubic of float16 can end the process")
    if case.operator == "GridSample":
        attributes["mode"] = _OLD_MODES.get(attributes["mode"], attributes["mode"])
        tensors: list[Any] = [torch.from_numpy(array) for array in feeds.values()]
        function: Callable[..., Any] = functional.grid_sample
    else:
        tensors = [torch.from_numpy(feeds["theta"]), feeds["size"].tolist()]
        function = functional.affine_grid

    def call() -> Answers:
        with torch.inference_mode():
            return [function(*tensors, **attributes).numpy()]

    return call


def _openvino(case: Case, feeds: Arrays, threads: int) -> Call:
    if case.operator != "GridSample":
        raise NotImplementedError(f"OpenVINO has no {case.operator}")
    if feeds["X"].ndim != 4:
        raise NotImplementedError("OpenVINO's GridSample is 2-D only")
    import openvino
    from openvino import opset9

    attributes: dict[str, Any] = {**case.attributes, "align_corners": False}
    attributes["mode"] = _OLD_MODES.get(attributes["mode"], attributes["mode"])
    inputs = [opset9.parameter(array.shape, array.dtype, name) for name, array in feeds.items()]
    model = openvino.Model([opset9.grid_sample(*inputs, attributes)], inputs)
    return openvino_call(model, feeds, threads)


def openvino_call(model: Any, feeds: Arrays, threads: int) -> Call:
    """Return a function that runs a model of OpenVINO, with feeds in the order of its inputs."""
    import openvino

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    settings |= {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    arrays = dict(enumerate(feeds.values()))

    def call() -> Answers:
        outputs = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [outputs[index] for index in range(len(outputs))]

    return call


_ours = partial(session_call, nodes="all")
NATIVE = "onnxruntime"
COMPILED = "compiled op"
PROVIDER = "provider"
PYTHON = "Python op"
BACKENDS = (
    Backend(NATIVE, partial(session_call, make=onnxruntime.InferenceSession), networks=True),
    Backend(COMPILED, _ours, core="jit", ops="compiled", networks=True),
    Backend(PROVIDER, _provider, core="jit", ops="compiled", networks=True, oldest=ep_api.OLDEST),
    Backend(PYTHON, _ours, core=CORES[0], ops="python", networks=True),
    Backend("function jit", _function, core="jit"),
    Backend("function numpy", _function, core="numpy"),
    Backend("PyTorch", _pytorch, needs="torch"),
    Backend("OpenVINO", _openvino, needs="openvino"),
)
