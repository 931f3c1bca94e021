"""Test the compiled ops: outputs, errors, placement, memory, threads and forks."""

import itertools
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample import spec, versions
from ort_gridsample.custom_ops.compiled_ops import c_api, catalog, registry
from ort_gridsample.detection.find import records_of
from ort_gridsample.dialects.table import FUSED
from ort_gridsample.reference import sampler
from ort_gridsample.rewriting.targets.compiled_op import unsupported_reason
from ort_gridsample.system.memory import available
from support.cases import (
    Attributes,
    dtype_of,
    generator,
)
from support.compare import about, assert_identical, refusal
from support.fused_models import open_unfused, transformer, transformer_feeds
from support.models import affine_grid_model, grid_sample_model, loose, parsed
from support.parameters import with_slow
from support.paths import (
    needs_python_ops,
    open_compiled,
    open_native,
    quiet_options,
    run,
    running_on,
)
from support.processes import run_on_openers, run_program, start_program

UNAVAILABLE = registry.unavailable_reason()
pytestmark = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"no compiled ops: {UNAVAILABLE}")


#: Sizes of grids, some of them empty.
SIZES = [(2, 3, 4, 5), (2, 1, 3, 4, 5), (1, 1, 3, 5000), (1, 1, 300, 1), (2, 1, 0, 4), (0, 1, 2, 3)]
#: Sizes of grids that are written past the caches, and whether corners are aligned.
LARGE_SIZES = {(1, 1, 1451, 1453): False, (2, 1, 73, 101, 103): True}


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("axes", [2, 3])
@with_slow("theta_type", ["float32", "float16", "float64", "bfloat16"], ["float32", "float16"])
def test_compiled_affine_grid_is_identical_to_the_function(
    theta_type: str, axes: int, align_corners: bool
) -> None:
    from ort_gridsample.kernels.kernel_factories import MIN_BYTES_PAST_CACHES

    session = open_compiled(affine_grid_model(theta_type, axes, align_corners))
    dtype = dtype_of(theta_type)
    for size in (size for size in (*SIZES, *LARGE_SIZES) if len(size) == axes + 2):
        is_large = size in LARGE_SIZES
        if is_large and LARGE_SIZES[size] != align_corners:
            continue
        theta = generator("theta", axes).normal(size=(size[0], axes, axes + 1)).astype(dtype)
        (grid,) = run(session, theta.dtype, theta, np.array(size, np.int64))
        assert (grid.size * 4 >= MIN_BYTES_PAST_CACHES) == is_large
        with about(size):
            assert_identical(grid, ogs.affine_grid(theta, size, align_corners))


#: Shapes of X and grid that need many chunks, tiles and threads, in odd sizes.
LARGE = {
    "two axes": ((2, 3, 150, 131), (2, 211, 163, 2)),
    "many channels": ((1, 70, 31, 33), (1, 41, 37, 2)),
    "few positions of many channels": ((3, 129, 40, 40), (3, 5, 1, 2)),
    "one tile of very many channels": ((1, 8200, 8, 9), (1, 8, 8, 2)),
    "three axes": ((1, 5, 20, 21, 22), (1, 23, 24, 25, 3)),
    "one axis": ((2, 3, 5000), (2, 70001, 1)),
}
#: The types of X and grid -> how far sums may be off.
ROUNDINGS = {("float32", "float32"): 1e-3, ("float16", "float16"): 0.13, ("uint8", "float32"): 1}
#: Each shape and each mode with one pair of types; each pair of types is tried with each mode.
LARGE_CASES = [
    (name, mode, types)
    for (i, name), (j, mode) in itertools.product(enumerate(LARGE), enumerate(spec.MODES))
    for k, types in enumerate(ROUNDINGS)
    if (i + j) % 3 == k
]


