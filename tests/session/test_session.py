"""``InferenceSession`` and ``register`` behave as those of onnxruntime."""

import functools
import importlib
import inspect
import multiprocessing
import os
import pickle
import queue
import re
import typing
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.custom_ops.python_ops import failures, shutdown
from ort_gridsample.reference import sampler
from ort_gridsample.session import model_preparation
from ort_gridsample.session.patched_model import SessionArguments
from support import faults
from support.cases import Attributes
from support.decomposed_models import BILINEAR_ZEROS, load_decomposed
from support.exported_models import EXPORTED_FOLDER
from support.external_data import GRID, WRONG_GRID, X, cached_model, external_model
from support.fused_models import transformer
from support.models import grid_sample_model, loose, parsed
from support.paths import needs_python_ops

FEEDS = {"X": X, "grid": GRID}
WRONG_FEEDS = {"X": X, "grid": WRONG_GRID}
NODE = "GridSample node 'sample0'"
ERROR = rf"{NODE}: grid is of shape \(2, 4, 5, 2\), expected N = 1 in axis 0"
SPINNING = "session.intra_op.allow_spinning"
#: Keys of configuration entries.
CONFIG_KEYS = (
    SPINNING,
    "session.model_external_initializers_file_folder_path",
    "session.set_denormal_as_zero",
    "custom",
)


@pytest.fixture
def model() -> onnx.ModelProto:
    return grid_sample_model(
        "float32", "float32", 2, [Attributes("linear", "zeros", False)], opset=20
    )


@pytest.fixture
def session(model: onnx.ModelProto, ops: str) -> ogs.InferenceSession:
    return ogs.InferenceSession(model, providers=["CPUExecutionProvider"], nodes="all")


@pytest.fixture
def expected() -> np.ndarray:
    return ogs.grid_sample(X, GRID)


