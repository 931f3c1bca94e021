"""``InferenceSession`` and ``register``: as onnxruntime's own, in everything but what they run."""

import functools
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
from ort_gridsample.session import builder
from support import faults
from support.cases import Attributes
from support.external_data import GRID, WRONG_GRID, X, cached_model, external_model
from support.models import grid_sample_model, loose, parsed
from support.paths import needs_python_ops

FEEDS, WRONG = {"X": X, "grid": GRID}, {"X": X, "grid": WRONG_GRID}
NODE = "GridSample node 'sample0'"
SENTENCE = rf"{NODE}: grid is of shape \(2, 4, 5, 2\), expected N = 1 first"
SPINNING = "session.intra_op.allow_spinning"
ENTRIES = (
    SPINNING,
    "session.model_external_initializers_file_folder_path",
    "session.set_denormal_as_zero",
    "mine",
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


def test_one_model_is_expected_a_path_bytes_or_a_proto(
    model: onnx.ModelProto, expected: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    for each in (path, str(path), model.SerializeToString(), model):
        for arguments in ({"path_or_bytes": each}, {"model": each}):
            np.testing.assert_array_equal(
                ogs.InferenceSession(**arguments).run(None, FEEDS)[0], expected
            )
    for found, models in (("neither", {}), ("both", {"path_or_bytes": b"", "model": b""})):
        with pytest.raises(
            TypeError, match=f"got {found} of path_or_bytes and model, expected one"
        ):
            ogs.InferenceSession(**models)
    for missing in (path.with_name("missing.onnx"), str(path.with_name("missing.onnx"))):
        with pytest.raises(FileNotFoundError, match=r"missing\.onnx"):
            ogs.InferenceSession(missing)


def test_runs_are_called_and_typed_as_the_parents() -> None:
    runs = [name for name in vars(ogs.InferenceSession) if name.startswith("run")]
    assert len(runs) == 5
    for name in runs:
        own, parents = (
            getattr(each, name) for each in (ogs.InferenceSession, onnxruntime.InferenceSession)
        )
        assert list(inspect.signature(own).parameters) == list(
            inspect.signature(parents).parameters
        )
        hints = typing.get_type_hints(own)
        assert {*inspect.signature(own).parameters, "return"} - set(hints) == {"self"}
        assert hints["return"] is not typing.Any


Feeds = dict[str, np.ndarray]
Options = onnxruntime.RunOptions | None
STOPPED = onnxruntime.RunOptions()
STOPPED.terminate = True


def by_run(session: ogs.InferenceSession, feeds: Feeds, options: Options = None) -> np.ndarray:
    return session.run(None, feeds, options)[0]


def by_ort_values(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()
    }
    return session.run_with_ort_values(None, values, options)[0].numpy()


def by_io_binding(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("Y0")
    session.run_with_iobinding(binding, options)
    return binding.copy_outputs_to_cpu()[0]


def by_ort_value_vector(
    session: ogs.InferenceSession, feeds: Feeds, options: Options = None
) -> np.ndarray:
    inputs, outputs = OrtValueVector(), OrtValueVector()
    for value in feeds.values():
        inputs.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(value)._ortvalue)
    devices = [onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()]
    session.run_with_ortvaluevector(
        options or onnxruntime.RunOptions(), list(feeds), inputs, ["Y0"], outputs, devices
    )
    return outputs[0].numpy()


#: onnxruntime's methods, and what calls each.
WAYS = {"run": by_run, "run_with_ort_values": by_ort_values, "run_with_iobinding": by_io_binding}
WAYS |= {"run_with_ortvaluevector": by_ort_value_vector}


def test_every_way_to_run(
    session: ogs.InferenceSession, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the parent's methods sees them, though late, and with all that a method knows of itself."""
    seen = []
    for name in WAYS:
        run = getattr(onnxruntime.InferenceSession, name)
        watched = functools.wraps(run)(
            lambda *args, run=run: seen.append(run.__name__) or run(*args)
        )
        monkeypatch.setattr(onnxruntime.InferenceSession, name, watched)
    for run in WAYS.values():
        np.testing.assert_array_equal(run(session, FEEDS), expected)
        with pytest.raises(ogs.GridSampleError, match=SENTENCE):
            run(session, WRONG)
        with pytest.raises(Exception, match="terminate"):
            run(session, FEEDS, STOPPED)
        np.testing.assert_array_equal(run(session, FEEDS), expected)
    assert seen == [name for name in WAYS for _ in range(4)]
    listed = {name: value.tolist() for name, value in FEEDS.items()}
    np.testing.assert_array_equal(session.run(None, listed)[0], expected)
    two = grid_sample_model(
        "float32", "float32", 2, [Attributes("nearest"), Attributes("linear", "zeros", False)]
    )
    np.testing.assert_array_equal(
        ogs.InferenceSession(two, nodes="all").run(["Y1"], FEEDS), [expected]
    )


def test_run_async(session: ogs.InferenceSession, expected: np.ndarray) -> None:
    answers: queue.Queue[tuple] = queue.Queue()
    for feeds, options, complaint in (
        (FEEDS, None, "^$"),
        (WRONG, None, SENTENCE),
        (FEEDS, STOPPED, "terminate"),
    ):
        session.run_async(None, feeds, lambda *said: answers.put(said), "mine", options)
        results, user_data, error = answers.get(timeout=30)
        assert user_data == "mine"
        assert re.search(complaint, error)
        if not error:
            np.testing.assert_array_equal(results[0], expected)
    with pytest.raises(ValueError, match="missing from input feed"):
        session.run_async(None, {}, lambda *_: None, "mine")
    assert (
        shutdown.asynchronous_runs() == 0
    )  # or the interpreter's end would wait for what is refused


@needs_python_ops
def test_plain_session_names_the_node(model: onnx.ModelProto, expected: np.ndarray) -> None:
    """And failures that nobody asks for are forgotten."""
    session = onnxruntime.InferenceSession(
        ogs.patch_model(model).SerializeToString(), ogs.register()
    )
    for _ in range(failures.MAX_STORED + 20):
        with pytest.raises(
            Exception, match=f"ort_gridsample rejected the input of {NODE}"
        ) as caught:
            session.run(None, WRONG)
        assert type(caught.value).__module__.startswith("onnxruntime")
    assert len(failures.store) <= failures.MAX_STORED
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_first_failed_node_is_the_one_named() -> None:
    model = parsed("""g (float[N,C,H,W] X, float[n,h,w,r] G) => (float[N,C,h,w] Y) {
            A = GridSample (X, G) B = Relu (A) Y = GridSample (B, G) }""")
    session = ogs.InferenceSession(loose(model))
    for shape in ((1, 4, 3), (1, 4, 5, 3), ()):
        with pytest.raises(ogs.GridSampleError, match=r"'\(A\)': grid is of shape"):
            session.run(None, {"X": X, "G": np.zeros(shape, np.float32)})


@pytest.mark.usefixtures("python_ops")
def test_an_exception_in_an_op(
    model: onnx.ModelProto, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ogs.InferenceSession(model, nodes="all")
    for broken, feeds, error, said in (
        ("ops.grid_sample", FEEDS, MemoryError, "^no room$"),
        # A failure that cannot be kept is one all the same.
        ("failures.record", WRONG, Exception, f"rejected the input of {NODE}"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"ort_gridsample.custom_ops.python_ops.{broken}",
                Mock(side_effect=MemoryError("no room")),
            )
            with pytest.raises(error, match=said):
                session.run(None, feeds)
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_register_may_be_called_again(model: onnx.ModelProto, expected: np.ndarray) -> None:
    """Also after others registered onnxruntime-extensions, and with the options of another session."""
    extensions = pytest.importorskip(
        "onnxruntime_extensions", reason="there is none for this Python"
    )
    options, of_others = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    of_others.register_custom_ops_library(extensions.get_library_path())
    assert ogs.register(ogs.register(options)) is options
    of_a_session = ogs.InferenceSession(model).get_session_options()
    for each in (options, options, of_others, of_a_session):
        np.testing.assert_array_equal(
            ogs.InferenceSession(model, ogs.register(each)).run(None, FEEDS)[0], expected
        )
    for each in (options, of_a_session):
        plain = onnxruntime.InferenceSession(ogs.patch_model(model).SerializeToString(), each)
        np.testing.assert_array_equal(plain.run(None, FEEDS)[0], expected)


def entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return None


def said(options: onnxruntime.SessionOptions) -> dict[str, object]:
    """All that can be read of ``options``."""
    names = [
        name
        for name in dir(options)
        if not (name.startswith("_") or callable(getattr(options, name)))
    ]
    assert {"enable_profiling", "intra_op_num_threads", "execution_mode"} <= set(names)
    return {name: getattr(options, name) for name in names} | {
        key: entry(options, key) for key in ENTRIES
    }


def test_options_come_back_as_they_were(
    model: onnx.ModelProto, tmp_path: Path, expected: np.ndarray, ops: str
) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("mine", "kept")
    before = said(options)
    for each in (model, external_model(tmp_path)):
        session = ogs.InferenceSession(each, options, ["CPUExecutionProvider"], nodes="all")
        assert said(options) == before
        own = said(session.get_session_options())
        assert {name for name in before if own[name] != before[name]} <= set(ENTRIES[:2])
        assert (own["mine"], own[SPINNING]) == ("kept", "0" if ops == "python" else None)
        session.run(None, {each.name: FEEDS[each.name] for each in session.get_inputs()})
        Path(session.end_profiling()).unlink()
    assert not list(tmp_path.glob("profile*")), "making a session's own options wrote a profile"
    session = ogs.InferenceSession(model, ogs.register(options), nodes="all")
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_the_options_given_are_taken_where_nothing_is_to_be_said(model: onnx.ModelProto) -> None:
    """A model without the operators is left alone, and a user's own word on spinning is the last."""
    options, relu = (
        onnxruntime.SessionOptions(),
        parsed("g (float[N] X) => (float[N] Y) { Y = Relu (X) }", 13),
    )
    assert ogs.patch_model(relu) == relu
    session = ogs.InferenceSession(relu, options)
    np.testing.assert_array_equal(session.run(None, {"X": X[0, 0, 0]})[0], X[0, 0, 0].clip(0))
    assert entry(options, SPINNING) is entry(session.get_session_options(), SPINNING) is None
    assert session._sess_options_initial is options
    for spinning in "01":
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(SPINNING, spinning)
        assert (
            entry(ogs.InferenceSession(model, options).get_session_options(), SPINNING) == spinning
        )


def test_what_was_added_to_the_options_is_copied(model: onnx.ModelProto) -> None:
    """Dimensions and initializers, of which options show nothing."""
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("N", 1)
    assert ogs.InferenceSession(model, options).get_inputs()[0].shape[0] == 1
    grid = onnxruntime.OrtValue.ortvalue_from_numpy(GRID)
    options.add_initializer("grid", grid)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros_like(GRID), "grid"))
    del model.graph.input[1]
    np.testing.assert_array_equal(
        ogs.InferenceSession(model, options).run(None, {"X": X})[0], ogs.grid_sample(X, GRID)
    )


@pytest.mark.parametrize("values", ["1", "1, 1, 1"])
def test_an_initializer_of_any_shape_may_be_added(values: str) -> None:
    length, options = len(values.split()), onnxruntime.SessionOptions()
    model = parsed(f"""g (float[1,1,4,5,6] X, float[1,2,3,4,3] flow) => (float[1,1,2,3,4] Y)
        <float[{length}] scale = {{{values}}}> {{ grid = Mul(flow, scale) Y = GridSample(X, grid) }}""")
    scale = np.array([0.1, 0.2, 0.3], np.float32)[:length]
    added = onnxruntime.OrtValue.ortvalue_from_numpy(scale)
    options.add_initializer("scale", added)
    rng = np.random.default_rng(0)
    volume, flow = (
        rng.random((1, 1, 4, 5, 6), np.float32),
        rng.uniform(-1, 1, (1, 2, 3, 4, 3)).astype(np.float32),
    )
    (answer,) = ogs.InferenceSession(model, options).run(None, {"X": volume, "flow": flow})
    np.testing.assert_allclose(answer, ogs.grid_sample(volume, flow * scale), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("python_ops")
def test_options_with_what_cannot_be_copied_are_taken_themselves(
    model: onnx.ModelProto, expected: np.ndarray
) -> None:
    """Libraries of others, which a model with other domains may need, and execution providers."""
    options, others = onnxruntime.SessionOptions(), deepcopy(model)
    others.opset_import.append(helper.make_opsetid("someone", 1))
    others.graph.node.append(helper.make_node("Theirs", ["X"], ["Z"], domain="someone"))
    with pytest.raises(Exception, match="Theirs"):
        ogs.InferenceSession(others, options, nodes="all")
    assert entry(options, SPINNING) == "0", "the options themselves, where their library would be"
    if hasattr(options, "add_provider"):  # else an older onnxruntime
        options = onnxruntime.SessionOptions()
        options.add_provider("CPUExecutionProvider", {})
        session = ogs.InferenceSession(model, options, nodes="all")
        assert session._sess_options_initial is options
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


def test_nodes_of_this_package_that_nobody_patched(ops: str) -> None:
    """They have one output and no attributes of the op's own."""
    head = '<ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]> g'
    sample = onnx.parser.parse_model(f"""{head} (float[N, C, H, W] X, float[N, h, w, 2] grid) => (float[N, C, h, w] Y)
        {{ Y = ort_gridsample.GridSample <mode = "cubic"> (X, grid) }}""")
    session = ogs.InferenceSession(sample)
    X, grid = np.random.default_rng(0).random((2, 3, 5, 6), "f"), GRID.repeat(2, axis=0)
    np.testing.assert_array_equal(
        session.run(None, {"X": X, "grid": grid})[0], ogs.grid_sample(X, grid, "cubic")
    )
    with pytest.raises(ogs.GridSampleError, match="grid is of shape"):
        session.run(None, {"X": X, "grid": grid[:1]})
    affine = onnx.parser.parse_model(f"""{head} (float[2, 2, 3] theta, int64[4] size) => (float[] Y)
        {{ Y = ort_gridsample.AffineGrid (theta, size) }}""")
    theta, size = np.ones((2, 2, 3), "f"), np.array([2, 1, 3, 4])
    (answer,) = ogs.InferenceSession(affine).run(None, {"theta": theta, "size": size})
    np.testing.assert_array_equal(answer, ogs.affine_grid(theta, size))


def test_providers_are_handed_on(model: onnx.ModelProto) -> None:
    with pytest.warns(
        UserWarning, match="'SomeonesExecutionProvider' is not in available provider names"
    ):
        ogs.InferenceSession(model, providers=["SomeonesExecutionProvider", "CPUExecutionProvider"])


def test_profiling_and_optimized_model_are_the_sessions_own(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ogs.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, FEEDS)
    assert Path(session.end_profiling()).read_text().count("sample0_kernel_time") == 1
    assert sorted(p.name.split("_")[0] for p in tmp_path.iterdir()) == ["optimized.onnx", "profile"]


@pytest.mark.parametrize("make_model", [external_model, cached_model])
def test_external_data_stays_where_it_is(
    make_model: Callable[[Path], Path],
    tmp_path: Path,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, options = make_model(tmp_path), onnxruntime.SessionOptions()
    loaded = onnxruntime.InferenceSession(ogs.patch_model(path).SerializeToString(), ogs.register())
    np.testing.assert_array_equal(loaded.run(None, {"X": X})[0], expected)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(path.parent.parent)
    if not faults.NO_EXTERNAL_FOLDER:
        monkeypatch.setattr(
            onnx, "load_external_data_for_model", None
        )  # nobody reads the weights into Python
    for each, how in ((path, None), (os.path.relpath(path), options), (path, options)):
        np.testing.assert_array_equal(
            ogs.InferenceSession(each, how).run(None, {"X": X})[0], expected
        )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("python_ops")
def test_threads_follow_the_options(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, op = [], "ort_gridsample.custom_ops.python_ops.ops.grid_sample"
    monkeypatch.setattr(op, lambda *_, num_threads, **__: seen.append(num_threads) or X)
    for threads in (1, 3):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        for each in (model, ogs.patch_model(model)):
            ogs.InferenceSession(each, options, nodes="all").run(None, FEEDS)
    ogs.InferenceSession(model, nodes="all").run(None, FEEDS)
    assert seen == [1, 1, 3, 3, None]


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize("patched_before", [False, True])
def test_what_the_nodes_need_is_prepared(
    patched_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("ort_gridsample.session.builder.load_core", lambda: sampler)
    monkeypatch.setattr(sampler, "prepare", lambda *what: asked.append(what))
    model = grid_sample_model("float16", "float64", 2, [Attributes("cubic", "zeros", False)] * 2)
    ogs.InferenceSession(ogs.patch_model(model) if patched_before else model, nodes="all")
    assert asked == [(np.dtype("float32"), np.dtype("float64"), "cubic")]


def run_pickled(pickled: bytes) -> np.ndarray:
    return pickle.loads(pickled).run(None, FEEDS)[0]


def test_pickled_to_another_process(
    model: onnx.ModelProto, expected: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry(SPINNING, "1")
    pickles = [
        pickle.dumps(ogs.InferenceSession(each, options, ["CPUExecutionProvider"]))
        for each in (path, model)
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for answer in pool.map(run_pickled, pickles):
            # Another number of threads may sum in another order.
            np.testing.assert_allclose(answer, expected, atol=1e-6)
    for each in pickles:
        again = pickle.loads(pickle.dumps(pickle.loads(each)))
        kind = "Python" if unavailable_reason() else "compiled"
        assert [placement.runs_on for placement in again.replaced] == [f"{kind} op"]
        restored = again.get_session_options()
        assert restored.intra_op_num_threads == 1
        assert entry(restored, "session.set_denormal_as_zero") == entry(restored, SPINNING) == "1"


def test_what_is_no_onnx_model_is_the_parents_affair(tmp_path: Path) -> None:
    (bad := tmp_path / "bad.onnx").write_bytes(b"no model")
    for model in (bad, b"no model", 5):
        with pytest.raises(Exception, match=r".") as native:
            onnxruntime.InferenceSession(model)
        with pytest.raises(type(native.value)):
            ogs.InferenceSession(model)


def test_a_function_that_serves_all_its_calls_stays_one() -> None:
    model = parsed("""g (float[N,C,H,W] X, float[N,h,w,2] G) => (float[N,C,h,w] Y) { Y = local.warp (X, G) }
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (C) { C = GridSample <mode = "cubic"> (A, B) }""")
    patched = onnx.load_from_string(
        builder.patch_for_session(model, builder.SessionArguments("all")).model
    )
    assert [function.name for function in patched.functions] == ["warp"]
    assert [node.op_type for node in patched.graph.node] == ["warp"]


def test_native_session_of_an_expanded_node_finds_external_data(tmp_path: Path) -> None:
    """The rewritten model is passed as bytes, without the path of its file."""
    model = parsed(
        """g (float[1,1,4,5] X, float[1,2,2,3] grid) => (float[1,1,2,3] Y) <float[1,1,4,5] B> {
            A = Add (X, B)
            Y = GridSampler2DTRT <interpolation_mode = 0, padding_mode = 0, align_corners = 1> (A, grid) }""",
        17,
    )
    B = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
    model.graph.initializer.append(onnx.numpy_helper.from_array(B, "B"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    feeds = {"X": np.ones_like(B), "grid": np.zeros((1, 2, 2, 3), np.float32)}
    session = ogs.InferenceSession(path, nodes="unsupported")
    assert not any(placement.ours for placement in session.replaced)
    np.testing.assert_allclose(session.run(None, feeds)[0], np.full((1, 1, 2, 3), 10.5), rtol=1e-6)