@pytest.mark.parametrize(
    ("name", "mode", "types"), LARGE_CASES, ids=lambda v: "-".join(v) if isinstance(v, tuple) else v
)
def test_compiled_op_of_large_inputs_agrees_with_the_numpy_core(
    name: str, mode: str, types: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the work is divided. Threads copy X if there is enough of it for each of the CPUs."""
    X_shape, grid_shape = LARGE[name]
    rng = generator("large", LARGE[name])
    X = (rng.normal(size=X_shape) * 60).astype(types[0])
    grid = rng.uniform(-1.2, 1.2, grid_shape).astype(types[1])
    with monkeypatch.context() as patch:
        patch.setattr("ort_gridsample.functions.cores._core", sampler)
        expected = ogs.grid_sample(X, grid, mode, "reflection").astype(float)
    model = grid_sample_model(*types, X.ndim - 2, [Attributes(mode, "reflection")])
    for threads, cpus in ((1, 1), (3, 2), (3, 64)):
        monkeypatch.setattr(registry.compiled_ops()._op_context, "cpus", cpus)
        options = quiet_options()
        options.intra_op_num_threads = threads
        (Y,) = ogs.InferenceSession(model, options).run(None, {"X": X, "grid": grid})
        with about((threads, cpus)):
            rounding = 0 if mode == "nearest" else ROUNDINGS[types]
            np.testing.assert_allclose(Y.astype(float), expected, rtol=0, atol=rounding)


def test_compiled_affine_grid_of_any_number_of_channels_has_the_grid_of_the_function() -> None:
    """The grid has no channels, so that its size does not depend on their number."""
    theta = np.ones((1, 2, 3), np.float32)
    size = np.array([1, 1 << 60, 2, 2])
    session = open_compiled(affine_grid_model("float32", 2, False))
    (grid,) = session.run(None, {"theta": theta, "size": size})
    np.testing.assert_array_equal(grid, ogs.affine_grid(theta, size))


@pytest.fixture
def unlabelled() -> onnx.ModelProto:
    """A patched model whose node lacks the attribute of its label, and is named "by hand"."""
    model = loose(grid_sample_model("float32", "float32", 2, [Attributes()]))
    patched = ogs.patch_model(model, target="compiled")
    (node,) = patched.graph.node
    names = [attribute.name for attribute in node.attribute]
    assert names == ["mode", "padding_mode", "align_corners", "node"]
    del node.attribute[-1]
    node.name = "by hand"
    return patched


def test_run_of_a_node_without_a_label_raises_with_its_name(unlabelled: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(unlabelled.SerializeToString(), ogs.register())
    feeds = {"X": np.ones((1, 2, 3, 3), np.float32), "grid": np.zeros((1, 2, 2, 3), np.float32)}
    with pytest.raises(Exception, match="GridSample node 'by hand': grid is of shape"):
        session.run(None, feeds)


def test_session_of_a_node_without_a_label_raises_with_its_name(
    unlabelled: onnx.ModelProto,
) -> None:
    unlabelled.graph.node[0].attribute[0].s = b"bogus"
    with pytest.raises(Exception, match="GridSample node 'by hand': mode is 'bogus', expected"):
        onnxruntime.InferenceSession(unlabelled.SerializeToString(), ogs.register())


def test_status_of_a_message_with_a_lone_surrogate_has_it_escaped() -> None:
    """An exception instead would be lost in a function that onnxruntime calls: it means success."""
    ogs.register()
    api = registry.compiled_ops()._op_context.api
    status = c_api.create_status(api, "no file caf\udce9")
    with pytest.raises(RuntimeError, match=r"no file caf\\udce9"):
        c_api.check(api, status)


def create_in_extension_module(patched: bytes, options: onnxruntime.SessionOptions) -> object:
    extension_class = onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession
    session = extension_class(options, patched, False, False)
    session.initialize_session([], [], set())
    return session


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send a process signals")
@pytest.mark.parametrize("create", [onnxruntime.InferenceSession, create_in_extension_module])
def test_signal_while_a_kernel_is_created_is_handled_after_the_session_is_created(
    create: Callable[[bytes, onnxruntime.SessionOptions], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    create_kernel = registry._compiled
    steps = []

    def interrupt_and_create(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        steps.append("created")
        return create_kernel(*arguments)

    monkeypatch.setattr(registry, "_compiled", interrupt_and_create)
    # The ops of the process may have this kernel already.
    new_ops = registry.CompiledOps()
    monkeypatch.setattr(registry, "compiled_ops", lambda: new_ops)
    with pytest.raises(KeyboardInterrupt):
        create(patched, ogs.register(quiet_options()))
    assert steps == ["created"]


@pytest.mark.parametrize("name", ["the_node", "n" * 10_000])
def test_kernel_that_cannot_be_created_is_an_error_of_its_node(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    model.graph.node[0].name = name
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    failure = Mock(side_effect=MemoryError("too little"))
    monkeypatch.setattr(registry, "_compiled", failure)
    prefix = "" if len(name) > 1000 else f"node '{name}': "
    with pytest.raises(Exception, match=f"{prefix}MemoryError: too little"):
        onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


@pytest.mark.parametrize("name", ["the_node", "n" * 10_000])
def test_state_that_cannot_be_compiled_is_an_error_of_its_node(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grid_sample_model("float64", "float64", 2, [Attributes("cubic", "reflection")])
    model.graph.node[0].name = name
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    state_address = registry.state_address
    failures = iter([MemoryError("too little")])

    def fail_once(*arguments: Any) -> int:
        for failure in failures:
            raise failure
        return state_address(*arguments)

    compiled_ops = registry.CompiledOps()
    monkeypatch.setattr(registry, "compiled_ops", lambda: compiled_ops)
    monkeypatch.setattr(registry, "state_address", fail_once)
    prefix = "" if len(name) > 1000 else f"node '{name}': "
    with pytest.raises(Exception, match=f"{prefix}MemoryError: too little"):
        onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))
    onnxruntime.InferenceSession(patched, ogs.register(quiet_options()))


def test_description_of_an_op_that_fails_is_an_error_of_the_registration_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter([MemoryError] * 2)

    def describe(op: Any) -> int:
        for failure in failures:
            raise failure
        return int(op.n_inputs)

    monkeypatch.setitem(registry.DESCRIPTION_FUNCTIONS, "GetInputTypeCount", describe)
    ops = registry.CompiledOps()
    with pytest.raises(Exception, match="MemoryError"):
        ops.register(onnxruntime.SessionOptions())
    options = quiet_options()
    ops.register(options)
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    assert onnxruntime.InferenceSession(patched, options).get_outputs()


def test_ops_with_compiled_descriptions_are_not_described_by_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Python functions are called before, so that their results are kept."""
    describe = Mock()
    monkeypatch.setattr(registry.CompiledOps, "_describe", describe)
    registry.CompiledOps().register(onnxruntime.SessionOptions())
    assert describe.called
    describe.reset_mock()
    ops = registry.CompiledOps()
    ops.compile_descriptions()
    options = quiet_options()
    ops.register(options)
    assert not describe.called
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    assert onnxruntime.InferenceSession(patched, options).get_outputs()


def test_output_larger_than_the_address_space_is_refused() -> None:
    session = open_compiled(loose(grid_sample_model("float32", "float32", 1, [Attributes()])))
    X = np.zeros((1, 1 << 60, 0), np.float32)
    grid = np.zeros((1, 1 << 10, 1), np.float32)
    error = refusal(session.run, None, {"X": X, "grid": grid})
    assert "fewer bytes than an address can reach" in error.expected


def test_shape_of_the_output_is_inferred() -> None:
    model = parsed("""
        g (float[N, 3, H, W] X, float[N, h, 8, 2] grid) => (float[] Y) {
            Y = GridSample (X, grid) }""")
    for session in (open_compiled(model), open_native(model)):
        assert [output.shape for output in session.get_outputs()] == [["N", 3, "h", 8]]


def placement_of(
    X_type: str = "float32", model: onnx.ModelProto | None = None, **kwargs: object
) -> tuple[str, str]:
    """Return what the only node of a model runs on, and why."""
    model = model or grid_sample_model(X_type, "float32", 2, [Attributes()])
    session = ogs.InferenceSession(model, **kwargs)
    (placement,) = session.placements
    assert session._runs_python_ops == (placement.runs_on == "Python op")
    unpickled = pickle.loads(pickle.dumps(session))
    assert unpickled.placements[0].runs_on == placement.runs_on
    return placement.runs_on, placement.reason


def test_cubic_in_nine_axes_is_unsupported() -> None:
    models = (grid_sample_model("float32", "float32", r, [Attributes("cubic")]) for r in (8, 9))
    reasons = [unsupported_reason(record) for model in models for record in records_of(model)]
    assert reasons == ["", "cubic in 9 spatial axes has more than 65536 taps"]


def test_op_types_of_compiled_ops_are_no_standard_operators() -> None:
    """Providers that compare only a node's type, as OpenVINO's does in a Scan, would claim them."""
    for op in catalog.OPS:
        assert not onnx.defs.has(op.op_type)


ASKED = "Python ops were asked for"


def nearest_model(X_type: str) -> onnx.ModelProto:
    return grid_sample_model(X_type, "float32", 2, [Attributes("nearest")])


@needs_python_ops
def test_strings_run_on_the_python_op() -> None:
    model = nearest_model("str")
    assert placement_of(model=model) == ("Python op", "X is of type str")
    patched = ogs.patch_model(model, target="compiled")
    assert [node.op_type for node in patched.graph.node] == ["GridSample"]


@needs_python_ops
def test_nodes_run_on_compiled_ops_by_default() -> None:
    assert ogs.get_ops() == "compiled"
    assert placement_of() == ("compiled op", "")
    assert placement_of(nodes="all") == ("compiled op", "")
    assert placement_of("uint8", nodes="unsupported") == ("compiled op", "")
    assert placement_of(nodes=lambda record: record.native)[0] == "compiled op"
    assert placement_of(model=ogs.patch_model(nearest_model("float16")))[0] == "compiled op"


def test_nodes_that_are_not_selected_run_in_onnxruntime() -> None:
    supported = ("onnxruntime", "onnxruntime runs it, and nodes is 'unsupported'")
    assert placement_of(nodes="unsupported") == supported
    declined = ("onnxruntime", "not selected by the function passed as nodes")
    assert placement_of("float16", nodes=lambda record: False) == declined


@needs_python_ops
def test_nodes_run_on_python_ops_if_those_are_set() -> None:
    with running_on("python"):
        assert ogs.get_ops() == "python"
        assert placement_of() == ("onnxruntime", ASKED)
        assert placement_of("uint8") == ("Python op", ASKED)
        assert placement_of(nodes="all") == ("Python op", ASKED)
        patched = ogs.patch_model(nearest_model("float16"), target="compiled")
        assert placement_of(model=patched)[0] == "Python op"


@needs_python_ops
def test_get_ops_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GRIDSAMPLE_OPS", "python")
    assert ogs.get_ops() == "python"
    monkeypatch.setenv("ORT_GRIDSAMPLE_OPS", "bogus")
    with pytest.raises(ValueError, match="ORT_GRIDSAMPLE_OPS is 'bogus', expected one of 'auto'"):
        ogs.get_ops()


def test_set_ops_refuses_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="set_ops: name is 'jit'"):
        ogs.set_ops("jit")  # type: ignore[arg-type]


