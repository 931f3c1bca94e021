"""No inferred type, rank or length is wrong: all values of a model are compared with a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as state
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.session import installed_runtime
from support import attention_models, faults
from support.attention_models import form_feeds
from support.decomposed_models import DECOMPOSED_MODELS, feeds_for, load_decomposed
from support.exported_models import EXPORTED_MODELS, stored_arrays
from support.inferred_shapes import wrong_values
from support.models import parsed
from support.paths import Open, open_compiled, open_native, open_patched_file, open_session

REFUSALS = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.RuntimeException)
#: The lengths of x in the operators' models.
X_SHAPE = (2, 3, 12, 14)
I64 = np.int64
F_ROW = np.zeros(14, np.float32)


def constants(**values: object) -> dict[str, np.ndarray]:
    """Return arrays: int64 unless a value is an array."""
    return {
        name: value if isinstance(value, np.ndarray) else np.array(value, I64)
        for name, value in values.items()
    }


#: Operators whose inferred lengths depend on constants: the nodes, the constants that they read,
#: and the first opset.
OPERATORS: dict[str, tuple[str, dict[str, np.ndarray], int]] = {
    "Slice of one axis": (
        "y = Slice (x, a, b, c, d)",
        constants(a=[2], b=[10], c=[2], d=[1]),
        13,
    ),
    "Slice backwards": (
        "y = Slice (x, a, b, c, d)",
        constants(a=[-1], b=[-(2**63) + 1], c=[-1], d=[-1]),
        13,
    ),
    "Slice backwards to the greatest end": (
        "y = Slice (x, a, b, c, d)",
        constants(a=[-1, -1], b=[2**63 - 1, 2**31 - 1], c=[-1, 2], d=[-1, -2]),
        13,
    ),
    "Slice with steps": (
        "y = Slice (x, a, b, c, d)",
        constants(a=[1, 0], b=[-1, 2**63 - 1], c=[3, 2], d=[2, 3]),
        13,
    ),
    "Slice without steps": ("y = Slice (x, a, b, c)", constants(a=[1], b=[3], c=[3]), 13),
    "Slice with steps, without axes": (
        'y = Slice (x, a, b, "", d)',
        constants(a=[0, 2, 1], b=[2, 0, 9], d=[1, -1, 3]),
        13,
    ),
    "Slice without axes": ("y = Slice (x, a, b)", constants(a=[0, 1], b=[1, 3]), 13),
    "Pad": ("y = Pad (x, a)", constants(a=[0, 0, 1, 2, 0, 0, 3, 0]), 18),
    "Pad of axes": ('y = Pad (x, a, "", c)', constants(a=[1, 2, 3, 0], c=[-1, 2]), 18),
    "Pad of all axes": (
        'y = Pad (x, a, "", c)',
        constants(a=[1, 2, 3, 0, 0, 0, 0, 4], c=[3, 1, 0, 2]),
        18,
    ),
    "Pad of axes with a value": (
        "y = Pad (x, a, b, c)",
        constants(a=[-1, 2], b=np.array(1, np.float32), c=[3]),
        18,
    ),
    "Squeeze": ("w = Unsqueeze (x, c) y = Squeeze (w, c)", constants(c=[1, -1]), 13),
    "Squeeze of one axis of several": (
        "w = Unsqueeze (x, c) y = Squeeze (w, a)",
        constants(c=[0, 2], a=[2]),
        13,
    ),
    "Squeeze of an empty list of axes": (
        "w = Unsqueeze (x, c) y = Squeeze (w, a)",
        constants(c=[0, 2], a=np.zeros(0, I64)),
        13,
    ),
    "Unsqueeze": ("y = Unsqueeze (x, a)", constants(a=[-1, 1]), 13),
    "ReduceSum": ("y = ReduceSum (x, a)", constants(a=[1, -1]), 13),
    "ReduceMax": ("y = ReduceMax <keepdims = 0> (x, a)", constants(a=[0]), 18),
    "ReduceMean of no axes": (
        "y = ReduceMean <noop_with_empty_axes = 1> (x, a)",
        constants(a=np.zeros(0, I64)),
        18,
    ),
    "Tile": ("y = Tile (x, a)", constants(a=[1, 2, 1, 3]), 13),
    "Expand": ("y = Expand (x, a)", constants(a=[5, 1, 1, 1, 1]), 13),
    "Reshape": ("y = Reshape (x, a)", constants(a=[0, -1, 7]), 13),
    "Reshape to a length of 0": (
        "w = Slice (x, a, a, c) y = Reshape <allowzero = 1> (w, b)",
        constants(a=[0], c=[2], b=[0, 3, 4]),
        14,
    ),
    "Resize to sizes": (
        'y = Resize (x, "", "", a)',
        constants(a=[2, 3, 5, 31]),
        13,
    ),
    "Resize of axes": (
        'y = Resize <axes = [3, 2]> (x, "", "", a)',
        constants(a=[5, 31]),
        18,
    ),
    "Resize by scales": (
        'y = Resize (x, "", a)',
        constants(a=np.array([1, 1, 0.7, 1.3], np.float32)),
        13,
    ),
    "Resize by scales whose products are rounded": (
        'w = Slice (x, b, c, d) y = Resize (w, "", a)',
        constants(a=np.array([1, 1, 1, 0.7], np.float32), b=[0], c=[10], d=[3]),
        13,
    ),
    "MaxPool with ceil_mode": (
        "y = MaxPool <kernel_shape = [1, 1], strides = [5, 3], ceil_mode = 1> (x)",
        {},
        13,
    ),
    "AveragePool with ceil_mode and padding": (
        "y = AveragePool <kernel_shape = [3, 3], strides = [3, 3], pads = [0, 0, 2, 2], "
        "ceil_mode = 1> (x)",
        {},
        13,
    ),
    "LpPool with ceil_mode": (
        "y = LpPool <kernel_shape = [2, 2], strides = [4, 5], ceil_mode = 1> (x)",
        {},
        18,
    ),
    "AveragePool of dilated windows": (
        'y = AveragePool <kernel_shape = [2, 1], dilations = [2, 1], auto_pad = "SAME_UPPER"> (x)',
        {},
        19,
    ),
    "MaxPool of dilated windows": (
        "y = MaxPool <kernel_shape = [1, 4], dilations = [1, 2], strides = [2, 3], "
        'auto_pad = "SAME_LOWER"> (x)',
        {},
        13,
    ),
    "ConvTranspose to a short output": (
        "y = ConvTranspose <strides = [3, 3], output_shape = [10, 11]> (x, a)",
        constants(a=np.ones((3, 2, 2, 2), np.float32)),
        13,
    ),
    "ConvTranspose with same and output padding": (
        'y = ConvTranspose <strides = [3, 3], auto_pad = "SAME_LOWER", '
        "output_padding = [1, 1]> (x, a)",
        constants(a=np.ones((3, 2, 3, 2), np.float32)),
        13,
    ),
    "NonZero of a scalar": ("y = NonZero (a)", constants(a=1), 13),
    "TopK": ("y, i = TopK <axis = 2> (x, a)", constants(a=[5]), 13),
    "Split": ("y, w, v = Split <axis = 2> (x, a)", constants(a=[2, 3, 7]), 13),
    "Split into halves": ("y, w = Split <axis = 2, num_outputs = 2> (x)", {}, 18),
    "Split into unequal parts": ("y, w, v = Split <axis = 3, num_outputs = 3> (x)", {}, 18),
    "ConstantOfShape": ("y = ConstantOfShape (a)", constants(a=[3, 1, 2]), 13),
    "Range": ("y = Range (a, b, c)", constants(a=2, b=-7, c=-2), 13),
    "ScatterND": (
        "y = ScatterND (x, a, b)",
        constants(a=[[0], [1]], b=np.zeros((2, 3, 12, 14), np.float32)),
        13,
    ),
    "Gather of a list": ("y = Gather <axis = 2> (x, a)", constants(a=[5, -1, 0]), 13),
    "Gather of an index": ("y = Gather <axis = 2> (x, a)", constants(a=5), 13),
    "Gather of a matrix": ("y = Gather <axis = 3> (x, a)", constants(a=[[5, 1], [0, 0]]), 13),
    "GatherND": ("y = GatherND <batch_dims = 1> (x, a)", constants(a=[[2, 1], [0, 0]]), 13),
    "OneHot": (
        "y = OneHot <axis = 1> (a, b, c)",
        constants(a=[1, 0, 3], b=np.array([4], I64), c=[0, 1]),
        13,
    ),
    "Compress": ("y = Compress <axis = 3> (x, a)", constants(a=np.array([True, False, True])), 13),
    "CenterCropPad": (
        "y = CenterCropPad <axes = [-1, 2]> (x, a)",
        constants(a=[5, 20]),
        18,
    ),
    "MaxUnpool": (
        "w, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) "
        "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (w, i, a)",
        constants(a=[2, 3, 13, 15]),
        13,
    ),
    "Trilu": ("y = Trilu (x, a)", constants(a=1), 14),
    "CumSum": ("y = CumSum (x, a)", constants(a=2), 14),
    "Where": (
        "y = Where (a, x, b)",
        constants(a=np.array([[[True]], [[False]], [[True]]]), b=F_ROW),
        13,
    ),
    "Reshape to a part of Shape": (
        "s = Shape (x) n = Slice (s, a, b, c, d) t = Concat <axis = 0> (n, e) y = Reshape (x, t)",
        constants(a=[0], b=[-2], c=[0], d=[1], e=[-1]),
        15,
    ),
    "Reshape to gathered lengths": (
        "s = Shape (x) n = Gather (s, a) t = Concat <axis = 0> (n, e) y = Reshape (x, t)",
        constants(a=[-1, 0], e=[-1]),
        15,
    ),
    "Expand to a product of lengths": (
        "s = Shape (x) n = Gather (s, a) p = Mul (n, b) t = Concat <axis = 0> (p, c) "
        "y = ConstantOfShape (t)",
        constants(a=[3], b=[2], c=[3]),
        15,
    ),
    "Slice of Shape from a computed start": (
        "s = Shape (x) r = Shape (s) h = Sub (r, a) n = Slice (s, h, r, c) "
        "t = Concat <axis = 0> (n, b) y = Reshape (x, t)",
        constants(a=[2], b=[-1], c=[0]),
        15,
    ),
    "Slice of Shape from a length": (
        "s = Shape (x) h = Gather (s, a) n = Slice (s, h, b, c) "
        "t = Concat <axis = 0> (n, e) y = Reshape (x, t)",
        constants(a=[0], b=[4], c=[0], e=[-1]),
        15,
    ),
    "Reshape to lengths backwards to the greatest end": (
        "s = Shape (x) n = Slice (s, a, b, c, a) y = Reshape (x, n)",
        constants(a=[-1], b=[2**63 - 1], c=[0]),
        15,
    ),
    "Reshape to lengths backwards": (
        "s = Shape (x) n = Slice (s, a, b, c, a) y = Reshape (x, n)",
        constants(a=[-1], b=[-(2**63) + 1], c=[0]),
        15,
    ),
    "Slice up to a length": (
        "s = Shape (x) h = Gather (s, a) y = Slice (x, b, h, c)",
        constants(a=[1], b=[0], c=[2]),
        15,
    ),
    "Reshape to a Cast of lengths": (
        "s = Shape (x) f = Cast <to = 9> (s) i = Cast <to = 7> (f) y = ConstantOfShape (i)",
        {},
        15,
    ),
}


def operator_model(name: str, dynamic: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model of an operator, in which constants are initializers, and their values."""
    nodes, values, opset = OPERATORS[name]
    lengths = "B, C, H, W" if dynamic else ", ".join(map(str, X_SHAPE))
    model = parsed(f"g (float[{lengths}] x) => (y) {{ {nodes} }}", max(opset, 18))
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items())
    return model, values


