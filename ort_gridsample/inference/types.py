"""Element types and shapes of the values that the nodes concerned read, as far as they can be known without a run.

onnx's shape inference is run on the :mod:`backward slice <ort_gridsample.inference.backward_slice>`
from the nodes concerned; where it does not know an operator, onnxruntime is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Protocol

import onnx
from onnx import helper, shape_inference

from .. import spec
from ..graph.element_types import type_of
from ..graph.scope import Scope, scopes
from ..reference.arrays import Array
from .backward_slice import STAND_IN, BackwardSlice, Values

logger = logging.getLogger("ort_gridsample")
#: No shape is longer than this, nor anything that is computed on the way to one.
LONGEST_ROW = 1 << 16
#: The input of a question that shapes come from which nobody knows.
_ANY_SHAPE = "any shape"

Types = dict[str, onnx.TypeProto]


class Probe(Protocol):
    """What a model's reader asks of onnxruntime; :mod:`ort_gridsample.session.native` answers, as none runs here."""

    def refusal(
        self, node: onnx.NodeProto, opsets: Mapping[str, int], operator: str, types: Mapping[str, str], axes: int
    ) -> str:
        """Why onnxruntime does not run a model of this one node, in its own words; empty where it does."""

    def types_of(self, model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
        """The types of the outputs of ``model``, those that onnxruntime finds; none where it refuses the model."""

    def outputs(self, model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[list[Array]] | None:
        """All outputs of ``model`` for each of ``feeds``, its inputs; None where onnxruntime refuses the model."""

    def answers(self, model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[Array] | None:
        """What ``model``, of one output, answers to each of ``feeds``, its inputs; None where onnxruntime refuses."""


@dataclass(frozen=True)
class Value:
    """What is known of a value: its type's name in :data:`ort_gridsample.spec.TYPES`, and its shape."""

    type: str | None = None
    shape: tuple[int | str | None, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)


class Inference:
    """What is known of the values of ``model``, whose scopes are ``found``; nothing is done before it is asked for.

    ``probe`` is asked for the types behind operators that onnx does not know. ``values`` are those that may be asked
    for besides what the nodes concerned read. With ``uses_declared_ranks``, a rank that nothing else tells is the one
    that the model declares.
    """

    def __init__(
        self, model: onnx.ModelProto, found: Sequence[Scope], probe: Probe | None = None, values: Values | None = None,
        uses_declared_ranks: bool = True,
    ) -> None:  # fmt: skip
        self._uses_declared_ranks = uses_declared_ranks
        self._model, self._found, self._probe, self._values = model, found, probe, values
        self._asked: dict[tuple[int, str], Value] = {}

    def alternatives(self, scope: Scope, name: str) -> list[Value]:
        """What is known of ``name`` as ``scope`` sees it: several values where a function is called with several."""
        return [value for (value,) in self.cases(scope, [name]) if value != Value()]

    def cases(self, scope: Scope, names: Sequence[str]) -> list[tuple[Value, ...]]:
        """What is known of ``names`` in each kind of call that leads to ``scope``; at least one case."""
        instances = self._slice.instances.get(id(scope), ())
        found = dict.fromkeys(tuple(self._value(each.name(name)) for name in names) for each in instances)
        return list(found) or [tuple(Value() for _ in names)]

    def prepare(self) -> None:
        """Infer all types now, as the nodes of the model are about to change."""
        assert self._types is not None
        assert self._others is not None

    def confirms(self, scope: Scope, value: onnx.ValueInfoProto) -> bool:
        """Whether ``value`` of the main graph is declared just as it is inferred; False: it may be all the same.

        Comparing bytes takes a tenth of the time of reading both types.
        """
        known = self._others.get(value.name) if scope.parent is None and scope.function is None else None
        return known is not None and known.SerializeToString() == value.type.SerializeToString()

    def _value(self, name: str) -> Value:
        type = self._types.get(name) or self._others.get(name)
        return Value() if type is None else value_of(type)

    def known(self, scope: Scope, name: str) -> Value:
        """What is known of ``name`` as ``scope`` sees it, where that is one thing."""
        asked = id(scope), name
        if asked not in self._asked:
            values = self.alternatives(scope, name)
            self._asked[asked] = values[0] if len(values) == 1 else Value()
        return self._asked[asked]

    @cached_property
    def _slice(self) -> BackwardSlice:
        return BackwardSlice(self._model, self._found, self._values)

    @cached_property
    def _inferred(self) -> tuple[onnx.ModelProto, Types]:
        sliced = self._slice
        annotated, types = _inferred(sliced.model, sliced.sampled, sliced.is_nested)
        if self._uses_declared_ranks and sliced.ranks and not all(_has_rank(name, types) for name in sliced.sampled):
            # Only where nothing else tells the rank, the declared one does.
            known = _types_in(annotated, None, sliced.is_nested)
            sliced.state(
                {
                    name: helper.make_tensor_type_proto(known[name].tensor_type.elem_type, [None] * rank)
                    for name, rank in sliced.ranks.items()
                    if _is_known(name, known) and not _has_rank(name, known)
                }
            )
            annotated, types = _inferred(sliced.model, sliced.sampled, sliced.is_nested)
        return annotated, types

    @cached_property
    def _others(self) -> Types:
        return _types_in(self._inferred[0], None, self._slice.is_nested)

    @cached_property
    def _types(self) -> Types:
        """Those of the values that matter, at least."""
        sliced, (_, types) = self._slice, self._inferred
        while self._probe is not None and not all(_is_known(name, types) for name in sliced.sampled):
            before = self._others | types
            told = before.copy()
            _ask(self._probe, sliced.model, _unknown(sliced.model, before), told)
            new = [name for name, type in told.items() if type is not before.get(name)]
            if not new:
                break
            # onnx goes on from there: types pass through its own operators, and in and out of If, Loop and Scan.
            sliced.state({name: told[name] for name in new})
            annotated, _ = _inferred(sliced.model, sliced.sampled, sliced.is_nested)
            types = told | _types_in(annotated, None, sliced.is_nested)
        return types


def forget_guesses(model: onnx.ModelProto, found: Sequence[Scope], values: Values) -> None:
    """Clear the shapes and lengths that ``model`` declares for ``values`` where nothing else tells them.

    onnxruntime answers a Shape with them, whatever a run's are.
    """
    declared = [
        (scope, value)
        for scope in found
        for value in scope.container.value_info
        if value.name in values.get(id(scope), ()) and value.type.tensor_type.HasField("shape")
    ]
    if not declared:
        return
    names: dict[int, list[str]] = {}
    for scope, value in declared:
        names.setdefault(id(scope), []).append(value.name)
    inference = Inference(model, found, values=names, uses_declared_ranks=False)
    for scope, value in declared:
        if inference.confirms(scope, value):
            continue
        shapes = {known.shape for known in inference.alternatives(scope, value.name)}
        tensor = value.type.tensor_type
        known = [shape for shape in shapes if shape is not None]
        is_confirmed = len(known) == len(shapes) > 0
        if any(len(shape) != len(tensor.shape.dim) for shape in known) or not (is_confirmed or tensor.shape.dim):
            tensor.ClearField("shape")
            continue
        for axis, dim in enumerate(tensor.shape.dim):
            is_same = is_confirmed and all(shape[axis] == dim.dim_value for shape in known)
            if dim.HasField("dim_value") and not is_same:
                dim.ClearField("dim_value")


def value_of(proto: onnx.TypeProto) -> Value:
    """What a ``TypeProto`` says."""
    tensor = proto.tensor_type  # without a type or shape, if it is none
    shape = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Value(_type_name(tensor.elem_type), shape)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    # What is not UTF-8 comes as bytes.
    return dim.dim_param if dim.dim_param and isinstance(dim.dim_param, str) else None


@cache
def _type_name(elem_type: int) -> str | None:
    known = type_of(elem_type)
    if known or elem_type == onnx.TensorProto.UNDEFINED or elem_type not in onnx.TensorProto.DataType.values():
        return known
    return onnx.TensorProto.DataType.Name(elem_type).lower()


def _inferred(
    model: onnx.ModelProto, asked: Collection[str] = (), is_nested: bool = True
) -> tuple[onnx.ModelProto, Types]:
    """A slice, whose values' names all differ, with what onnx infers of them, and the types of those ``asked``."""
    try:
        annotated = shape_inference.infer_shapes(model)
        types = _types_in(annotated, asked, is_nested)
        known = [types[name].tensor_type for name in asked if name in types]
        dims = chain.from_iterable(tensor.shape.dim for tensor in known)
        is_complete = len(known) == len(asked) and all(tensor.HasField("shape") for tensor in known)
        if not (is_complete and all(dim.HasField("dim_value") for dim in dims)):
            # Following the numbers in 1-D tensors finds the ranks behind Reshape; it takes room for each of them.
            shapes = (type.tensor_type.shape.dim for type in _types_in(annotated, None, is_nested).values())
            if all(len(shape) != 1 or shape[0].dim_value <= LONGEST_ROW for shape in shapes):
                annotated = shape_inference.infer_shapes(annotated, data_prop=True)
                types = _types_in(annotated, asked, is_nested)
        return annotated, types
    except Exception as error:  # of a model that is not valid: what it says itself is still known
        logger.debug("onnx infers no types and shapes: %s", error)
        return model, _types_in(model, asked, is_nested)


def _types_in(model: onnx.ModelProto, asked: Collection[str] | None, is_nested: bool) -> Types:
    """The types of all values in ``model``, or of those that are ``asked`` for: it takes time to read one."""
    types: Types = {}
    for graph in (scope.container for scope in scopes(model)) if is_nested else (model.graph,):
        if isinstance(graph, onnx.GraphProto):
            values = chain(graph.value_info, graph.input, (v for v in graph.output if v.type.WhichOneof("value")))
            types.update((v.name, v.type) for v in values if asked is None or v.name in asked)
    for tensor in model.graph.initializer:  # whatever value_info says of them
        if asked is None or tensor.name in asked:
            types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _is_known(name: str, types: Mapping[str, onnx.TypeProto]) -> bool:
    return name in types and bool(types[name].tensor_type.elem_type)


def _has_rank(name: str, types: Mapping[str, onnx.TypeProto]) -> bool:
    return name in types and types[name].tensor_type.HasField("shape")


def _unknown(model: onnx.ModelProto, types: Types) -> list[onnx.NodeProto]:
    """The nodes that hold no graphs and of which onnx does not know what they make, in graphs of any depth."""
    graphs = [scope for scope in scopes(model) if scope.function is None]
    nodes = (node for scope in graphs for at, node in enumerate(scope) if at not in scope.bodies)
    return [node for node in nodes if not all(_is_known(name, types) for name in node.output if name)]


def _ask(probe: Probe, sliced: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], types: Types) -> None:
    """Let ``types`` have what onnxruntime knows of what ``nodes`` make."""
    model = _question(sliced, nodes, types)
    if not model.graph.node:
        return
    told = probe.types_of(model)
    if told:
        types.update((name, type) for name, type in told.items() if not _is_known(name, types))
    elif len(nodes) > 1:  # it refuses a model for one node: the others in two parts
        _ask(probe, sliced, nodes[: len(nodes) // 2], types)
        _ask(probe, sliced, nodes[len(nodes) // 2 :], types)


def _question(sliced: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], types: Types) -> onnx.ModelProto:
    """A model that answers what those of ``nodes`` make whose inputs are known, or made by one of them before."""
    graph = onnx.GraphProto(name="question")
    constants = {tensor.name: tensor for tensor in sliced.graph.initializer}
    made: dict[str, None] = {}
    fed: dict[str, onnx.TypeProto] = {}
    for node in nodes:
        inputs = [name for name in node.input if name]
        if node.domain == STAND_IN:
            if node.op_type not in spec.OPERATORS:
                continue
            # onnxruntime may know less of the operator than this package: what it makes has its first input's type.
            inputs = [*node.input[:1]]
            node = helper.make_node("Reshape", [*inputs, _ANY_SHAPE], node.output)
            fed[_ANY_SHAPE] = helper.make_tensor_type_proto(onnx.TensorProto.INT64, [None])
        if all(name in made or _is_known(name, types) for name in inputs):
            fed.update((name, types[name]) for name in inputs if name not in made)
            made.update(dict.fromkeys(filter(None, node.output)))
            graph.node.append(node)
    graph.input.extend(onnx.ValueInfoProto(name=n, type=type) for n, type in fed.items() if n not in constants)
    graph.initializer.extend(constants[name] for name in fed if name in constants)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return onnx.ModelProto(ir_version=sliced.ir_version, graph=graph, opset_import=sliced.opset_import)
