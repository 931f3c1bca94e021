"""Damaged and hostile models: a sentence or a right answer, and a file that is whole or not there."""

import cProfile
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.graph.files import atomic_write, translate_errors
from ort_gridsample.rewriting.patch import patch_in_place
from ort_gridsample.rewriting.targets.python_op import PythonOp
from support import faults
from support.compare import refusal
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, X, one_node
from support.paths import running_on
from support.processes import run

#: Bits flipped or bytes cut off, in a process that may address 8 GiB; what comes is a sentence of one of these kinds.
DAMAGED = """
import json, random, resource, tempfile, warnings
from collections import Counter
from pathlib import Path
import onnx
from onnx import parser
import faults, test_patch
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
onnxruntime.set_default_logger_severity(4)
rng, models = random.Random({seed}), [parser.parse_model(m).SerializeToString() for m in MODELS.values()]
path = Path(tempfile.mkdtemp()) / "damaged.onnx"
ends = Counter()
def attempt(function, *arguments):
    try:
        function(*arguments)
        ends["right"] += 1
    except ogs.GridSampleError:
        ends["sentence"] += 1
    except Exception as error:
        # What is no text, onnxruntime's own session cannot describe, with or without this package.
        theirs = type(error).__module__.startswith("onnxruntime") or isinstance(error, UnicodeDecodeError)
        known = theirs and function is ogs.InferenceSession and (str(error) or faults.NO_WORDS)
        ends["sentence" if known else f"{{function.__name__}}: {{type(error).__name__}}: {{error}}"] += 1
for _ in range({count}):
    data = bytearray(rng.choice(models))
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)):]
    for _ in range(rng.randrange(4) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    for function in (ogs.inspect_model, ogs.patch_model, ogs.InferenceSession):
        attempt(function, path)
print(json.dumps(ends))
"""


@pytest.mark.parametrize(("seed", "count"), [(0, 30), pytest.param(1, 300, marks=pytest.mark.slow)])
def test_damaged_files_are_answered_in_words(seed: int, count: int) -> None:
    *_, ends = run(DAMAGED.format(seed=seed, count=count), "open_session")
    assert set(json.loads(ends)) == {"right", "sentence"}, ends


def value(name: str, elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, None)


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [value("X"), value("G"), value("c", TensorProto.BOOL)], [value("Y")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def sample(X: str, Y: str, name: str, grid: str = "G") -> onnx.NodeProto:
    return helper.make_node("GridSample", [X, grid], [Y], name)


INVALID = {
    "acyclic": [sample("Z", "Y", "a"), helper.make_node("Relu", ["Y"], ["Z"])],
    "'nowhere' is not a graph input": [sample("nowhere", "Y", "a")],
    "^GridSample node 'a': grid is missing": [sample("X", "Y", "a", "")],
    "Duplicate definition of name": [sample("X", "Y", "a"), sample("X", "Y", "b")],
    "two nodes with same node name": [sample("X", "Z", "a"), sample("Z", "Y", "a")],
    "Required attribute": [helper.make_node("If", ["c"], ["Y"])],
}


@pytest.mark.parametrize("sentence", INVALID)
def test_invalid_models_are_refused_in_words(sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        ogs.InferenceSession(model(*INVALID[sentence]))


def test_names_like_those_of_the_patch_are_left_to_the_model() -> None:
    guard = "ort_gridsample rejected the input of GridSample node 'a' (ort_gridsample.InferenceSession says why)"
    status = helper.make_node("Identity", ["X"], ["Y_status"], guard)
    unread = helper.make_node("Identity", ["Y_status"], ["Y_unguarded"], "idx=3 must be within")
    session = ogs.InferenceSession(model(status, unread, sample("Y_unguarded", "Y", "a")))
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], ogs.grid_sample(X, GRID))
    assert "'a': grid is of shape" in str(refusal(session.run, None, {**FEEDS, "G": GRID[:1]}))


def calls_for(count: int) -> int:
    """How many Python calls it takes to patch a model of ``count`` nodes in a row."""
    chain = [
        sample(f"Y{i}" if i else "X", f"Y{i + 1}" if i + 1 < count else "Y", f"n{i}")
        for i in range(count)
    ]
    many, profile = model(*chain), cProfile.Profile()
    profile.runcall(patch_in_place, many, PythonOp())
    assert len([n for n in many.graph.node if n.domain == "ort_gridsample"]) == count
    return sum(entry.callcount for entry in profile.getstats())