def typed(name: str, value: np.ndarray, shape: object) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, elem_type, shape)


Values = dict[str, np.ndarray]
#: Ways in which a model can hold a constant, each a function that changes a model of initializers
#: and returns the constants that a run must be fed.
Form = Callable[[onnx.ModelProto, Values], Values]


def initializers(model: onnx.ModelProto, values: Values) -> Values:
    return {}


def declared_initializers(model: onnx.ModelProto, values: Values) -> Values:
    model.graph.value_info.extend(typed(name, v, v.shape) for name, v in values.items())
    return {}


def initializers_declared_without_shape(model: onnx.ModelProto, values: Values) -> Values:
    model.graph.value_info.extend(typed(name, v, None) for name, v in values.items())
    return {}


def initializers_declared_without_lengths(model: onnx.ModelProto, values: Values) -> Values:
    model.graph.value_info.extend(typed(name, v, [None] * v.ndim) for name, v in values.items())
    return {}


def outputs(model: onnx.ModelProto, values: Values) -> Values:
    model.graph.output.extend(typed(name, v, v.shape) for name, v in values.items())
    return {}


def default_inputs(model: onnx.ModelProto, values: Values) -> Values:
    model.graph.input.extend(typed(name, v, v.shape) for name, v in values.items())
    return {}


