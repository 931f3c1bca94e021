"""GridSample and AffineGrid unrolled to basic operators: found where they are what they seem, and nowhere else."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import cycle, groupby, product
from unittest.mock import MagicMock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from conftest import with_sweep
from ort_gridsample.detection import find, trials
from ort_gridsample.detection.decomposed import Search
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import Value
from ort_gridsample.detection.trials import SIZES, possible_shapes
from ort_gridsample.graph.scope import Names, opset_of, scopes
from ort_gridsample.graph.use_def import UseDef, unread_nodes
from ort_gridsample.inference import types
from ort_gridsample.session import native
from support import faults
from support.cases import ATTRIBUTES, Attributes
from support.decomposed_models import MODELS, SAMPLED, load
from support.fused_models import readers
from support.models import affine_grid_model, function_of, grid_sample_model, parsed
from support.paths import Open, open_compiled, open_native, open_patched_file, open_session

#: What exporters leave of a part that is none, or that cannot be known to be one.
NOT_FOUND = {
    "discrete/nearest-border-0-static-dynamo": "it rounds half a pixel further on",
    "attention/bilinear-zeros-0-dynamic-dynamo": "nothing says that its X and grid are of the same batch times heads",
}
if faults.FEW_SHAPES:
    NOT_FOUND["attention/bilinear-zeros-0-static-torchscript"] = (
        "onnxruntime does not infer its grid's shape yet"
    )
DYNAMIC = "decomposed/bilinear-border-1-dynamic-dynamo"
#: Three sessions that do with the found parts what they do with nodes.
SESSIONS = (open_session, open_compiled, ogs.InferenceSession)


def said(name: str) -> list[tuple[object, ...]]:
    form, _, rest = name.partition("/")
    if name in NOT_FOUND:
        return []
    if form == "affine_grid":
        return [("AffineGrid", None, None, int(rest.split("-")[1]))]
    mode, padding, align = rest.split("-")[:3]
    return [("GridSample", ogs.spec.mode_of(mode), padding, int(align))] * (
        2 if form == "attention" else 1
    )


def found(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    records = [record for record in ogs.inspect_model(model) if record.unrolled]
    return [(r.operator, r.mode, r.padding_mode, r.align_corners) for r in records]


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for its inputs, of other sizes than it was traced with where they are dynamic; a grid goes far outside."""
    generator = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [
            d.dim_value or sizes.setdefault(d.dim_param, 3 + (5 * len(sizes)) % 7) for d in dims
        ]
        feeds[value.name] = generator.uniform(-1, 1, shape).astype(np.float32)
    if "b" in feeds:
        feeds["b"] *= generator.choice([1, 1, 1.7, 30], feeds["b"].shape).astype(np.float32)
        if (
            len(feeds["b"]) != len(feeds["a"])
            and model.graph.input[1].type.tensor_type.shape.dim[0].dim_param
        ):
            feeds["b"] = np.resize(feeds["b"], (len(feeds["a"]), *feeds["b"].shape[1:]))
    return feeds


def assert_answers_stay(
    model: onnx.ModelProto, *others: onnx.ModelProto, sessions: Sequence[Open] = SESSIONS
) -> None:
    """``model``, whatever ``sessions`` make of it, and ``others`` answer the same."""
    feeds = feeds_of(model)
    expected = open_native(model).run(None, feeds)
    for session in (*(open_model(model) for open_model in sessions), *map(open_native, others)):
        for answer, one in zip(session.run(None, feeds), expected, strict=True):
            assert answer.dtype == one.dtype
            np.testing.assert_allclose(answer, one, rtol=1e-4, atol=2e-4)


#: Every name, with a kind of session; the default run has one of each form, mode and padding.
IN_TURNS = [*zip(sorted(MODELS), cycle(SESSIONS), strict=False)]
KINDS = [
    list(names) for _, names in groupby(sorted(MODELS), lambda name: re.split("-[01]-", name)[0])
]
QUICK = {names[turn * 3 % len(names)] for turn, names in enumerate(KINDS)}
#: Every other one in the default run.
NUMBERS = range(len(ATTRIBUTES))