def test_session_refuses_an_unknown_name_of_nodes() -> None:
    error = refusal(placement_of, nodes="some")
    assert (error.argument, error.found) == ("nodes", "'some'")


@needs_python_ops
def test_nodes_run_on_python_ops_if_compiled_ops_are_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "unavailable_reason", lambda: "it is Tuesday")
    assert placement_of("uint8") == ("Python op", "it is Tuesday")
    with pytest.raises(ImportError, match="compiled ops are unavailable: it is Tuesday"):
        ogs.set_ops("compiled")
    assert ogs.get_ops() == "python"


@needs_python_ops
@pytest.mark.parametrize(("nodes", "runs_on"), [(None, "onnxruntime"), ("all", "Python op")])
def test_node_that_cannot_be_compiled_runs_elsewhere(
    nodes: str | None,
    runs_on: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registry, "prepare", Mock(side_effect=RuntimeError("no compiler today")))
    assert placement_of(nodes=nodes) == (runs_on, "compiling it failed: no compiler today")
    failure = "GridSample node 'sample0': compiling it failed: no compiler today"
    assert caplog.messages[-1] == f"{failure}; it runs on: {runs_on}"
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    feeds = {"X": np.ones((1, 1, 2, 2), np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)}
    (Y,) = ogs.InferenceSession(model, nodes=nodes).run(None, feeds)
    assert Y.shape == (1, 1, 2, 2)


