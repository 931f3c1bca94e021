"""Damaged and hostile models: an error with a message or a right output, and no partial files."""

import cProfile
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.graph.files import atomic_write, translate_errors
from ort_gridsample.rewriting.patch import rewrite_selected_nodes
from ort_gridsample.rewriting.targets.python_op import PythonOpTarget
from support import faults
from support.compare import refusal
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, X, single_node_model
from support.paths import running_on
from support.processes import run_program


@pytest.mark.parametrize(("seed", "count"), [(0, 10), pytest.param(1, 300, marks=pytest.mark.slow)])
def test_damaged_model_is_read_or_raises_an_error_with_a_message(seed: int, count: int) -> None:
    *_, results = run_program("damaged_models.py", str(seed), str(count))
    assert set(json.loads(results)) == {"returned", "allowed error"}, results


def value_info(name: str, elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, None)


def model_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    inputs = [value_info("X"), value_info("G"), value_info("c", TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "g", inputs, [value_info("Y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def sample_node(X: str, Y: str, name: str, grid: str = "G") -> onnx.NodeProto:
    return helper.make_node("GridSample", [X, grid], [Y], name)


#: Nodes, and a part of the error's message.
INVALID = {
    "cycle": (
        [sample_node("Z", "Y", "a"), helper.make_node("Relu", ["Y"], ["Z"])],
        "acyclic",
    ),
    "undefined input": (
        [sample_node("nowhere", "Y", "a")],
        "'nowhere' is not a graph input",
    ),
    "no grid": ([sample_node("X", "Y", "a", "")], "^GridSample node 'a': grid is missing"),
    "two outputs of a name": (
        [sample_node("X", "Y", "a"), sample_node("X", "Y", "b")],
        "Duplicate definition of name",
    ),
    "two nodes of a name": (
        [sample_node("X", "Z", "a"), sample_node("Z", "Y", "a")],
        "two nodes with same node name",
    ),
    "If without branches": ([helper.make_node("If", ["c"], ["Y"])], "Required attribute"),
}


@pytest.mark.parametrize(("nodes", "message"), INVALID.values(), ids=INVALID)
def test_session_of_an_invalid_model_is_refused(nodes: list[onnx.NodeProto], message: str) -> None:
    with pytest.raises(Exception, match=message):
        ogs.InferenceSession(model_of(*nodes))


def test_model_with_names_that_a_patch_writes_runs() -> None:
    guard = (
        "ort_gridsample rejected the input of GridSample node 'a' "
        "(ort_gridsample.InferenceSession says why)"
    )
    status = helper.make_node("Identity", ["X"], ["Y_status"], guard)
    unread = helper.make_node("Identity", ["Y_status"], ["Y_unguarded"], "idx=3 must be within")
    sample = sample_node("Y_unguarded", "Y", "a")
    session = ogs.InferenceSession(model_of(status, unread, sample))
    np.testing.assert_allclose(session.run(None, FEEDS)[0], ogs.grid_sample(X, GRID), rtol=1e-6)
    error = refusal(session.run, None, {**FEEDS, "G": GRID[:1]})
    assert error.where == "GridSample node 'a'"
    assert error.argument == "grid"
    assert error.found.startswith("of shape")


def count_calls_of_patch(node_count: int) -> int:
    """Return the number of Python calls that it takes to patch a chain of nodes."""
    values = ["X", *(f"Y{i}" for i in range(1, node_count)), "Y"]
    nodes = [sample_node(X, Y, f"n{i}") for i, (X, Y) in enumerate(pairwise(values))]
    model = model_of(*nodes)
    profile = cProfile.Profile()
    profile.runcall(rewrite_selected_nodes, model, PythonOpTarget())
    domains = [node.domain for node in model.graph.node]
    assert domains.count("ort_gridsample") == node_count
    return sum(entry.callcount for entry in profile.getstats())


def test_work_of_a_patch_is_linear_in_the_nodes() -> None:
    assert count_calls_of_patch(200) < 2.5 * count_calls_of_patch(100)


def test_deeply_nested_ifs_run() -> None:
    levels = 10 if faults.SLOW_NESTED_IFS else 25
    nodes = "T0 = GridSample (X, G)"
    for i in range(levels):
        nodes = f"""T{i + 1} = If (c) <
            then_branch = t{i} () => (float[N,C,h,w] T{i}) {{ {nodes} }},
            else_branch = e{i} () => (float[N,C,h,w] E{i}) {{ E{i} = Identity (X) }}>"""
    text = f"{HEADER} {SIGNATURE} {{ {nodes} Y = Identity (T{levels}) }}"
    session = ogs.InferenceSession(parser.parse_model(text))
    np.testing.assert_allclose(session.run(None, FEEDS)[0], ogs.grid_sample(X, GRID), rtol=1e-6)


def write_nested_ifs(path: Path, levels: int) -> None:
    """Write a model of nested Ifs byte by byte, because protobuf does not serialize so many."""

    def field(number: int, payload: bytes) -> bytes:
        tag = bytes([number << 3 | 2])
        with_tag_of_s = onnx.AttributeProto(s=payload).SerializeToString()
        return tag + with_tag_of_s[1:]

    node = sample_node("X", "T", "deep").SerializeToString()
    for _ in range(levels):
        graph = field(1, node) + field(2, b"b") + field(12, value_info("T").SerializeToString())
        branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        node = field(1, b"c") + field(2, b"T") + field(4, b"If") + field(5, branch)
    model = model_of()
    model.graph.ClearField("node")
    path.write_bytes(model.SerializeToString() + field(7, field(1, node)))


@pytest.mark.parametrize("levels", [200, 5000])
@pytest.mark.parametrize("function", [ogs.inspect_model, ogs.patch_model])
def test_model_nested_beyond_the_limit_of_protobuf_is_refused(
    function: object, levels: int, tmp_path: Path
) -> None:
    path = tmp_path / "deep.onnx"
    write_nested_ifs(path, levels)
    error = refusal(function, path)
    assert error.where == str(path)
    assert error.argument == "the file"
    assert error.found.startswith("not readable as protobuf (")
    assert error.expected == "an ONNX model"


@pytest.mark.parametrize("levels", [200, 5000])
def test_session_of_a_model_nested_beyond_the_limit_of_protobuf_is_refused(
    levels: int, tmp_path: Path
) -> None:
    path = tmp_path / "deep.onnx"
    write_nested_ifs(path, levels)
    with pytest.raises(Exception, match=r"(?i)protobuf"):
        ogs.InferenceSession(path)


def test_command_for_a_model_nested_beyond_the_limit_of_protobuf_writes_no_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep.onnx"
    write_nested_ifs(path, 5000)
    assert main(["patch", str(path), str(tmp_path / "out.onnx")]) != 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(
    params=["../secret.bin", "/etc/hostname", "a/../../secret.bin", "link.bin", "no\0name"]
)
def outside_location(request: pytest.FixtureRequest) -> str:
    """A location of external data outside the model's folder."""
    return request.param


@pytest.fixture
def outside_model(outside_location: str, tmp_path: Path) -> Path:
    """The path of a model with external data outside its folder."""
    folder = tmp_path / "models"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(b"\1" * 4096)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    weight = TensorProto(
        name="W", data_type=TensorProto.FLOAT, dims=[2, 4, 5, 2], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=outside_location)
    model = model_of(sample_node("X", "Y", "a", "W"))
    model.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("ops", ["auto", "python"])  # a session on Python ops does not patch it
def test_external_data_outside_the_folder_is_not_read(
    ops: str, outside_model: Path, outside_location: str
) -> None:
    assert [record.name for record in ogs.inspect_model(outside_model)] == ["a"]
    with running_on(ops):
        errors = [refusal(ogs.patch_model, outside_model)]
        errors.append(refusal(ogs.InferenceSession, outside_model))
    for error in errors:
        assert (error.where, error.argument) == (str(outside_model), "external data")
        assert error.found == f"at {outside_location!r}"
        assert error.expected == "a file in the model's folder"


def test_command_for_external_data_outside_the_folder_writes_no_file(
    outside_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "patched"
    folder.mkdir()
    assert main(["patch", str(outside_model), str(folder / "out.onnx")]) != 0
    assert not list(folder.iterdir())


def test_atomic_write_has_the_mode_of_the_mask_without_setting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads write files with the mask at the same time."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", None)
            with atomic_write(tmp_path / "model.onnx") as temporary:
                temporary.write_bytes(b"whole")
        assert (tmp_path / "model.onnx").stat().st_mode & 0o777 == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_atomic_write_of_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"before")
    file.chmod(0o600)
    with atomic_write(file) as temporary:
        temporary.write_bytes(b"after")
    assert file.stat().st_mode & 0o777 == 0o600


def test_atomic_write_of_the_longest_name_writes_the_file(tmp_path: Path) -> None:
    file = tmp_path / f"{'m' * 250}.onnx"
    with atomic_write(file) as temporary:
        temporary.write_bytes(b"whole")
    assert file.read_bytes() == b"whole"


def test_atomic_write_to_a_link_writes_the_file_that_it_links_to(tmp_path: Path) -> None:
    """So do numpy.save and onnx.save."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "model.onnx"
    file.write_bytes(b"before")
    link = tmp_path / "link.onnx"
    link.symlink_to(file)
    with atomic_write(link) as temporary:
        temporary.write_bytes(b"after")
    assert link.is_symlink()
    assert file.read_bytes() == b"after"


def test_atomic_write_raises_the_error_of_its_body_if_the_file_is_gone(tmp_path: Path) -> None:
    def fail_without_file() -> None:
        with atomic_write(tmp_path / "model.onnx") as temporary:
            temporary.unlink()
            raise ValueError("body")

    with pytest.raises(ValueError, match="body"):
        fail_without_file()


def test_error_in_an_invalid_model_tells_what_is_invalid() -> None:
    model = single_node_model()
    model.graph.node[0].input[0] = "missing"
    sentence = r"the model is not valid \(.*missing.*\), expected an ONNX model"
    with pytest.raises(ogs.GridSampleError, match=sentence), translate_errors(model):
        raise KeyError("anything")


@pytest.mark.parametrize("error_type", [TypeError, IndexError, ValueError])
def test_error_in_an_invalid_model_is_named_with_what_is_invalid(
    error_type: type[Exception],
) -> None:
    """It may come from a fault of this package that has nothing to do with the model's."""
    model = single_node_model()
    model.graph.node[0].input[0] = "missing"
    error = refusal(_raise_in, model, error_type("no number"))
    assert "missing" in error.found
    assert error.found.endswith(f"; reading it raised {error_type.__name__}: no number)")


def _raise_in(model: onnx.ModelProto, error: Exception) -> None:
    with translate_errors(model):
        raise error


def external_tensor(name: str, location: str) -> TensorProto:
    """Return a tensor with external data, without a location if ``location`` is empty."""
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    if location:
        tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.mark.parametrize("location", ["", "missing.bin"])
@pytest.mark.parametrize("place", ["initializer", "sparse initializer", "attribute", "body"])
def test_error_in_a_valid_model_with_external_data_is_not_translated(
    place: str, location: str
) -> None:
    """The weights of a model may be in another folder, or in memory."""
    model = single_node_model()
    tensor = external_tensor("W", location)
    constant = helper.make_node("Constant", [], ["W"], value=tensor)
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "sparse initializer":
        indices = helper.make_tensor("W_indices", TensorProto.INT64, [2], [0, 1])
        sparse = helper.make_sparse_tensor(tensor, indices, [4])
        model.graph.sparse_initializer.append(sparse)
    elif place == "attribute":
        model.graph.node.append(constant)
    else:
        body = helper.make_graph([], "body", [], [value_info("W")], [tensor])
        choice = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 9, [], [1]))
        branches = helper.make_node("If", ["c"], ["V"], then_branch=body, else_branch=body)
        model.graph.node.extend([choice, branches])
    with pytest.raises(IndexError):
        _raise_in(model, IndexError("anything"))


def test_error_in_a_valid_model_is_not_translated() -> None:
    with pytest.raises(KeyError), translate_errors(single_node_model()):
        raise KeyError("anything")


def _error_for_decoding() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize("apply", [ogs.patch_model, ogs.InferenceSession])
@pytest.mark.parametrize("error", [_error_for_decoding(), RecursionError("too deep")], ids=repr)
def test_error_of_the_selection_is_not_translated(
    error: Exception, apply: Callable[..., object]
) -> None:
    def select(record: ogs.NodeRecord) -> bool:
        raise error

    with pytest.raises(type(error)) as caught:
        apply(single_node_model(), nodes=select)
    assert caught.value is error


def test_error_in_a_model_too_large_for_the_checker_is_not_translated() -> None:
    model = single_node_model()
    model.graph.initializer.add(name="W", data_type=TensorProto.FLOAT, dims=[2**30])
    with pytest.raises(KeyError), translate_errors(model):
        raise KeyError("anything")