def inputs_of_old_models(model: onnx.ModelProto, values: Values) -> Values:
    model.ir_version = 3
    model.graph.input.extend(typed(name, v, v.shape) for name, v in values.items())
    return {}


def inputs(model: onnx.ModelProto, values: Values) -> Values:
    del model.graph.initializer[:]
    model.graph.input.extend(typed(name, v, v.shape) for name, v in values.items())
    return values


def inputs_without_shape(model: onnx.ModelProto, values: Values) -> Values:
    del model.graph.initializer[:]
    model.graph.input.extend(typed(name, v, None) for name, v in values.items())
    return values


def constant_nodes(model: onnx.ModelProto, values: Values) -> Values:
    del model.graph.initializer[:]
    for name, value in values.items():
        tensor = numpy_helper.from_array(value)
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    return {}


def constant_nodes_declared_without_shape(model: onnx.ModelProto, values: Values) -> Values:
    constant_nodes(model, values)
    return initializers_declared_without_shape(model, values)


def through(node: str, domain: str = "", *operands: str) -> Form:
    """Return the form in which a node computes a constant from an initializer."""

    def form(model: onnx.ModelProto, values: Values) -> Values:
        for tensor in model.graph.initializer:
            tensor.name += "_0"
        for name in values:
            new = helper.make_node(node, [f"{name}_0", *operands], [name], domain=domain)
            model.graph.node.insert(0, new)
        return {}

    return form