@with_sweep(
    "name,open_model", IN_TURNS, [each for each in IN_TURNS if each[0] in QUICK], ids=sorted(MODELS)
)
def test_every_form_is_found_and_its_answers_stay(name: str, open_model: Open) -> None:
    model = load(name)
    open_native(model)  # what onnxruntime does not run it cannot try
    assert found(model) == said(name)
    patched = ogs.patch_model(model, target="ai.onnx")
    onnx.checker.check_model(patched)
    assert_answers_stay(model, patched, sessions=[open_model])
    if not name.startswith("affine_grid") and said(name):  # which opset 18 does not have
        left = {node.op_type for node in patched.graph.node}
        assert "GridSample" in left
        assert not left & {"GatherND", "GatherElements", "Floor", "Round"}


def test_every_mode_padding_and_alignment_is_here() -> None:
    every = {each for name in MODELS for each in said(name)}
    kinds = {
        ("GridSample", m, p, a)
        for m in ogs.spec.MODES
        for p in ogs.spec.PADDING_MODES
        for a in (0, 1)
    }
    assert every == kinds | {("AffineGrid", None, None, a) for a in (0, 1)}


@with_sweep(
    "number",
    NUMBERS,
    [i for i in NUMBERS if i % 4 in (0, 3)],
    ids=[str(each) for each in ATTRIBUTES],
)
def test_what_was_lowered_is_found(number: int) -> None:
    """Of two axes or three, as functions or not."""
    attributes = ATTRIBUTES[number]
    model = grid_sample_model("float32", "float32", 2 + number % 8 // 4, [attributes])
    lowered = ogs.patch_model(model, target="primitives", functions=number % 3 == 0)
    mode, padding, align = astuple(attributes)
    assert found(lowered) == [("GridSample", mode, padding, int(align))]
    assert ogs.patch_model(lowered, target="primitives") == lowered
    again = [
        n
        for s in scopes(ogs.patch_model(lowered, target="ai.onnx"))
        for n in s
        if n.op_type == "GridSample"
    ]
    assert [helper.get_node_attr_value(node, "mode").decode() for node in again] == [mode]


def test_of_very_many_positions_some_are_compared() -> None:
    """More than :data:`ort_gridsample.detection.trials.MAX_COMPARED`."""
    shapes = "float[1, 1, 20, 30] X, float[1, 250, 300, 2] G"
    model = parsed(f"g ({shapes}) => (float[1, 1, 250, 300] Y) {{ Y = GridSample (X, G) }}")
    assert found(ogs.patch_model(model, target="primitives")) == [
        ("GridSample", "linear", "zeros", 0)
    ]


def test_lengths_of_an_image_whose_pixels_are_in_one_axis_are_found() -> None:
    for h, w in ((1, 8), (2, 4), (8, 1)):
        model = parsed(f"""g (float[2,3,8] a, float[2,5,5,2] b) => (float[2,3,5,5] Y) {{
            to = Constant <value_ints = [2,3,{h},{w}]> () X = Reshape (a, to) Y = GridSample (X, b) }}""")
        lowered = ogs.patch_model(model, target="primitives")
        (reshape,) = (node for node in lowered.graph.node if node.output[0] == "X")
        lowered.graph.node.remove(reshape)
        for node in lowered.graph.node:
            node.input[:] = ["a" if name == "X" else name for name in node.input]
        assert found(lowered) == [("GridSample", "linear", "zeros", 0)]
        assert_answers_stay(model, lowered, ogs.patch_model(lowered, target="ai.onnx"), sessions=[])


def test_it_is_a_record_like_any_other_and_can_be_declined() -> None:
    model = load(SAMPLED)
    faults.skip_unread(model)
    assert records_of(model) == []  # where nobody is asked, nothing is found
    (record,) = ogs.inspect_model(model)
    assert (record.dialect.name, record.domain, record.op_type) == (
        "unrolled",
        "unrolled",
        "GridSample",
    )
    assert (record.native, record.reason, record.error, record.output) == (True, "", None, "Y")
    assert (record.values, record.types) == (
        {"X": "a", "grid": "b"},
        {"X": ("float32",), "grid": ("float32",)},
    )
    for nodes in (lambda record: not record.unrolled, "unsupported"):
        assert ogs.patch_model(model, nodes=nodes) == model
    sessions = [ogs.InferenceSession(model, nodes=nodes) for nodes in (None, "all", "unsupported")]
    by_itself, everything, unsupported = (session.replaced[0].runs_on for session in sessions)
    assert by_itself == everything != unsupported == "onnxruntime"
    patched = ogs.patch_model(model)
    assert [node.op_type for node in patched.graph.node][:1] == ["GridSample"]
    assert not patched.graph.initializer
    assert ogs.patch_model(patched) == patched


def test_an_affine_grid_says_its_size_and_raises_no_opset() -> None:
    (record,) = ogs.inspect_model(load("affine_grid/3-1-dynamic-torchscript"))
    assert record.values["theta"] == "a"
    assert record.values["size"]
    assert "size" not in record.constants
    model = load("affine_grid/2-1-static-dynamo")
    (record,) = ogs.inspect_model(model)
    assert (record.values["theta"], record.constants["size"].tolist()) == ("a", [2, 1, 4, 5])
    assert ogs.patch_model(model, target="ai.onnx") == model
    model.opset_import[0].version = 20
    assert [node.op_type for node in ogs.patch_model(model, target="ai.onnx").graph.node] == [
        "Constant",
        "AffineGrid",
    ]


def test_a_base_may_come_from_nodes() -> None:
    name = "affine_grid/2-0-static-dynamo"
    model, (base,) = load(name), [t for t in load(name).graph.initializer if len(t.dims) > 1]
    for node in model.graph.node:
        node.input[:] = ["made" if each == base.name else each for each in node.input]
    model.graph.node.insert(0, helper.make_node("Identity", [base.name], ["made"]))
    assert found(model) == said(name)
    assert_answers_stay(model)


def constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield node.attribute[0].t


def changed(model: onnx.ModelProto, number: int, by: float) -> onnx.ModelProto:
    """A copy in which one element of a constant is another."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = list(constants(copy))[number]
    value = numpy_helper.to_array(tensor).copy()
    if value.dtype == bool:
        value ^= True
    else:
        value.reshape(-1)[-1] += np.array(by).astype(value.dtype)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return copy


#: Models, and by how much a constant is off.
OFF = [
    (SAMPLED, (-1, 5e-5)),
    (DYNAMIC, (1, 0.01)),
    ("affine_grid/2-0-static-dynamo", (1, -1, 0.01, 5e-5)),
]
MORE_OFF = [
    SAMPLED,
    DYNAMIC,
    "decomposed/nearest-reflection-1-static-dynamo",
    "padded/bilinear-zeros-1-static-dynamo",
]
MORE_OFF += ["clamped/bilinear-border-0-dynamic-dynamo", "affine_grid/3-1-dynamic-dynamo"]


@with_sweep("name,changes", [*OFF, *((name, (1, -1, 0.01, 5e-5)) for name in MORE_OFF)], OFF)
def test_a_constant_that_is_off_is_seen(name: str, changes: Sequence[float]) -> None:
    """Whatever is found still answers as it did."""
    model = load(name)
    feeds = feeds_of(model)
    for by in changes:
        missed = 0
        floats = (TensorProto.FLOAT, TensorProto.DOUBLE)
        numbers = [
            i for i, t in enumerate(constants(model)) if by == int(by) or t.data_type in floats
        ]
        for other in (changed(model, number, by) for number in numbers):
            if not found(other):
                missed += 1
                continue
            answers = (
                each.run(None, feeds)[0]
                for each in (open_session(ogs.patch_model(other)), open_native(other))
            )
            np.testing.assert_allclose(*answers, rtol=0, atol=1e-5)
        assert missed > 0, by


@pytest.mark.parametrize(("size", "padding_mode"), [*product((8, 600), ogs.spec.PADDING_MODES)])
def test_a_factor_that_is_no_rounding_is_seen(size: int, padding_mode: str) -> None:
    """Of one weight of two, in an image of any size: a coordinate's rounding counts for less where X is not steep."""
    model = grid_sample_model("float32", "float32", 1, [Attributes("linear", padding_mode, True)])
    model.graph.input[0].type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3, size])
    )
    lowered = ogs.patch_model(model, target="primitives")
    assert len(found(lowered)) == 1
    nodes = lowered.graph.node
    last = max(index for index, node in enumerate(nodes) if node.op_type == "Mul")
    lowered.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [1.00005]))
    nodes.insert(last, helper.make_node("Mul", [nodes[last].input[0], "factor"], ["scaled"]))
    nodes[last + 1].input[0] = "scaled"
    onnx.checker.check_model(lowered)
    assert found(lowered) == []