@needs_python_ops
def test_affine_grid_that_cannot_be_compiled_runs_on_the_python_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "prepare", Mock(side_effect=RuntimeError("no compiler today")))
    model = affine_grid_model("float32", 2, False)
    assert placement_of(model=model, nodes="all")[0] == "Python op"


def test_session_without_the_fused_op_runs_single_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_state = registry.state_address

    def fail_for_fused(op: catalog.Op, types: tuple[str, ...], index: int) -> int:
        if op.name == FUSED:
            raise RuntimeError("no compiler today")
        return compile_state(op, types, index)

    monkeypatch.setattr(registry, "state_address", fail_for_fused)
    session = ogs.InferenceSession(transformer(attributes=Attributes()))
    assert [placement.runs_on for placement in session.placements] == ["compiled op", "compiled op"]
    feeds = transformer_feeds()
    expected = ogs.grid_sample(feeds["X"], ogs.affine_grid(feeds["theta"], feeds["size"]))
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)


def test_oldest_release_is_that_of_the_c_interface() -> None:
    assert versions.OLDEST["onnxruntime"] == f"1.{c_api.VERSION}"


def test_shapes_are_read_without_the_function_of_newer_releases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of X, grid, theta, size and the fused op's inputs. Other tests use the function."""
    monkeypatch.setattr(registry.compiled_ops()._op_context, "get_shape_reference", 0)
    model = transformer(attributes=Attributes())
    feeds = transformer_feeds()
    expected = ogs.grid_sample(feeds["X"], ogs.affine_grid(feeds["theta"], feeds["size"]))
    for session in (ogs.InferenceSession(model, quiet_options()), open_unfused(model)):
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)
        with pytest.raises(Exception, match="size is"):
            session.run(None, feeds | {"size": np.array([3, 3, 4, 6])})