@pytest.mark.parametrize("argument", ["path_or_bytes", "model"])
@pytest.mark.parametrize("kind", ["path", "str", "bytes", "ModelProto"])
def test_session_takes_model_of_each_kind(
    kind: str, argument: str, model: onnx.ModelProto, expected: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sources = {
        "path": path,
        "str": str(path),
        "bytes": model.SerializeToString(),
        "ModelProto": model,
    }
    session = ogs.InferenceSession(**{argument: sources[kind]})
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_repr_of_session_has_its_model_and_where_nodes_run(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    counted = r"sampling nodes: 1 on \w+( ops)?>"
    session = ogs.InferenceSession(tmp_path / "model.onnx")
    assert re.fullmatch(rf"<InferenceSession of 'model\.onnx': {counted}", repr(session))
    assert re.fullmatch(
        rf"<InferenceSession of a model of [\d,]+ bytes: {counted}",
        repr(ogs.InferenceSession(model)),
    )


def test_repr_of_session_without_sampling_nodes_and_without_a_model() -> None:
    class Session(ogs.InferenceSession):
        pass

    model = parsed("g (float[2] X) => (float[2] Y) { Y = Neg (X) }", 20)
    assert repr(Session(model)).endswith(" bytes: sampling nodes: none>")
    assert repr(Session.__new__(Session)) == "<Session: sampling nodes: none>"


@pytest.mark.parametrize(
    ("count", "arguments"),
    [("neither", {}), ("both", {"path_or_bytes": b"", "model": b""})],
    ids=["neither", "both"],
)
def test_session_of_other_than_one_model_raises(count: str, arguments: dict[str, bytes]) -> None:
    message = f"got {count} of path_or_bytes and model, expected one"
    with pytest.raises(TypeError, match=message):
        ogs.InferenceSession(**arguments)


@pytest.mark.parametrize("kind", [Path, str])
def test_session_of_missing_file_raises(kind: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.onnx"):
        ogs.InferenceSession(kind(tmp_path / "missing.onnx"))


def test_run_methods_have_the_parameters_of_onnxruntime_and_types() -> None:
    names = [name for name in vars(ogs.InferenceSession) if name.startswith("run")]
    assert len(names) == 5
    for name in names:
        method = getattr(ogs.InferenceSession, name)
        parameters = inspect.signature(method).parameters
        native = getattr(onnxruntime.InferenceSession, name)
        assert list(parameters) == list(inspect.signature(native).parameters)
        hints = typing.get_type_hints(method)
        assert {*parameters, "return"} - set(hints) == {"self"}
        assert hints["return"] is not typing.Any


Feeds = dict[str, np.ndarray]
Options = onnxruntime.RunOptions | None
STOPPED = onnxruntime.RunOptions()
STOPPED.terminate = True


def run(session: ogs.InferenceSession, feeds: Feeds, options: Options = None) -> np.ndarray:
    return session.run(None, feeds, options)[0]


def run_with_ort_values(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()
    }
    return session.run_with_ort_values(None, values, options)[0].numpy()


def run_with_iobinding(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("Y0")
    session.run_with_iobinding(binding, options)
    return binding.copy_outputs_to_cpu()[0]


def run_with_ortvaluevector(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    inputs = OrtValueVector()
    outputs = OrtValueVector()
    for value in feeds.values():
        inputs.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(value)._ortvalue)
    devices = [onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()]
    session.run_with_ortvaluevector(
        options or onnxruntime.RunOptions(), list(feeds), inputs, ["Y0"], outputs, devices
    )
    return outputs[0].numpy()


#: onnxruntime's methods that run a session, as functions of a session, feeds and options.
RUN_METHODS = {
    function.__name__: function
    for function in (run, run_with_ort_values, run_with_iobinding, run_with_ortvaluevector)
}
each_run_method = pytest.mark.parametrize("name", RUN_METHODS)


@each_run_method
def test_run_method_returns_outputs_and_raises_errors(
    name: str, session: ogs.InferenceSession, expected: np.ndarray
) -> None:
    run_method = RUN_METHODS[name]
    np.testing.assert_array_equal(run_method(session, FEEDS), expected)
    with pytest.raises(ogs.GridSampleError, match=ERROR):
        run_method(session, WRONG_FEEDS)
    with pytest.raises(Exception, match="terminate"):
        run_method(session, FEEDS, STOPPED)
    np.testing.assert_array_equal(run_method(session, FEEDS), expected)


@each_run_method
def test_run_method_calls_wrapper_set_later_on_onnxruntime(
    name: str, session: ogs.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As profilers wrap it, with functools.wraps."""
    calls = []
    native = getattr(onnxruntime.InferenceSession, name)

    @functools.wraps(native)
    def wrapper(*args: object) -> object:
        calls.append(name)
        return native(*args)

    monkeypatch.setattr(onnxruntime.InferenceSession, name, wrapper)
    RUN_METHODS[name](session, FEEDS)
    with pytest.raises(ogs.GridSampleError, match=ERROR):
        RUN_METHODS[name](session, WRONG_FEEDS)
    assert calls == [name] * 2


def test_run_takes_lists(session: ogs.InferenceSession, expected: np.ndarray) -> None:
    lists = {name: value.tolist() for name, value in FEEDS.items()}
    np.testing.assert_array_equal(session.run(None, lists)[0], expected)


def test_run_returns_the_named_outputs(expected: np.ndarray) -> None:
    attributes = [Attributes("nearest"), Attributes("linear", "zeros", False)]
    session = ogs.InferenceSession(
        grid_sample_model("float32", "float32", 2, attributes), nodes="all"
    )
    np.testing.assert_array_equal(session.run(["Y1"], FEEDS), [expected])


@pytest.mark.parametrize(
    ("feeds", "options", "message"),
    [(FEEDS, None, "^$"), (WRONG_FEEDS, None, ERROR), (FEEDS, STOPPED, "terminate")],
    ids=["right grid", "wrong grid", "terminated"],
)
def test_run_async_calls_back_with_outputs_or_error(
    feeds: Feeds,
    options: Options,
    message: str,
    session: ogs.InferenceSession,
    expected: np.ndarray,
) -> None:
    results: queue.Queue[tuple] = queue.Queue()
    session.run_async(None, feeds, lambda *result: results.put(result), "user data", options)
    outputs, user_data, error = results.get(timeout=30)
    assert user_data == "user data"
    assert re.search(message, error)
    if not error:
        np.testing.assert_array_equal(outputs[0], expected)


def test_run_async_without_feeds_raises_and_is_not_counted(session: ogs.InferenceSession) -> None:
    """The end of the interpreter waits for the runs that are counted."""
    with pytest.raises(ValueError, match="missing from input feed"):
        session.run_async(None, {}, lambda *_: None, "user data")
    assert shutdown.asynchronous_runs() == 0


@needs_python_ops
def test_plain_session_names_the_node_and_old_failures_are_dropped(
    model: onnx.ModelProto, expected: np.ndarray
) -> None:
    session = onnxruntime.InferenceSession(
        ogs.patch_model(model).SerializeToString(), ogs.register()
    )
    for _ in range(failures.MAX_STORED + 20):
        with pytest.raises(
            Exception, match=f"ort_gridsample rejected the input of {NODE}"
        ) as caught:
            session.run(None, WRONG_FEEDS)
        assert type(caught.value).__module__.startswith("onnxruntime")
    assert len(failures.store) <= failures.MAX_STORED
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_error_names_the_first_failed_node() -> None:
    model = parsed("""g (float[N,C,H,W] X, float[n,h,w,r] G) => (float[N,C,h,w] Y) {
        A = GridSample (X, G)
        B = Relu (A)
        Y = GridSample (B, G) }""")
    session = ogs.InferenceSession(loose(model))
    for shape in ((1, 4, 3), (1, 4, 5, 3), ()):
        with pytest.raises(ogs.GridSampleError) as caught:
            session.run(None, {"X": X, "G": np.zeros(shape, np.float32)})
        assert caught.value.where == "GridSample node with output 'A'"
        assert caught.value.argument == "grid"


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize(
    ("function", "feeds", "error", "message"),
    [
        ("functions.sampling.grid_sample", FEEDS, MemoryError, "^no memory$"),
        # A failure that cannot be stored is still an exception.
        (
            "custom_ops.python_ops.failures.record",
            WRONG_FEEDS,
            Exception,
            f"rejected the input of {NODE}",
        ),
    ],
    ids=["op", "storing the failure"],
)
def test_exception_in_python_op_is_raised_by_run(
    function: str,
    feeds: Feeds,
    error: type[Exception],
    message: str,
    model: onnx.ModelProto,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = ogs.InferenceSession(model, nodes="all")
    with monkeypatch.context() as patch:
        patch.setattr(f"ort_gridsample.{function}", Mock(side_effect=MemoryError("no memory")))
        with pytest.raises(error, match=message):
            session.run(None, feeds)
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


@needs_python_ops
@pytest.mark.parametrize("kind", ["registered", "with extensions", "of a session"])
def test_register_of_used_options_registers_once(
    kind: str, model: onnx.ModelProto, expected: np.ndarray
) -> None:
    """Also if onnxruntime-extensions was registered before, or the options are a session's."""
    if kind == "of a session":
        options = ogs.InferenceSession(model).get_session_options()
    else:
        options = onnxruntime.SessionOptions()
    if kind == "with extensions":
        extensions = importlib.import_module("onnxruntime_extensions")
        options.register_custom_ops_library(extensions.get_library_path())
    for _ in range(2):
        assert ogs.register(options) is options
        session = ogs.InferenceSession(model, options)
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)
    if kind != "with extensions":
        patched = ogs.patch_model(model).SerializeToString()
        plain = onnxruntime.InferenceSession(patched, options)
        np.testing.assert_array_equal(plain.run(None, FEEDS)[0], expected)


def config_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return a configuration entry, or None if the options lack it."""
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return None


def readable_values(options: onnxruntime.SessionOptions) -> dict[str, object]:
    """Return all attributes and the tested configuration entries of ``options``."""
    names = [
        name
        for name in dir(options)
        if not name.startswith("_") and not callable(getattr(options, name))
    ]
    assert {"enable_profiling", "intra_op_num_threads", "execution_mode"} <= set(names)
    attributes = {name: getattr(options, name) for name in names}
    return attributes | {key: config_entry(options, key) for key in CONFIG_KEYS}


@pytest.mark.parametrize("has_external_data", [False, True], ids=["model", "external data"])
def test_session_does_not_change_the_given_options(
    has_external_data: bool, model: onnx.ModelProto, tmp_path: Path, ops: str
) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("custom", "kept")
    before = readable_values(options)

    source = external_model(tmp_path) if has_external_data else model
    session = ogs.InferenceSession(source, options, ["CPUExecutionProvider"], nodes="all")
    assert readable_values(options) == before
    copied = readable_values(session.get_session_options())
    changed = {name for name in before if copied[name] != before[name]}
    assert changed <= {SPINNING, "session.model_external_initializers_file_folder_path"}
    assert copied["custom"] == "kept"
    assert copied[SPINNING] == ("0" if ops == "python" else None)

    session.run(None, {value.name: FEEDS[value.name] for value in session.get_inputs()})
    Path(session.end_profiling()).unlink()
    # The options were copied without a session that writes a profile.
    assert not list(tmp_path.glob("profile*"))


def test_session_of_model_without_the_operators_uses_the_given_options() -> None:
    options = onnxruntime.SessionOptions()
    relu = parsed("g (float[N] X) => (float[N] Y) { Y = Relu (X) }", 13)
    assert ogs.patch_model(relu) == relu
    session = ogs.InferenceSession(relu, options)
    x = X[0, 0, 0]
    np.testing.assert_array_equal(session.run(None, {"X": x})[0], x.clip(0))
    assert config_entry(options, SPINNING) is None
    assert config_entry(session.get_session_options(), SPINNING) is None
    assert session._sess_options_initial is options


@pytest.mark.parametrize("spinning", ["0", "1"])
def test_spinning_entry_of_the_user_is_kept(spinning: str, model: onnx.ModelProto) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(SPINNING, spinning)
    session = ogs.InferenceSession(model, options)
    assert config_entry(session.get_session_options(), SPINNING) == spinning


def test_free_dimensions_of_options_are_copied(model: onnx.ModelProto) -> None:
    """Options do not show the dimensions that were added to them."""
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("N", 1)
    assert ogs.InferenceSession(model, options).get_inputs()[0].shape[0] == 1


def test_initializers_of_options_are_copied(model: onnx.ModelProto, expected: np.ndarray) -> None:
    options = onnxruntime.SessionOptions()
    grid = onnxruntime.OrtValue.ortvalue_from_numpy(GRID)
    options.add_initializer("grid", grid)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros_like(GRID), "grid"))
    del model.graph.input[1]
    (Y,) = ogs.InferenceSession(model, options).run(None, {"X": X})
    np.testing.assert_array_equal(Y, expected)


@pytest.mark.parametrize("length", [1, 3])
def test_initializer_of_options_that_a_fused_grid_reads_is_used(length: int) -> None:
    ones = ", ".join(["1"] * length)
    model = parsed(f"""g (float[1,1,4,5,6] X, float[1,2,3,4,3] flow) => (float[1,1,2,3,4] Y)
        <float[{length}] scale = {{{ones}}}> {{
        grid = Mul (flow, scale)
        Y = GridSample (X, grid) }}""")
    options = onnxruntime.SessionOptions()
    scale = np.array([0.1, 0.2, 0.3], np.float32)[:length]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(scale)
    options.add_initializer("scale", value)
    rng = np.random.default_rng(0)
    volume = rng.random((1, 1, 4, 5, 6), np.float32)
    flow = rng.uniform(-1, 1, (1, 2, 3, 4, 3)).astype(np.float32)
    (Y,) = ogs.InferenceSession(model, options).run(None, {"X": volume, "flow": flow})
    np.testing.assert_allclose(Y, ogs.grid_sample(volume, flow * scale), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("python_ops")
def test_options_for_a_model_with_other_domains_are_not_copied(model: onnx.ModelProto) -> None:
    """A copy would lack the libraries that were registered with the options."""
    options = onnxruntime.SessionOptions()
    other_model = deepcopy(model)
    other_model.opset_import.append(helper.make_opsetid("other", 1))
    other_model.graph.node.append(helper.make_node("OtherOp", ["X"], ["Z"], domain="other"))
    with pytest.raises(Exception, match="OtherOp"):
        ogs.InferenceSession(other_model, options, nodes="all")
    assert config_entry(options, SPINNING) == "0"


@pytest.mark.usefixtures("python_ops")
@pytest.mark.skipif(
    not hasattr(onnxruntime.SessionOptions, "add_provider"),
    reason="this onnxruntime adds no providers to options",
)
def test_options_with_providers_are_not_copied(
    model: onnx.ModelProto, expected: np.ndarray
) -> None:
    options = onnxruntime.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    session = ogs.InferenceSession(model, options, nodes="all")
    assert session._sess_options_initial is options
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


#: The first line of a model with hand-written nodes of this package, which have one output and no
#: attributes of the op.
PACKAGE_HEADER = '<ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>'


@pytest.mark.usefixtures("ops")
def test_hand_written_grid_sample_of_this_package_runs() -> None:
    model = onnx.parser.parse_model(f"""{PACKAGE_HEADER}
        g (float[N, C, H, W] X, float[N, h, w, 2] grid) => (float[N, C, h, w] Y) {{
        Y = ort_gridsample.GridSample <mode = "cubic"> (X, grid) }}""")
    session = ogs.InferenceSession(model)
    X = np.random.default_rng(0).random((2, 3, 5, 6), np.float32)
    grid = GRID.repeat(2, axis=0)
    (Y,) = session.run(None, {"X": X, "grid": grid})
    np.testing.assert_array_equal(Y, ogs.grid_sample(X, grid, "cubic"))
    with pytest.raises(ogs.GridSampleError) as caught:
        session.run(None, {"X": X, "grid": grid[:1]})
    assert caught.value.argument == "grid"


@pytest.mark.usefixtures("ops")
def test_hand_written_affine_grid_of_this_package_runs() -> None:
    model = onnx.parser.parse_model(f"""{PACKAGE_HEADER}
        g (float[2, 2, 3] theta, int64[4] size) => (float[] grid) {{
        grid = ort_gridsample.AffineGrid (theta, size) }}""")
    theta = np.ones((2, 2, 3), np.float32)
    size = np.array([2, 1, 3, 4])
    (grid,) = ogs.InferenceSession(model).run(None, {"theta": theta, "size": size})
    np.testing.assert_array_equal(grid, ogs.affine_grid(theta, size))


def test_providers_are_passed_to_onnxruntime(model: onnx.ModelProto) -> None:
    providers = ["OtherExecutionProvider", "CPUExecutionProvider"]
    message = "'OtherExecutionProvider' is not in available provider names"
    with pytest.warns(UserWarning, match=message):
        ogs.InferenceSession(model, providers=providers)


def test_profile_and_optimized_model_are_written_once(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ogs.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, FEEDS)
    assert Path(session.end_profiling()).read_text().count("sample0_kernel_time") == 1
    assert sorted(p.name.split("_")[0] for p in tmp_path.iterdir()) == ["optimized.onnx", "profile"]


@pytest.mark.skipif(bool(unavailable_reason()), reason=f"no compiled ops: {unavailable_reason()}")
def test_output_of_a_fused_op_in_a_body_has_a_rank_and_no_stated_lengths(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx.load(EXPORTED_FOLDER / "raft_scan.onnx")
    model.ir_version = 8  # which every onnxruntime reads
    ogs.InferenceSession(model, options)
    optimized = onnx.load(options.optimized_model_filepath)
    (body,) = (a.g for node in optimized.graph.node for a in node.attribute if a.name == "body")
    types = {value.name: value.type.tensor_type for value in body.value_info}
    outputs = [node.output[0] for node in body.node if node.op_type == "FusedGridSample"]
    assert len(outputs) == 2
    for output in outputs:
        dims = types[output].shape.dim
        assert len(dims) == 4
        assert not any(dim.HasField("dim_value") for dim in dims)


@pytest.mark.parametrize("make_model", [external_model, cached_model])
def test_session_does_not_copy_external_data(
    make_model: Callable[[Path], Path],
    tmp_path: Path,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_model(tmp_path)
    options = onnxruntime.SessionOptions()
    loaded = onnxruntime.InferenceSession(ogs.patch_model(path).SerializeToString(), ogs.register())
    np.testing.assert_array_equal(loaded.run(None, {"X": X})[0], expected)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(path.parent.parent)
    if not faults.NO_EXTERNAL_FOLDER:
        # The weights are not read into Python.
        monkeypatch.setattr(onnx, "load_external_data_for_model", None)
    for source, session_options in (
        (path, None),
        (os.path.relpath(path), options),
        (path, options),
    ):
        (Y,) = ogs.InferenceSession(source, session_options).run(None, {"X": X})
        np.testing.assert_array_equal(Y, expected)
    assert sorted(tmp_path.rglob("*")) == before


def test_function_passed_as_nodes_is_called_once_per_node() -> None:
    nodes = Mock(return_value=True)
    session = ogs.InferenceSession(transformer(), nodes=nodes)
    assert [call.args[0].operator for call in nodes.call_args_list] == ["AffineGrid", "GridSample"]
    assert len(session.placements) == 2


@pytest.mark.usefixtures("python_ops")
def test_python_op_gets_the_threads_of_the_options(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_threads_of_calls = []

    def grid_sample(*_: object, num_threads: int | None, **__: object) -> np.ndarray:
        num_threads_of_calls.append(num_threads)
        return X

    monkeypatch.setattr("ort_gridsample.functions.sampling.grid_sample", grid_sample)
    for num_threads in (1, 3):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        for source in (model, ogs.patch_model(model)):
            ogs.InferenceSession(source, options, nodes="all").run(None, FEEDS)
    ogs.InferenceSession(model, nodes="all").run(None, FEEDS)
    assert num_threads_of_calls == [1, 1, 3, 3, None]


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize("is_patched", [False, True])
def test_session_prepares_the_kernels_of_its_nodes_once(
    is_patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Mock()
    monkeypatch.setattr("ort_gridsample.session.python_op_preparation.load_core", lambda: sampler)
    monkeypatch.setattr(sampler, "prepare", prepare)
    model = grid_sample_model("float16", "float64", 2, [Attributes("cubic", "zeros", False)] * 2)
    ogs.InferenceSession(ogs.patch_model(model) if is_patched else model, nodes="all")
    prepare.assert_called_once_with(np.dtype("float32"), np.dtype("float64"), "cubic")


def run_pickled(pickled: bytes) -> np.ndarray:
    return pickle.loads(pickled).run(None, FEEDS)[0]


@pytest.fixture
def pickled_sessions(model: onnx.ModelProto, tmp_path: Path) -> list[bytes]:
    """Return pickles of a session of a file, and of a session of a ModelProto."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry(SPINNING, "1")
    return [
        pickle.dumps(ogs.InferenceSession(source, options, ["CPUExecutionProvider"]))
        for source in (path, model)
    ]


def test_pickled_session_runs_in_another_process(
    pickled_sessions: list[bytes], expected: np.ndarray
) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for Y in pool.map_async(run_pickled, pickled_sessions).get(timeout=120):
            # Another number of threads may sum in another order.
            np.testing.assert_allclose(Y, expected, atol=1e-6)


def test_session_pickled_twice_keeps_placements_and_options(pickled_sessions: list[bytes]) -> None:
    runs_on = "Python op" if unavailable_reason() else "compiled op"
    for pickled in pickled_sessions:
        session = pickle.loads(pickle.dumps(pickle.loads(pickled)))
        assert [placement.runs_on for placement in session.placements] == [runs_on]
        options = session.get_session_options()
        assert options.intra_op_num_threads == 1
        assert config_entry(options, "session.set_denormal_as_zero") == "1"
        assert config_entry(options, SPINNING) == "1"


class SubclassedSession(ogs.InferenceSession):
    """A session of a class that the package does not know."""


def test_pickled_session_of_a_subclass_keeps_its_class(model: onnx.ModelProto) -> None:
    session = pickle.loads(pickle.dumps(SubclassedSession(model)))
    assert type(session) is SubclassedSession


def test_session_of_invalid_model_raises_the_exception_of_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "invalid.onnx"
    path.write_bytes(b"no model")
    for model in (path, b"no model", 5):
        with pytest.raises(Exception, match=r".") as native:
            onnxruntime.InferenceSession(model)
        with pytest.raises(type(native.value)):
            ogs.InferenceSession(model)


def test_function_whose_body_serves_all_calls_is_not_inlined() -> None:
    model = parsed("""g (float[N,C,H,W] X, float[N,h,w,2] G) => (float[N,C,h,w] Y) {
        Y = local.warp (X, G) }
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (C) {
        C = GridSample <mode = "cubic"> (A, B) }""")
    arguments = SessionArguments("all")
    prepared = model_preparation.patch_for_session(model, arguments)
    patched = onnx.load_from_string(prepared.opened_model)
    assert [function.name for function in patched.functions] == ["warp"]
    assert [node.op_type for node in patched.graph.node] == ["warp"]


def test_native_session_of_an_expanded_node_finds_external_data(tmp_path: Path) -> None:
    """The rewritten model is passed as bytes, without the path of its file."""
    model = parsed(
        """g (float[1,1,4,5] X, float[1,2,2,3] grid) => (float[1,1,2,3] Y) <float[1,1,4,5] B> {
            A = Add (X, B)
            Y = GridSampler2DTRT <interpolation_mode = 0, padding_mode = 0, align_corners = 1>
                (A, grid) }""",
        17,
    )
    B = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
    model.graph.initializer.append(onnx.numpy_helper.from_array(B, "B"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    feeds = {"X": np.ones_like(B), "grid": np.zeros((1, 2, 2, 3), np.float32)}
    session = ogs.InferenceSession(path, nodes="unsupported")
    assert not any(placement.is_ours for placement in session.placements)
    np.testing.assert_allclose(session.run(None, feeds)[0], np.full((1, 1, 2, 3), 10.5), rtol=1e-6)


def test_session_replaces_a_decomposed_sample_unless_only_unsupported_nodes_are_chosen() -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    faults.skip_unread(model)
    runs_on = {
        nodes: ogs.InferenceSession(model, nodes=nodes).placements[0].runs_on
        for nodes in (None, "all", "unsupported")
    }
    assert runs_on["unsupported"] == "onnxruntime"
    assert runs_on[None] == runs_on["all"] != "onnxruntime"