def first(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op_type)


def test_what_is_not_the_same_is_left() -> None:
    models = swapped, overridable, foreign, half, unknown = [load(SAMPLED) for _ in range(5)]
    # The grid's columns are exchanged.
    x, y = (
        n
        for n in swapped.graph.node
        if n.op_type == "Gather" and n.input[0] == swapped.graph.node[1].output[0]
    )
    x.input[1], y.input[1] = y.input[1], x.input[1]
    # A constant that is an input may be fed.
    tensor = next(t for t in overridable.graph.initializer if t.data_type == TensorProto.FLOAT)
    overridable.graph.input.append(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    )
    # Another domain's operator is not ONNX's.
    first(foreign, "Floor").domain = "com.example"
    foreign.opset_import.append(helper.make_opsetid("com.example", 1))
    # In half precision rounding leaves doubts.
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in half.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(
                    numpy_helper.to_array(tensor).astype(np.float16), tensor.name
                )
            )
    # X may be anything.
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    for i, model in enumerate(models):
        assert (found(model), ogs.patch_model(model)) == ([], model), i


@pytest.mark.parametrize("op_type", ["Mul", "GatherND"])
def test_what_somebody_else_reads_is_left(op_type: str) -> None:
    """A weight, or the values of a corner."""
    alone = load(SAMPLED)
    *models, _ = readers(
        alone, first(alone, op_type).output[0]
    )  # the last one has a GridSample of its own
    for model in models:
        assert (found(model), ogs.patch_model(model)) == ([], model)