def of_an_unknown_operator(model: onnx.ModelProto, values: Values) -> Values:
    """Let an operator that onnx does not know, GatherND of onnxruntime, return the constants."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    del model.graph.initializer[:]
    for name, value in values.items():
        rows = np.arange(len(value))[:, None] if value.ndim else np.zeros(1, I64)
        for suffix, array in (("data", np.atleast_1d(value)), ("rows", rows)):
            model.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{suffix}"))
        operands = [f"{name}_data", f"{name}_rows"]
        new = helper.make_node("GatherND", operands, [name], domain="com.microsoft")
        model.graph.node.insert(0, new)
    return {}


def in_a_function(model: onnx.ModelProto, values: Values) -> Values:
    """Let a function contain the nodes, to which its call gives the constants."""
    names = ["x", *values]
    function = helper.make_function(
        "local", "f", names, ["y"], model.graph.node, model.opset_import[:]
    )
    model.functions.append(function)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("f", names, ["y"], domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return {}


def in_a_body(model: onnx.ModelProto, values: Values) -> Values:
    """Let the branches of an If contain the nodes and the constants."""
    body = onnx.GraphProto()
    body.CopyFrom(model.graph)
    body.name = "branch"
    del body.input[:]
    body.value_info.extend(typed(name, v, None) for name, v in values.items())
    graph = model.graph
    del graph.node[:], graph.initializer[:]
    graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    graph.node.append(helper.make_node("If", ["on"], ["y"], then_branch=body, else_branch=body))
    return {}


def in_a_body_with_outer_constants(model: onnx.ModelProto, values: Values) -> Values:
    """Let the branches of an If contain the nodes, and the graph around them the constants."""
    constants_of_graph = [*model.graph.initializer]
    in_a_body(model, values)
    for attribute in model.graph.node[0].attribute:
        del attribute.g.initializer[:], attribute.g.value_info[:]
    model.graph.initializer.extend(constants_of_graph)
    return initializers_declared_without_shape(model, values)


def in_a_loop(model: onnx.ModelProto, values: Values) -> Values:
    """Let the body of a Loop contain the nodes and the constants, and stack what it computes."""
    in_a_body(model, values)
    graph = model.graph
    body = graph.node[0].attribute[0].g
    iteration = helper.make_tensor_value_info("iteration", onnx.TensorProto.INT64, [])
    goes_on = helper.make_tensor_value_info("goes_on", onnx.TensorProto.BOOL, [])
    body.input.extend([iteration, goes_on])
    body.output.insert(0, helper.make_tensor_value_info("still", onnx.TensorProto.BOOL, []))
    body.node.append(helper.make_node("Identity", ["goes_on"], ["still"]))
    graph.initializer.append(numpy_helper.from_array(np.array(2), "twice"))
    loop = helper.make_node("Loop", ["twice", "on"], ["y"], body=body)
    del graph.node[:]
    graph.node.append(loop)
    return {}


FORMS: dict[str, Form] = {
    "initializers": initializers,
    "declared initializers": declared_initializers,
    "initializers declared without a shape": initializers_declared_without_shape,
    "initializers declared without lengths": initializers_declared_without_lengths,
    "outputs": outputs,
    "defaults of inputs": default_inputs,
    "inputs of old models": inputs_of_old_models,
    "inputs": inputs,
    "inputs without a shape": inputs_without_shape,
    "Constants": constant_nodes,
    "Constants declared without a shape": constant_nodes_declared_without_shape,
    "Identities": through("Identity"),
    "values of an unknown operator": of_an_unknown_operator,
    "arguments of a function": in_a_function,
    "in a body": in_a_body,
    "around a body": in_a_body_with_outer_constants,
    "in a Loop": in_a_loop,
}


#: Forms in which initializers stay initializers.
DECLARING_FORMS = {
    name: FORMS[name]
    for name in (
        "initializers",
        "declared initializers",
        "initializers declared without a shape",
        "defaults of inputs",
    )
}


def held_otherwise(form: Form, model: onnx.ModelProto, values: Values) -> Iterator[tuple]:
    """Yield the model with all constants in a form, and with each one of several."""
    parts = [values]
    if form is not in_a_function and len(values) > 1:  # a function needs all of its constants
        parts += ({name: value} for name, value in values.items())
    for held in parts:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        others = [tensor for tensor in model.graph.initializer if tensor.name not in held]
        del changed.graph.initializer[:]
        changed.graph.initializer.extend(
            tensor for tensor in model.graph.initializer if tensor.name in held
        )
        feeds = form(changed, held)
        changed.graph.initializer.extend(others)
        yield changed, feeds


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OPERATORS)
def test_inference_of_an_operator_with_constants_in_any_form_has_no_wrong_length(
    name: str, dynamic: bool
) -> None:
    x = np.zeros(X_SHAPE, np.float32)
    wrong: dict[str, list[str]] = {}
    refused = []
    for form_name, form in FORMS.items():
        for model, feeds in held_otherwise(form, *operator_model(name, dynamic)):
            try:
                lines = wrong_values(model, feeds | {"x": x}, installed_runtime.PROBE)
            except REFUSALS as error:
                refused.append((form_name, str(error)))
            else:
                if lines:
                    wrong.setdefault(form_name, []).extend(lines)
    assert wrong == {}
    # onnxruntime itself does not run some models whose constants are no initializers of the graph.
    assert DECLARING_FORMS.keys().isdisjoint(form_name for form_name, _ in refused), refused


def sequence_model(nodes: str) -> onnx.ModelProto:
    """Return a model of nodes that make the sequence ``q``, and that returns its first tensor."""
    model = parsed(f"g (float[2, 3, 4, 5] x) => (y) <int64 i = {{0}}> {{ {nodes} }}", 18)
    model.graph.node.append(helper.make_node("SequenceAt", ["q", "i"], ["y"]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("shape", [(9, 3, 4, 5), (2, 3)], ids=["lengths", "rank"])
def test_inference_does_not_use_declared_shapes_of_sequences(shape: tuple[int, ...]) -> None:
    x = np.zeros((2, 3, 4, 5), np.float32)
    declaration = helper.make_tensor_sequence_value_info("q", onnx.TensorProto.FLOAT, shape)
    computed = sequence_model("u = com.microsoft.Gelu (x) q = SequenceConstruct (u)")
    computed.graph.value_info.append(declaration)
    assert wrong_values(computed, {"x": x}) == []
    fed = sequence_model("")
    fed.graph.input.append(declaration)  # onnxruntime does not check the shapes of such a feed
    assert wrong_values(fed, {"x": x, "q": [x]}) == []


@pytest.mark.parametrize("iterations", [0, 2])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("form", [initializers, default_inputs], ids=["constant", "default"])
def test_inference_of_what_a_loop_stacks_has_no_wrong_length(
    iterations: int, goes_on: bool, form: Form
) -> None:
    model = parsed(
        """g (float[3, 4] x) => (z, y) {
            z, y = Loop <
                body = b (int64 i, bool c, float[K, L] s)
                    => (bool d, float[K, L] t, float[9, 9] u) {
                d = Identity (c) t = Transpose (s) u = Identity (x) }> (n, on, x) }""",
        18,
    )
    values = {"n": np.array(iterations, I64), "on": np.array(goes_on)}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items())
    form(model, values)
    assert wrong_values(model, {"x": np.zeros((3, 4), np.float32)}) == []


def test_inference_of_a_contributed_gather_has_no_wrong_rank() -> None:
    model = parsed("g (float[3, 5] x, int64[N, M] i) => (y) { y = com.microsoft.GatherND (x, i) }")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    feeds = {"x": np.zeros((3, 5), np.float32), "i": np.zeros((1, 1), I64)}
    assert wrong_values(model, feeds, installed_runtime.PROBE) == []


# Exported models


def exported_models() -> Iterator[tuple[str, Callable[[], tuple[onnx.ModelProto, Values]]]]:
    """Yield the name of each stored model, and a function that returns it with its feeds."""
    for path in EXPORTED_MODELS:
        yield path.stem, lambda path=path: (onnx.load(path), stored_arrays(path, "in."))
    for name in attention_models.FORMS:
        yield name, lambda name=name: (attention_models.form(name), form_feeds(name))
    for name in DECOMPOSED_MODELS:
        yield name, lambda name=name: with_feeds(load_decomposed(name))


def with_feeds(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Values]:
    return model, feeds_for(model)


MODELS = dict(exported_models())


@pytest.mark.parametrize("form", DECLARING_FORMS.values(), ids=DECLARING_FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_inference_of_an_exported_model_has_no_wrong_length(name: str, form: Form) -> None:
    model, feeds = MODELS[name]()
    faults.skip_unread(model)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert form(model, tensors) == {}
    assert wrong_values(model, feeds, installed_runtime.PROBE) == []


# Samplers behind a Slice, as exporters write it


def open_lowered(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return open_native(ogs.patch_model(model, target="primitives"))


#: The value that is cut, and the start, end, axis and step.
SLICES = {
    "flipped grid": ("c", -1, -(2**63) + 1, 3, -1),
    "flipped X": ("x", -1, -(2**63) + 1, 3, -1),
    "rows of X": ("x", 2, 10, 2, 1),
    "columns of X": ("x", 1, -1, -1, 1),
    "every second row of X": ("x", 0, 2**63 - 1, 2, 2),
    "channels of X": ("x", 0, 2, 1, 1),
    "rows of the grid": ("c", 2, 6, 1, 1),
    "batches of X and the grid": ("x", 0, 2, 0, 1),
}


@pytest.mark.parametrize(
    "open_model", [open_session, open_compiled, open_patched_file, open_lowered]
)
@pytest.mark.parametrize("batch", ["2", "B"])
@pytest.mark.parametrize("name", SLICES)
def test_sample_behind_a_slice_by_declared_initializers_has_the_native_output(
    name: str, batch: str, open_model: Open
) -> None:
    source, *numbers = SLICES[name]
    inputs = ("s", "c") if source == "x" else ("x", "s")
    model = parsed(
        f"""g (float[{batch}, 3, 12, 14] x, float[{batch}, 8, 9, 2] c) => (float[N, M, P, Q] y) {{
            s = Slice ({source}, start, end, axis, step)
            y = GridSample ({", ".join(inputs)}) }}"""
    )
    values = {
        key: np.array([number], I64)
        for key, number in zip(("start", "end", "axis", "step"), numbers, strict=True)
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items())
    declared_initializers(model, values)
    generator = np.random.default_rng(0)
    feeds = {
        "x": generator.random((2, 3, 12, 14), np.float32),
        "c": generator.random((2, 8, 9, 2), np.float32) * 2 - 1,
    }
    [expected] = open_native(model).run(None, feeds)
    [actual] = open_model(model).run(None, feeds)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SLICES)
def test_inspect_model_of_a_sample_behind_a_slice_says_native(name: str) -> None:
    source, *numbers = SLICES[name]
    inputs = ("s", "c") if source == "x" else ("x", "s")
    declared = [f"int64[1] {key}" for key in ("start", "end", "axis", "step")]
    constants_of_slice = ", ".join(
        f"{key} = {{{number}}}" for key, number in zip(declared, numbers, strict=True)
    )
    (record,) = ogs.inspect_model(
        parsed(
            f"""g (float[B, 3, 12, 14] x, float[B, 8, 9, 2] c) => (float[N, M, P, Q] y)
            <{constants_of_slice}> {{
                s = Slice ({source}, start, end, axis, step)
                y = GridSample ({", ".join(inputs)}) }}"""
        )
    )
    assert (record.native, record.error) == (True, None)
