"""Find out what the installed onnxruntime runs by itself and correctly, by running it.

This module is a :class:`ort_gridsample.inference.types.RuntimeProbe`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from .. import spec
from ..functions.cores import logger
from ..graph.element_types import elem_type
from ..reference import sampler
from ..reference.arrays import Array
from ..reference.plan import plan_for
from . import forks

#: The smallest difference that rounding does not explain, for values in [-1, 1] of float16.
MIN_WRONG_DIFFERENCE = 0.1
#: The element types of tensors, by their names in onnxruntime's types, in upper case.
_ELEM_TYPES = dict(TensorProto.DataType.items())


def refusal(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    operator: str,
    types: Mapping[str, str],
    axes: int,
) -> str:
    """Return why onnxruntime does not run a model of one node, or "" if it does.

    A kernel that is wrong at any coordinates counts as a refusal. Those of older releases are wrong
    with cubic and border.

    Args:
        node: the node, without inputs and outputs.
        opsets: the versions of the domains that the node is written in.
        operator: the operator that the node computes.
        types: the element types of the node's inputs, by name.
        axes: the number of spatial axes.
    """
    domains = dict.fromkeys(("", node.domain))
    imports = tuple((domain, opsets.get(domain, 1)) for domain in domains)
    return _refusal(node.SerializeToString(), imports, operator, tuple(types.items()), axes)


@cache
def _refusal(
    node: bytes,
    imports: tuple[tuple[str, int], ...],
    operator: str,
    types: tuple[tuple[str, str], ...],
    axes: int,
) -> str:
    """See :func:`refusal`; the arguments are hashable."""
    proto = onnx.NodeProto.FromString(node)
    if operator == "GridSample":
        X, grid, expected = _grid_sample_case(proto, axes)
        arrays = [X, grid]
    else:
        arrays = [np.zeros((1, axes, axes + 1)), np.array([1, 1, *[2] * axes])]
        expected = None
    try:
        shapes = [[None] * array.ndim for array in arrays]
        model = one_node(proto, imports, types, shapes).SerializeToString()
        session = forks.cpu_session(model, quiet_options())
        feed_types = {name: fed_type(type_name) for name, type_name in types}
        named_arrays = zip(feed_types, arrays, strict=True)
        feeds = {name: array.astype(feed_types[name]) for name, array in named_arrays}
        (output,) = session.run(None, feeds)
    except Exception as error:
        return " ".join(str(error).split())
    first_type = types[0][1]
    if expected is None or first_type not in spec.FLOATS:
        return ""
    difference = float(abs(output - expected).max())
    if difference < MIN_WRONG_DIFFERENCE:
        return ""
    return f"its own kernel is off by {difference:.2g} where values are in [-1, 1]"


def _grid_sample_case(node: onnx.NodeProto, axes: int) -> tuple[Array, Array, Array]:
    """Return X, a grid and Y for the attributes of a GridSample node."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    # Dialects that onnxruntime does not know have integers as modes.
    has_mode_names = isinstance(attributes.get("mode"), bytes)
    return _case_for(axes, **attributes) if has_mode_names else _case_for(axes)


def _case_for(
    axes: int,
    mode: bytes = b"linear",
    padding_mode: bytes = b"zeros",
    align_corners: int = 0,
    **_: object,
) -> tuple[Array, Array, Array]:
    """Return X, a grid and Y.

    X has 5 pixels on each axis. The positions of the grid are inside and around X, far from ties.
    """
    pixels = np.array([-0.7, 1.3, 4.4])
    normalized = pixels / 2 - 1 if align_corners else (2 * pixels + 1) / 5 - 1
    X = np.sin(np.arange(5**axes, dtype=np.float64)).reshape(1, 1, *[5] * axes)
    coordinates = np.meshgrid(*[normalized] * axes, indexing="ij")
    grid = np.stack(coordinates[::-1], -1)[None]
    return X, grid, sampled(X, grid, mode.decode(), padding_mode.decode(), bool(align_corners))