def branch(
    name: str, inner: onnx.GraphProto, outer: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """A model in one of whose branches ``inner`` is, on values from outside."""
    branches = "then_branch = t () => (float[] Y) { }, else_branch = e () => (float[] n) { n = Identity (a) }"
    made = parsed(
        f"g (bool c) => (float[] out) {{ out = If (c) <{branches}> }}", opset_of(load(name))
    )
    made.graph.input.extend(load(name).graph.input)
    made.graph.initializer.extend(outer)
    body = made.graph.node[0].attribute[0].g
    body.node.extend(inner.node)
    body.initializer.extend(inner.initializer)
    return made


@pytest.mark.parametrize(
    "name", [SAMPLED, DYNAMIC, "affine_grid/2-0-static-dynamo", "affine_grid/2-0-dynamic-dynamo"]
)
def test_it_is_found_in_a_branch(name: str) -> None:
    model = branch(name, load(name).graph)
    assert found(model) == said(name)
    feeds = feeds_of(load(name)) | {"c": np.array(True)}
    opened = (open_model(model) for open_model in (open_native, open_session, open_patched_file))
    native, *others = (session.run(None, feeds)[0] for session in opened)
    for other in others:
        np.testing.assert_allclose(other, native, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("off", [0, 1])
def test_a_constant_is_what_the_nearest_scope_says(off: int) -> None:
    """The numbers lie outside, right or wrong, or inside, where they hide those outside."""
    inner = load(SAMPLED).graph
    tensor = next(t for t in inner.initializer if t.data_type == TensorProto.FLOAT and not t.dims)
    wrong = numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(off), tensor.name)
    assert found(branch(SAMPLED, inner, outer=[wrong])) == said(SAMPLED)  # hidden
    inner.initializer.remove(tensor)
    assert found(branch(SAMPLED, inner, outer=[wrong])) == (said(SAMPLED) if off == 0 else [])


def test_it_is_found_in_a_function() -> None:
    sampled, model = (
        load(SAMPLED),
        parsed("g () => (float[] out) { out = local.sample (a, b) }", 18),
    )
    model.graph.input.extend(sampled.graph.input)
    model.functions.append(function_of(sampled, "local", "sample"))
    assert found(model) == said(SAMPLED)
    assert_answers_stay(model, sessions=[open_session, open_compiled])


def add_second(
    model: onnx.ModelProto, begins: str = "", X: str = "a", called: str = "second"
) -> None:
    """Write the nodes a second time, those of the operator ``begins`` and what comes of these, or all."""
    made = set[str]()
    for node in [*model.graph.node]:
        if begins in ("", node.op_type) or not made.isdisjoint(node.input):
            second = model.graph.node.add()
            second.CopyFrom(node)
            second.input[:] = [
                f"{called} {n}" if n in made else X if n == "a" else n for n in node.input
            ]
            second.output[:] = [f"{called} {name}" for name in node.output]
            second.name = f"{called} {node.name}"
            made.update(node.output)
    model.graph.output.append(helper.make_tensor_value_info(f"{called} Y", TensorProto.FLOAT, None))


def test_two_that_share_their_coordinates() -> None:
    """As exporters that find common expressions write them."""
    model = load(SAMPLED)
    add_second(model, "GatherND", "mask")
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [2, 3, 4, 5]))
    assert found(model) == said(SAMPLED) * 2
    both = ogs.patch_model(model, target="ai.onnx")
    assert [node.op_type for node in both.graph.node] == ["GridSample", "GridSample"]
    one = ogs.patch_model(model, target="ai.onnx", nodes=lambda record: record.output == "Y")
    left = [node.op_type for node in one.graph.node]
    assert (left.count("GridSample"), left.count("GatherND")) == (1, 4)
    assert_answers_stay(model, both, one, sessions=[ogs.InferenceSession])