def test_compiled_op_runs_while_another_thread_holds_pythons_lock() -> None:
    (line,) = run_program("run_without_lock.py")
    is_under_way, milliseconds_left, smallest = line.split()
    assert is_under_way == "True"
    assert int(milliseconds_left) > 0
    assert smallest == "3.0"


def test_compiled_sessions_survive_a_fork_and_the_end_of_the_interpreter() -> None:
    with start_program("fork_compiled_sessions.py", measures_coverage=False) as process:
        out, err = process.communicate(timeout=120)
    assert err == ""
    assert process.returncode == 0
    assert out.splitlines() == ["(1, 2, 64, 64)"] * 3


#: Memory in MiB that a compiled op may use beyond onnxruntime: its scratch, and the allocators'.
SCRATCH_MIB = 64
ALLOCATORS_MIB = 16


@pytest.mark.skipif(
    (available() or 1 << 40) < 8 << 30,
    reason="X and Y take a GiB each, in one process after another",
)
@pytest.mark.parametrize(
    ("channels", "length"), [(12, 512), pytest.param(64, 2048, marks=pytest.mark.slow)]
)
def test_large_run_needs_only_its_scratch_beyond_onnxruntimes_memory(
    channels: int, length: int
) -> None:
    openers = ["open_compiled", "open_native"]
    results = run_on_openers("large_run_memory.py", str(channels), str(length), openers=openers)
    compiled_mib, is_right = results["open_compiled"]
    native_mib, native_is_right = results["open_native"]
    assert is_right
    assert native_is_right
    assert compiled_mib <= native_mib + SCRATCH_MIB + ALLOCATORS_MIB


@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_dropped_sessions_leak_no_memory(count: int) -> None:
    (growth_mib,) = run_program("session_leaks.py", str(count), timeout=1700)
    assert float(growth_mib) < 8