def sampled(X: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """Sample on the NumPy core, whichever core is chosen.

    The arguments are those of :func:`ort_gridsample.grid_sample`, and so is the result.
    """
    n, *out_lengths, axes = grid.shape
    Y = np.empty((*X.shape[:2], prod(out_lengths)))
    plan = plan_for(X.dtype, mode, padding_mode, align_corners)
    sampler.grid_sample(X, grid.reshape(n, -1, axes), Y, plan, 1)
    return Y.reshape(*X.shape[:2], *out_lengths)


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of the outputs of ``model`` as onnxruntime infers them.

    Only tensors are returned, and nothing if onnxruntime refuses the model. The model is loaded and
    not initialized for runs. That needs the schemas of operators, and no kernels.
    """
    try:
        serialized = model.SerializeToString()
        session = _pybind_state.InferenceSession(quiet_options(), serialized, False, False)
        forks.track(session)
        outputs = session.outputs_meta
    except Exception as error:
        logger.debug("onnxruntime infers no types: %s", error)
        return {}
    types = dict[str, onnx.TypeProto]()
    for output in outputs:
        type_name = output.type.removeprefix("tensor(").removesuffix(")").upper()
        if type_name in _ELEM_TYPES:
            # onnxruntime has no dimensions both for a scalar and for an unknown rank. It invents
            # names for unknown lengths.
            lengths = [length if isinstance(length, int) else None for length in output.shape]
            elem_type_number = _ELEM_TYPES[type_name]
            types[output.name] = helper.make_tensor_type_proto(elem_type_number, lengths or None)
    return types


def answers(model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[Array] | None:
    """Run ``model`` on each of ``feeds``, which are its inputs in order.

    Returns:
        The first output for each of ``feeds``. None if onnxruntime refuses the model.
    """
    runs = outputs(model, feeds)
    return None if runs is None else [run_outputs[0] for run_outputs in runs]


def outputs(model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[list[Array]] | None:
    """Run ``model`` on each of ``feeds``, which are its inputs in order.

    Returns:
        All outputs for each of ``feeds``. None if onnxruntime refuses the model.
    """
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [value.name for value in model.graph.input]
    try:
        session = forks.cpu_session(model.SerializeToString(), options)
        return [session.run(None, dict(zip(names, arrays, strict=True))) for arrays in feeds]
    except Exception as error:
        logger.debug("onnxruntime does not run a probe: %s", error)
        return None


def quiet_options(num_threads: int = 1) -> onnxruntime.SessionOptions:
    """Return options of a session that logs nothing, for models that onnxruntime may refuse.

    Args:
        num_threads: the number of threads of an op, or 0 for onnxruntime's default.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = num_threads
    return options


def one_node(
    node: onnx.NodeProto,
    imports: Iterable[tuple[str, int]],
    types: Iterable[tuple[str, str]],
    shapes: Iterable[Sequence[int | str | None] | None],
) -> onnx.ModelProto:
    """Return a model of one node.

    NumPy has no bfloat16. Inputs and outputs of that type are float32 with a Cast in the model.

    Args:
        node: the node, which is changed. It has no inputs, and no first output, which becomes Y.
        imports: the versions of domains.
        types: the name and element type of each input.
        shapes: the shape of each input, or None if it is unknown.
    """
    inputs = list[onnx.ValueInfoProto]()
    nodes = list[onnx.NodeProto]()
    names_and_types = list(types)
    for (name, type_name), shape in zip(names_and_types, shapes, strict=True):
        feed_type = fed_type(type_name)
        inputs.append(helper.make_tensor_value_info(name, elem_type(feed_type), shape))
        if feed_type == type_name:
            node.input.append(name)
        else:
            cast_name = f"{name} as {type_name}"
            node.input.append(cast_name)
            cast = helper.make_node("Cast", [name], [cast_name], to=elem_type(type_name))
            nodes.append(cast)
    nodes.append(node)
    first_type = names_and_types[0][1]
    output_type = fed_type(first_type)
    if output_type == first_type:
        node.output.insert(0, "Y")
    else:
        node.output.insert(0, f"Y as {first_type}")
        cast = helper.make_node("Cast", node.output[:], ["Y"], to=elem_type(output_type))
        nodes.append(cast)
    output = helper.make_tensor_value_info("Y", elem_type(output_type), None)
    graph = helper.make_graph(nodes, "one node", inputs, [output])
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def fed_type(type_name: str) -> str:
    """Return the element type of the array that is fed for an input of type ``type_name``."""
    return "float32" if type_name == "bfloat16" else type_name