def test_sizes_may_be_read_elsewhere_and_of_what_has_the_same() -> None:
    """Exporters read a size wherever it was first met, of another tensor with the same dimension."""
    model = load(DYNAMIC)
    model.graph.output.append(
        helper.make_tensor_value_info(first(model, "Shape").output[0], TensorProto.INT64, None)
    )
    assert found(model) == said(DYNAMIC)
    assert_answers_stay(model, ogs.patch_model(model, target="ai.onnx"), sessions=[open_session])
    for dims, same in (("NCHW", True), ("NCHV", False)):
        model = load(DYNAMIC)
        model.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, [*dims]))
        for value, names in zip(model.graph.input, ("NCHW", "Nhw"), strict=False):
            for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
                dim.dim_param = name
        for node in model.graph.node:
            if node.op_type == "Shape" and node.input[0] == "a":
                node.input[0] = "image"
        assert found(model) == (said(DYNAMIC) if same else [])


@pytest.mark.parametrize(
    "name", sorted({SAMPLED, "attention/bilinear-zeros-0-static-torchscript"} - {*NOT_FOUND})
)
def test_parts_that_are_alike_are_tried_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [], native.answers
    monkeypatch.setattr(
        native, "answers", lambda model, feeds: asked.append(len(feeds)) or answers(model, feeds)
    )
    model = load(name)
    found(model)
    once, asked[:] = len(asked), []
    add_second(model)  # another layer, of the same inputs
    assert (found(model), len(asked)) == (said(name) * 2, once)