def test_the_work_of_a_patch_grows_with_the_nodes_only() -> None:
    assert calls_for(400) < 2.5 * calls_for(200)


def test_deeply_nested_ifs_are_answered() -> None:
    inner, levels = "T0 = GridSample (X, G)", 10 if faults.SLOW_NESTED_IFS else 25
    for i in range(levels):
        other = f"else_branch = e{i} () => (float[N,C,h,w] E{i}) {{ E{i} = Identity (X) }}"
        inner = f"T{i + 1} = If (c) <then_branch = t{i} () => (float[N,C,h,w] T{i}) {{ {inner} }}, {other}>"
    session = ogs.InferenceSession(
        parser.parse_model(f"{HEADER} {SIGNATURE} {{ {inner} Y = Identity (T{levels}) }}")
    )
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], ogs.grid_sample(X, GRID))


def deep_file(folder: Path, levels: int) -> Path:
    """A model of nested Ifs put together byte by byte, as protobuf itself does not make one so deep."""

    def field(number: int, payload: bytes) -> bytes:
        return (
            bytes([number << 3 | 2]) + onnx.AttributeProto(s=payload).SerializeToString()[1:]
        )  # without its tag

    node = sample("X", "T", "deep").SerializeToString()
    for _ in range(levels):
        graph = field(1, node) + field(2, b"b") + field(12, value("T").SerializeToString())
        branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        node = field(1, b"c") + field(2, b"T") + field(4, b"If") + field(5, branch)
    shell = model()
    shell.graph.ClearField("node")
    path = folder / "deep.onnx"
    path.write_bytes(shell.SerializeToString() + field(7, field(1, node)))
    return path


@pytest.mark.parametrize("levels", [200, 5000])
def test_ifs_nested_beyond_protobufs_limit_are_refused(tmp_path: Path, levels: int) -> None:
    path = deep_file(tmp_path, levels)
    for error in (refusal(ogs.inspect_model, path), refusal(ogs.patch_model, path)):
        assert str(error).startswith(f"{path}: the file is not readable as protobuf (")
        assert error.expected == "an ONNX model"
    with pytest.raises(Exception, match=r"(?i)protobuf"):
        ogs.InferenceSession(path)
    assert main(["patch", str(path), str(tmp_path / "out.onnx")]) != 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "a/../../secret.bin", "link.bin", "no\0name"]
)
def test_external_data_outside_the_folder_is_not_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\1" * 4096)
    folder, target = tmp_path / "models", tmp_path / "patched"
    (folder / "a").mkdir(parents=True)
    target.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    broken = model(sample("X", "Y", "a", "W"))
    weight = TensorProto(
        name="W", data_type=TensorProto.FLOAT, dims=[2, 4, 5, 2], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=location)
    broken.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(broken.SerializeToString())
    assert [record.name for record in ogs.inspect_model(path)] == ["a"]
    said = f"{path}: external data is at {location!r}, expected a file in the model's folder"
    for ops in ("auto", "python"):  # of which the latter patch nothing here
        with running_on(ops):
            assert (
                str(refusal(ogs.patch_model, path))
                == str(refusal(ogs.InferenceSession, path))
                == said
            )
    assert main(["patch", str(path), str(target / "out.onnx")]) != 0
    assert not list(target.iterdir())


def test_a_file_is_as_public_as_others_and_the_mask_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is not touched even for a moment: other threads write files as well."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", None)
            with atomic_write(tmp_path / "model.onnx") as beside:
                beside.write_bytes(b"whole")
        assert (tmp_path / "model.onnx").stat().st_mode & 0o777 == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)

    with pytest.raises(ValueError, match="None"), atomic_write(tmp_path / "model.onnx") as beside:
        raise ValueError(beside.unlink())


def test_an_error_in_an_invalid_model_says_what_is_invalid() -> None:
    invalid = one_node()
    invalid.graph.node[0].input[0] = "missing"
    sentence = r"the model is not valid \(.*missing.*\), expected an ONNX model"
    with pytest.raises(ogs.GridSampleError, match=sentence), translate_errors(invalid):
        raise KeyError("anything")
    with pytest.raises(KeyError), translate_errors(one_node()):
        raise KeyError("anything")
