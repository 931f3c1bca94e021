"""The execution provider: unmodified models on the kernels of the compiled ops."""

import ctypes
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample import spec, versions
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.custom_ops.provider import definitions, registration
from support.cases import Attributes
from support.compare import assert_identical, refusal
from support.exported_models import EXPORTED_MODELS, run_stored_inputs
from support.graphs import MODELS
from support.models import affine_grid_model, grid_sample_model
from support.paths import (
    needs_provider,
    open_provider,
    provider_options,
    quiet_options,
)
from support.processes import run_program

pytestmark = needs_provider
CPU = "CPUExecutionProvider"
_rng = np.random.default_rng(45)
X = _rng.normal(size=(1, 2, 5, 6)).astype(np.float32)
GRID = _rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
FEED = {"X": X, "grid": GRID}


def sampling_providers(session: onnxruntime.InferenceSession) -> set[str]:
    """Return the providers of all sampling nodes of a session."""
    return {
        subgraph.ep_name
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
        if node.op_type in spec.OPERATORS
    }


def model_of(attributes: Attributes | None = None, X_type: str = "float32") -> onnx.ModelProto:
    """Return a model of one GridSample with two spatial axes."""
    return grid_sample_model(X_type, "float32", 2, [attributes or Attributes()])


# --- What it computes ---


@pytest.mark.parametrize("r", [2, 3])
def test_affine_grid_is_taken_before_it_is_inlined(r: int) -> None:
    model = affine_grid_model("float32", r, True)
    session = open_provider(model)
    assert sampling_providers(session) == {definitions.NAME}
    theta = _rng.normal(size=(2, r, r + 1)).astype(np.float32)
    size = [2, 3, 4, 5, 6][: r + 2]
    (grid,) = session.run(None, {"theta": theta, "size": np.array(size)})
    assert_identical(grid, ogs.affine_grid(theta, size, True))


@pytest.mark.parametrize("name", ["If", "Loop", "Scan", "function"])
def test_nodes_in_bodies_and_functions_run_on_the_provider(name: str) -> None:
    session = open_provider(parser.parse_model(MODELS[name]))
    assert sampling_providers(session) == {definitions.NAME}


def sampler_model(domain: str, **attributes: int) -> onnx.ModelProto:
    """Return a model of OpenMMLab's grid_sampler."""
    node = helper.make_node("grid_sampler", ["X", "grid"], ["Y"], "g", domain=domain, **attributes)
    floats = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, floats, None) for name in FEED]
    output = helper.make_tensor_value_info("Y", floats, None)
    imports = [helper.make_opsetid("", 16), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("domain", ["mmcv", "mmdeploy"])
@pytest.mark.parametrize(("code", "mode"), list(enumerate(["linear", "nearest", "cubic"])))
def test_grid_sampler_of_openmmlab_runs(domain: str, code: int, mode: str) -> None:
    attributes = {"interpolation_mode": code, "padding_mode": 2, "align_corners": 1}
    session = open_provider(sampler_model(domain, **attributes))
    expected = ogs.grid_sample(X, GRID, mode, "reflection", True)
    assert_identical(session.run(None, FEED)[0], expected)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        (
            {"interpolation_mode": 7},
            "interpolation_mode is 7, expected 0 (linear), 1 (nearest) or 2 (cubic)",
        ),
        (
            {"padding_mode": -1},
            "padding_mode is -1, expected 0 (zeros), 1 (border) or 2 (reflection)",
        ),
        ({"align_corners": 3}, "align_corners is 3, expected 0 or 1"),
    ],
)
def test_grid_sampler_with_an_unknown_code_is_refused(
    attributes: dict[str, int], sentence: str
) -> None:
    known = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": 0}
    with pytest.raises(Exception, match=re.escape(f"grid_sampler node 'g': {sentence}")):
        open_provider(sampler_model("mmcv", **(known | attributes)))


def test_grid_sampler_without_an_attribute_is_refused() -> None:
    with pytest.raises(Exception, match="interpolation_mode is missing, expected 0 "):
        open_provider(sampler_model("mmcv", padding_mode=0, align_corners=0))


# --- What it claims ---


@pytest.mark.skipif(
    not versions.is_at_least(onnxruntime.__version__, "1.25"),
    reason="onnxruntime 1.24 does not find a provider by its name",
)
def test_order_of_providers_decides_about_nodes_that_both_run() -> None:
    names = [ogs.register_provider(), CPU]
    for providers, X_type, expected in (
        (names, "float32", definitions.NAME),
        (names[::-1], "float32", CPU),
        (names[::-1], "uint8", definitions.NAME),
    ):
        options = quiet_options()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        model = model_of(X_type=X_type).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        assert sampling_providers(session) == {expected}, (providers, X_type)


def test_strings_are_left_to_other_providers() -> None:
    with pytest.raises(Exception, match="Could not find an implementation for GridSample"):
        open_provider(model_of(X_type="str"))


def test_unknown_mode_is_refused_with_the_choices() -> None:
    model = model_of()
    attributes = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    attributes["mode"].s = b"bogus"
    with pytest.raises(Exception, match=r"mode is 'bogus', expected 'nearest', 'linear'"):
        open_provider(model)


# --- Patched models and other libraries ---