def test_many_layers_are_no_more_work_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a model is worked out once."""
    model, made, asked = load("affine_grid/2-0-dynamic-dynamo"), [], []
    for called in "abcde":
        add_second(model, called=called)
    monkeypatch.setattr(find, "Names", lambda of: made.append(of) or Names(of))
    assert len(found(model)) == 32
    assert len(made) == 1
    warps = "".join(f"G{i} = Add (G, D) Y{i} = GridSample (X, G{i})\n" for i in range(20))
    text = f"g (float[N,1,4,4] X, float[N,3,3,2] G, float[N,3,3,2] D) => (float[N,1,3,3] Y0) {{ {warps} }}"
    value_of = types.value_of
    monkeypatch.setattr(types, "value_of", lambda proto: asked.append(proto) or value_of(proto))
    assert [len(record.fused) for record in ogs.inspect_model(parsed(text))] == [1] * 20
    assert len(asked) < 8 * 20


def test_what_does_not_read_a_value_is_not_looked_at() -> None:
    others = "".join(f"B{i + 1} = Neg (B{i})\n" for i in range(20_000))
    text = f"g (float[2] A, float[2] B0) => (float[2] D) {{ C = Add (A, A) {others} D = Add (C, B20000) }}"
    use_def = UseDef(*scopes(parsed(text)))
    assert use_def.kind("B20000") == "data"
    assert list(use_def.post_dominators([0])) == ["C", "D"]
    use_def.scope.inputs = inputs = MagicMock(
        **{"__getitem__.side_effect": use_def.scope.inputs.__getitem__}
    )
    assert list(use_def.post_dominators([0])) == ["C", "D"]
    assert {call.args for call in inputs.__getitem__.call_args_list} == {(0,), (20_001,)}


def test_what_counts_as_an_operator() -> None:
    """A node of ONNX's domain, by either name, with an output and, unless it is a Constant, an input."""
    make, model = helper.make_node, parsed("g (float[2] X) => (float[2] Y) { Y = Neg (X) }")
    good = (
        make("Neg", ["X"], ["Y"]),
        make("Neg", ["X"], ["Y"], domain="ai.onnx"),
        make("Constant", [], ["Y"], value_int=1),
    )
    bad = [make("Neg", *ends) for ends in (([], ["Y"]), ([""], ["Y"]), (["X"], []), (["X"], [""]))]
    bad += [make("Neg", ["X"], ["Y"], domain="local"), make("Abs", ["X"], ["Y"])]
    for node in (*good, *bad):
        del model.graph.node[:]
        model.graph.node.append(node)
        assert UseDef(*scopes(model)).is_op(0, ("Constant", "Neg")) == (node in good), node


def test_models_without_any_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """And products with a weight or a number are no grids."""
    nodes = "A = MatMul (X, W) two = Constant <value_float = 2.0> () Y = Mul (A, two)"
    model = parsed(f"g (float[N,4,4] X) => (float[N,4,4] Y) {{ {nodes} }}", 18)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "W"))
    assert Search(scopes(model), native).values == {}
    monkeypatch.setattr(UseDef, "__init__", None)  # to make one fails
    standard = grid_sample_model("float32", "float32", 2, [Attributes("linear", "zeros", True)])
    reshaped = "A = Relu (X) S = Shape (A) B = Reshape (A, S) Y = Add (A, B)"
    other = parsed(f"g (float[N,3,H,W] X) => (float[N,3,H,W] Y) {{ {reshaped} }}", 18)
    for model in (standard, other, affine_grid_model("float32", 2, True)):
        assert Search(scopes(model), native).values == {}


def test_lengths_that_nobody_says_are_told_apart() -> None:
    """However many: what two axes of one length answer says nothing of which is which."""
    unknown = [
        Value("float32", (None,) * 4),
        Value("float32", ("N", None, None, "r")),
        Value("int64", (None,) * 5),
    ]
    lengths = [length for shape in next(possible_shapes(unknown, [])) for length in shape][
        : len(SIZES[0]) + 3
    ]
    assert len(set(lengths)) == len(lengths)


def test_what_a_replacement_reads_is_not_dead() -> None:
    (scope,) = scopes(
        parsed("g (float[2] A) => (float[2] D) { B = Neg (A) C = Neg (B) D = Neg (C) }")
    )
    assert [unread_nodes(UseDef(scope), {2}, {read}, {0, 1}) for read in "ABC"] == [
        {0, 1},
        {1},
        set(),
    ]


