"""What the installed onnxruntime runs by itself, and rightly: asked of it, by trying."""

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

#: What no rounding explains, of values in [-1, 1] and in half precision.
WRONG = 0.1


def refusal(node: onnx.NodeProto, opsets: Mapping[str, int], operator: str, types: Mapping[str, str], axes: int) -> str:
    """Why onnxruntime does not run a model of this one node, in its own words; empty where it does.

    A kernel that answers wrongly at any coordinates, as older releases' do with cubic and border, does not run it. The
    ``node`` stands for an ``operator`` with so many spatial ``axes``, and comes without inputs and outputs; ``opsets``
    are the versions of the domains that it is written in, ``types`` the element types of its inputs.
    """
    imports = ((domain, opsets.get(domain, 1)) for domain in dict.fromkeys(("", node.domain)))
    return _refusal(node.SerializeToString(), tuple(imports), operator, tuple(types.items()), axes)


@cache
def _refusal(
    node: bytes, imports: tuple[tuple[str, int], ...], operator: str, types: tuple[tuple[str, str], ...], axes: int
) -> str:
    proto = onnx.NodeProto.FromString(node)
    expected = None
    if operator == "GridSample":
        said = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
        has_names = isinstance(said.get("mode"), bytes)  # others, which onnxruntime does not know, say it in integers
        *arrays, expected = _probe(axes, **said) if has_names else _probe(axes)
    else:
        arrays = [np.zeros((1, axes, axes + 1)), np.array([1, 1, *[2] * axes])]
    try:
        model = one_node(proto, imports, types, [[None] * a.ndim for a in arrays]).SerializeToString()
        session = forks.cpu_session(model, quiet_options())
        feeds = {name: a.astype(fed(type_name)) for (name, type_name), a in zip(types, arrays, strict=True)}
        (answer,) = session.run(None, feeds)
    except Exception as error:
        return " ".join(str(error).split())
    if expected is None or types[0][1] not in spec.FLOATS:
        return ""
    off = float(abs(answer - expected).max())
    return "" if off < WRONG else f"its own kernel is off by {off:.2g} where values are in [-1, 1]"


def _probe(
    axes: int, mode: bytes = b"linear", padding_mode: bytes = b"zeros", align_corners: int = 0, **_: object
) -> tuple[Array, Array, Array]:
    """X of 5 pixels an axis, a grid of positions inside and around it, far from any tie, and Y."""
    pixels = np.array([-0.7, 1.3, 4.4])
    normalized = pixels / 2 - 1 if align_corners else (2 * pixels + 1) / 5 - 1
    X = np.sin(np.arange(5**axes, dtype=np.float64)).reshape(1, 1, *[5] * axes)
    grid = np.stack(np.meshgrid(*[normalized] * axes, indexing="ij")[::-1], -1)[None]
    return X, grid, sampled(X, grid, mode.decode(), padding_mode.decode(), bool(align_corners))


def sampled(X: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """What the NumPy core samples, whichever core is chosen."""
    n, *out, axes = grid.shape
    Y = np.empty((*X.shape[:2], prod(out)))
    sampler.grid_sample(X, grid.reshape(n, -1, axes), Y, plan_for(X.dtype, mode, padding_mode, align_corners), 1)
    return Y.reshape(*X.shape[:2], *out)


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of the outputs of ``model``, those that onnxruntime finds; none where it refuses the model.

    The model is loaded and not made ready to run: that needs no kernels, only what onnxruntime knows of operators.
    """
    try:
        session = _pybind_state.InferenceSession(quiet_options(), model.SerializeToString(), False, False)
        forks.track(session)
        outputs = session.outputs_meta
    except Exception as error:
        logger.debug("onnxruntime is asked for types, and refuses: %s", error)
        return {}
    found = dict[str, onnx.TypeProto]()
    for output in outputs:
        known = dict(TensorProto.DataType.items()).get(output.type.removeprefix("tensor(").removesuffix(")").upper())
        if known is not None:
            # No dimensions stand for a number as for what has an unknown number of them; names are made up.
            dims = [length if isinstance(length, int) else None for length in output.shape] or None
            found[output.name] = helper.make_tensor_type_proto(known, dims)
    return found


def answers(model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[Array] | None:
    """What ``model``, of one output, answers to each of ``feeds``, its inputs in order; None where it is refused."""
    found = outputs(model, feeds)
    return None if found is None else [first for first, *_ in found]


def outputs(model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[list[Array]] | None:
    """All outputs of ``model`` for each of ``feeds``, its inputs in order; None where onnxruntime refuses the model."""
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [value.name for value in model.graph.input]
    try:
        session = forks.cpu_session(model.SerializeToString(), options)
        return [session.run(None, dict(zip(names, fed, strict=True))) for fed in feeds]
    except Exception as error:
        logger.debug("onnxruntime is asked for answers, and refuses: %s", error)
        return None


def quiet_options(num_threads: int = 1) -> onnxruntime.SessionOptions:
    """Those of a session that logs nothing, as a refusal is an answer; ``num_threads`` is as onnxruntime's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, num_threads
    return options


def one_node(
    node: onnx.NodeProto, imports: Iterable[tuple[str, int]], types: Iterable[tuple[str, str]],
    shapes: Iterable[Sequence[int | str | None] | None],
) -> onnx.ModelProto:  # fmt: skip
    """A model of ``node``, which has none yet, with inputs of these names, ``types`` and ``shapes``, and Y first.

    Numpy itself has no bfloat16: what is of it is float32 outside (:func:`fed`).
    """
    inputs, casts, named = [], [], list(types)
    for (name, type_name), shape in zip(named, shapes, strict=True):
        outside = fed(type_name)
        inputs.append(helper.make_tensor_value_info(name, elem_type(outside), shape))
        node.input.append(name)
        if outside != type_name:
            node.input[-1] = f"{name} as {type_name}"
            casts.append(helper.make_node("Cast", [name], node.input[-1:], to=elem_type(type_name)))
    nodes, answer = [*casts, node], fed(named[0][1])
    node.output.insert(0, "Y")
    if answer != named[0][1]:
        node.output[0] = f"Y as {named[0][1]}"
        nodes.append(helper.make_node("Cast", node.output[:], ["Y"], to=elem_type(answer)))
    output = helper.make_tensor_value_info("Y", elem_type(answer), None)
    graph = helper.make_graph(nodes, "one node", inputs, [output])
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def fed(type_name: str) -> str:
    """The type that a tensor of ``type_name`` is fed as."""
    return "float32" if type_name == "bfloat16" else type_name