@pytest.mark.parametrize("registers", ["never", "before", "after"])
def test_patched_model_needs_no_other_registration(registers: str) -> None:
    patched = ogs.patch_model(model_of(), target="compiled").SerializeToString()
    options = ogs.register(quiet_options()) if registers == "before" else quiet_options()
    name = ogs.register_provider()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options.add_provider_for_devices(devices, {})
    if registers == "after":
        ogs.register(options)
    session = onnxruntime.InferenceSession(patched, options)
    assert_identical(session.run(None, FEED)[0], ogs.grid_sample(X, GRID))


@pytest.mark.parametrize("is_first", [True, False])
def test_it_runs_beside_onnxruntime_extensions(is_first: bool) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    options = quiet_options()
    ogs.register_provider()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == definitions.NAME]
    if not is_first:
        options.register_custom_ops_library(extensions.get_library_path())
    options.add_provider_for_devices(devices, {})
    if is_first:
        options.register_custom_ops_library(extensions.get_library_path())
    session = onnxruntime.InferenceSession(model_of().SerializeToString(), options)
    assert_identical(session.run(None, FEED)[0], ogs.grid_sample(X, GRID))


def test_no_copies_are_inserted(tmp_path: Path) -> None:
    options = provider_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    path = next(path for path in EXPORTED_MODELS if path.stem == "stn")
    session = onnxruntime.InferenceSession(path, options)
    run_stored_inputs(session, path)
    profile = json.loads(Path(session.end_profiling()).read_text())
    names = [event["args"].get("op_name", "") for event in profile if "args" in event]
    assert not [name for name in names if name.startswith("Memcpy")]
    assert spec.OPERATORS.keys().isdisjoint(names)  # a fused node has a name of the provider
    assert any(name.startswith(definitions.NAME) for name in names)


# --- Registration ---


def test_registration_is_idempotent() -> None:
    with ThreadPoolExecutor(16) as pool:
        names = list(pool.map(lambda _: ogs.register_provider(), range(64)))
    assert set(names) == {definitions.NAME}
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == definitions.NAME]
    assert len(devices) == 1
    (device,) = devices
    assert (device.ep_vendor, device.ep_metadata["version"]) == ("ort_gridsample", ogs.__version__)


def test_older_onnxruntime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    error = refusal(registration.Provider().register)
    assert (error.found, error.expected) == ("1.23.2", "1.24 or newer")


def test_onnxruntime_built_without_provider_libraries_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(onnxruntime, "register_execution_provider_library")
    error = refusal(registration.Provider().register)
    assert error.expected == "a build with register_execution_provider_library"


def test_missing_numba_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "unavailable_reason", lambda: "Numba is not installed")
    monkeypatch.setattr(registration, "_is_listed", lambda: False)
    with pytest.raises(ImportError, match="no execution provider to register: Numba is not"):
        registration.Provider().register()


def test_older_api_is_refused_with_a_status() -> None:
    """CreateEpFactories gets an OrtApiBase whose newest table is that of 1.23."""
    provider = registration.provider()
    base_address = onnxruntime_api_base()
    get_api = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    real = get_api(ctypes.c_int64.from_address(base_address).value)
    limited = get_api(lambda version: 0 if version > 23 else real(version))
    base = (ctypes.c_void_p * 2)(ctypes.cast(limited, ctypes.c_void_p).value, None)
    status = provider._create(0, ctypes.addressof(base), 0, 0, 4, 0)
    api = real(17)
    get_message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int64)
    message = get_message(ctypes.c_int64.from_address(api + 16).value)(status)
    assert message == b"ort_gridsample's execution provider needs onnxruntime 1.24 or newer"


def test_registration_after_a_failed_one_fuses_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = registration.Provider()
    factories = (ctypes.c_int64 * 1)()
    count = ctypes.c_int64()
    arguments = (0, onnxruntime_api_base(), 0, ctypes.addressof(factories), 1)

    def fail(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr(registration.Provider, "_enable_fusion", fail)
        assert provider._create_factories(*arguments, ctypes.addressof(count)) != 0
    assert provider._create_factories(*arguments, ctypes.addressof(count)) == 0
    assert provider._fused_nodes is not None


def onnxruntime_api_base() -> int:
    """Return the OrtApiBase of the installed onnxruntime."""
    (path,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    library = ctypes.CDLL(str(path))
    library.OrtGetApiBase.restype = ctypes.c_int64
    return int(library.OrtGetApiBase())


# --- Threads, processes and lifetime ---


def test_sixteen_threads_share_a_session() -> None:
    session = open_provider(model_of())
    expected = session.run(None, FEED)[0]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: session.run(None, FEED)[0], range(320)))
    for Y in answers:
        assert_identical(Y, expected)


def test_sixteen_threads_open_sessions_at_once() -> None:
    barrier = threading.Barrier(16)

    def answer(_: int) -> Any:
        barrier.wait()
        return open_provider(model_of()).run(None, FEED)[0]

    with ThreadPoolExecutor(16) as pool:
        for Y in pool.map(answer, range(16)):
            assert_identical(Y, ogs.grid_sample(X, GRID))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_forked_children_open_and_run_sessions() -> None:
    assert run_program("provider_forks.py") == ["parent True", "children 0 0"]


def test_session_runs_after_the_provider_is_unregistered() -> None:
    assert run_program("provider_unregistered.py") == ["True", "True"]


def test_ten_thousand_sessions_leak_nothing() -> None:
    """Resident memory after 10,000 sessions, in MiB more than after the first 1,000."""
    (grown,) = run_program("provider_sessions.py", "10000")
    assert float(grown) < 8