def test_positions_that_are_tried_tell_kinds_apart() -> None:
    """Centres and edges of pixels in either alignment, inside and outside; or none near an edge, some far."""
    lengths, shape, generator = np.array([4, 7]), (3, 20, 20, 2), np.random.default_rng(0)

    def from_edge(at: np.ndarray) -> np.ndarray:
        return abs(at - np.floor(at) - 0.5)

    np.testing.assert_allclose(
        trials._pixels(np.array([-1.0, 0, 1]), np.array(5)), [[0, 2, 4], [-0.5, 2, 4.5]]
    )
    for jumps in (False, True):
        grid = trials._at_edges(generator, shape, lengths, jumps)
        assert grid.shape == shape
        pixels = np.stack(trials._pixels(grid, lengths))
        on_edge = from_edge(pixels) < 1e-9
        assert ((on_edge.mean((1, 2, 3, 4)) > 0.1) & (on_edge.mean((1, 2, 3, 4)) < 0.9)).all()
        assert (pixels.min((1, 2, 3)) < -1).all()
        assert (pixels.max((1, 2, 3)) > lengths).all()
        if jumps:  # all that is near an edge is on it
            assert (on_edge | (from_edge(pixels) > 9e-4)).all()
        else:
            exact = (abs(2 * pixels - np.rint(2 * pixels)) < 1e-9).all(-1)
            assert exact.any(0).all()
            assert (exact.mean((1, 2, 3)) > 0.3).all()
    grid = trials._anywhere(generator, shape, lengths)
    pixels = np.stack(trials._pixels(grid, lengths))
    assert (from_edge(pixels) > 1.9e-3).all()
    assert 0.4 < ((pixels[0] >= 0) & (pixels[0] <= lengths - 1)).mean() < 0.9
    assert 30 < abs(grid).max() < 101


#: Ways to round to a pixel, of which GridSample's is Round: half to even.
ROUND = "r = Round (p)"
ROUND_UP = "h = Add (p, half) r = Floor (h)"
#: A coordinate between the outer edges, or between the centres, of the outer pixels.
REFLECT = "q = Div ({x}, twice) f = Floor (q) m = Mul (f, twice) w = Sub ({x}, m) v = Sub (end, w) u = Min (w, v)"
CLIP = "c0 = Max ({x}, zero) u = Min (c0, last)"


def unrolled_nearest(
    width: int, rounding: str, padding: str, is_rounded_first: bool
) -> onnx.ModelProto:
    """A nearest sample of a row of ``width`` pixels, not aligned, in basic operators."""
    if is_rounded_first:
        pixels = f"{rounding} {padding.format(x='r')} i = Identity (u)"
    else:
        pixels = f"{padding.format(x='p')} {rounding.replace('(p', '(u')}"
        pixels += " c = Max (r, zero) i = Min (c, last)"
    return parsed(
        f"""g (float[1,1,1,{width}] X, float[1,1,24,2] G) => (float[1,1,1,24] Y)
        <float[2] L = {{{width}, 1}}, float[2] twice = {{{2 * width}, 2}}, float[2] end = {{{2 * width - 1}, 1}},
         float[2] last = {{{width - 1}, 0}}, float zero = {{0}}, float one = {{1}}, float half = {{0.5}},
         int64[3] rows = {{1, 1, {width}}}, int64[2] steps = {{1, {width}}}, int64[1] innermost = {{3}},
         int64[4] out = {{1, 1, 1, 24}}, int64[1] flat = {{-1}}> {{
            a = Add (G, one) b = Mul (a, L) d = Sub (b, one) p = Mul (d, half)
            {pixels}
            j = Cast <to = 7> (i) k = Mul (j, steps) s = ReduceSum <keepdims = 0> (k, innermost) t = Reshape (s, flat)
            x = Reshape (X, rows) y = Gather <axis = 2> (x, t) Y = Reshape (y, out) }}""",
        16,
    )


@with_sweep("width", [3, 4, 5, 7, 9, 10, 33, 64], quick=(4, 5, 10))
@pytest.mark.parametrize(
    ("rounding", "padding", "is_rounded_first", "expected"),
    [
        (ROUND, CLIP, False, [("GridSample", "nearest", "border", 0)]),
        (ROUND, CLIP, True, [("GridSample", "nearest", "border", 0)]),  # as the bounds are integers
        (ROUND, REFLECT, True, []),
        (ROUND_UP, CLIP, False, []),
        (ROUND_UP, CLIP, True, []),
        (ROUND_UP, REFLECT, True, []),
    ],
)
def test_unrolled_nearest_is_found_only_if_it_agrees_at_ties(
    width: int,
    rounding: str,
    padding: str,
    is_rounded_first: bool,
    expected: list[tuple[object, ...]],
) -> None:
    """On most widths a coordinate is on a tie by rounding alone, in the graph's own order of operations."""
    assert found(unrolled_nearest(width, rounding, padding, is_rounded_first)) == expected
