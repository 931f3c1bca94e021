"""Element types and shapes of values, as far as they are known before a run.

onnx's shape inference runs on the :mod:`backward slice <ort_gridsample.inference.backward_slice>`
of a model. Types behind operators that onnx does not know come from onnxruntime.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import onnx
from onnx import helper, shape_inference

from ..graph.element_types import type_of
from ..graph.scope import Scope, with_bodies
from ..spec import Dim, Shape, known_lengths
from .backward_slice import BackwardSlice, NamesByScope
from .light_attributes import tensor_type
from .probe import Probe
from .probed_types import add_probed_types, has_type, nodes_of_unknown_outputs
from .slice_declarations import Types, clear_shapes

logger = logging.getLogger("ort_gridsample")
#: The longest 1-D value whose elements inference follows. A longer one cannot be a shape.
MAX_ROW = 1 << 16
#: ONNX's number of a type -> its name. :data:`ort_gridsample.spec.TYPES` lacks some.
_TYPE_NAMES = {
    number: type_of(number) or name.lower()
    for name, number in onnx.TensorProto.DataType.items()
    if number != onnx.TensorProto.UNDEFINED
}
T = TypeVar("T")


@dataclass(frozen=True)
class TypeAndShape:
    """The type and the shape of a value, as far as they are known.

    Attributes:
        type: the name of the type in :data:`ort_gridsample.spec.TYPES`; None if it is unknown.
        shape: the lengths, each a number, a name, or None if it is unknown. The shape is None if
            the rank is unknown.
    """

    type: str | None = None
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @cached_property
    def has_known_lengths(self) -> bool:
        """Whether all lengths are numbers."""
        return known_lengths(self.shape) is not None


_UNKNOWN = TypeAndShape()


class Inference:
    """The types and shapes of a model's values. They are inferred when the first one is read.

    Args:
        model: the model whose values are inferred; not changed. :meth:`infer_now` must be called
            before it changes.
        scopes: the scopes of ``model``, as :func:`.scopes_of` returns them.
        probe: infers the types behind operators that onnx does not know; they are unknown if it is
            None.
        requested_names: names whose types are read, besides the inputs of sampling nodes.
        names_to_confirm: names whose declared types are compared with what is inferred without any
            declaration, by :meth:`confirmed_shapes`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        scopes: Sequence[Scope],
        probe: Probe | None = None,
        requested_names: NamesByScope | None = None,
        names_to_confirm: NamesByScope | None = None,
    ) -> None:
        self._model = model
        self._scopes = scopes
        self._probe = probe
        self._requested_names = requested_names
        self._names_to_confirm = names_to_confirm
        self._known_in_slice: dict[str, TypeAndShape] = {}

    def value_in_all_calls(self, scope: Scope, name: str) -> TypeAndShape:
        """Return what is known of ``name`` in all calls that lead to ``scope``.

        If it differs between calls of a function, nothing is known.
        """
        instances = self._backward_slice.instances.get(id(scope), ())
        if len(instances) == 1:
            return self._value(instances[0].name_in_slice(name))
        values = {self._value(instance.name_in_slice(name)) for instance in instances}
        return values.pop() if len(values) == 1 else _UNKNOWN

    def values_by_call(self, scope: Scope, names: Sequence[str]) -> list[tuple[TypeAndShape, ...]]:
        """Return what is known of ``names`` in each call that leads to ``scope``.

        Calls in which the same is known are listed once. There is at least one tuple of values.
        """
        values: dict[tuple[TypeAndShape, ...], None] = {}
        for instance in self._backward_slice.instances.get(id(scope), ()):
            values[tuple(self._value(instance.name_in_slice(name)) for name in names)] = None
        return list(values) or [tuple(TypeAndShape() for _ in names)]

    def infer_now(self) -> None:
        """Infer all types now, because the nodes of the model are about to change."""
        _ = self._results

    def inexactly_declared(
        self, scope: Scope, values: Iterable[onnx.ValueInfoProto]
    ) -> list[onnx.ValueInfoProto]:
        """Return those of ``values`` that are not declared exactly as they are inferred.

        The two may still be equivalent. Comparing bytes takes a tenth of the time of reading both
        types. No declaration is used, as in :meth:`confirmed_shapes`.
        """
        if scope.parent is not None or scope.function is not None:
            return [*values]
        types = self._results.undeclared.all_types
        unknown = onnx.TypeProto()
        return [
            value
            for value in values
            if types.get(value.name, unknown).SerializeToString() != value.type.SerializeToString()
        ]

    def confirmed_shapes(self, scope: Scope, name: str) -> set[Shape | None]:
        """Return the shapes that ``name`` has in the calls that lead to ``scope``.

        They are inferred without any declaration of a computed value. A shape is None if it is
        unknown. There is at least one shape.
        """
        types = self._results.undeclared.all_types
        shapes: set[Shape | None] = set()
        for instance in self._backward_slice.instances.get(id(scope), ()):
            type_proto = types.get(instance.name_in_slice(name))
            shapes.add(None if type_proto is None else value_of(type_proto).shape)
        return shapes or {None}

    def _value(self, name: str) -> TypeAndShape:
        value = self._known_in_slice.get(name)
        if value is None:
            results = self._results
            type_proto = results.known_types.get(name)
            if type_proto is None:
                type_proto = results.typed_model.all_types.get(name)
            value = _UNKNOWN if type_proto is None else value_of(type_proto)
            self._known_in_slice[name] = value
        return value

    @cached_property
    def _backward_slice(self) -> BackwardSlice:
        return BackwardSlice(
            self._model, self._scopes, self._requested_names, self._names_to_confirm
        )

    @cached_property
    def _results(self) -> _Inferred:
        backward_slice = self._backward_slice
        inferred = _infer(backward_slice)
        inferred = _infer_with_declared_types(backward_slice, inferred)
        inferred = _infer_with_declared_ranks(backward_slice, inferred)
        if self._probe is not None:
            known_types = _add_probed(self._probe, backward_slice, inferred)
            inferred = inferred._replace(known_types=known_types)
        return inferred


def value_of(proto: onnx.TypeProto) -> TypeAndShape:
    """Return the type and the shape in a ``TypeProto``."""
    # The bytes take a tenth of the time of reading each length, and most types occur many times.
    return _value_of(proto.SerializeToString())


@lru_cache(maxsize=1024)
def _value_of(serialized_type: bytes) -> TypeAndShape:
    tensor = onnx.TypeProto.FromString(serialized_type).tensor_type  # of another type: empty
    shape = tuple(map(_length_of, tensor.shape.dim)) if tensor.HasField("shape") else None
    return TypeAndShape(_TYPE_NAMES.get(tensor.elem_type), shape)


def length_at(shape: Sequence[T] | None, axis: int) -> T | None:
    """Return the length of an axis; None if the shape is unknown or has no such axis."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _length_of(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    number = dim.dim_value
    if number or dim.HasField("dim_value"):  # HasField takes longer, and only 0 needs it
        return int(number)
    is_text = isinstance(dim.dim_param, str)  # if it is not UTF-8, protobuf returns bytes
    return dim.dim_param if is_text and dim.dim_param else None


class _TypedModel:
    """The model of a backward slice with types, either inferred or declared.

    Args:
        model: the model, in which each value has a unique name. It must not change.
        is_nested: whether nodes hold graphs.
    """

    def __init__(self, model: onnx.ModelProto, is_nested: bool) -> None:
        self.model = model
        self._is_nested = is_nested

    @cached_property
    def all_types(self) -> Types:
        """The types of all values."""
        return self.types()

    def types(self, requested: Container[str] | None = None) -> Types:
        """Return the types of the ``requested`` values, or of all if that is None.

        Other types are not read, because that takes time.
        """
        values: Sequence[onnx.ValueInfoProto] = self._declared_values
        tensors: Sequence[onnx.TensorProto] = self.model.graph.initializer
        if requested is not None:
            values = [value for value in values if value.name in requested]
            tensors = [tensor for tensor in tensors if tensor.name in requested]
        types: Types = {value.name: value.type for value in values}
        for tensor in tensors:  # even if value_info has another type
            types[tensor.name] = tensor_type(tensor.data_type, *tensor.dims)
        return types

    @property
    def has_long_row(self) -> bool:
        """Whether a value is 1-D and has more than :data:`MAX_ROW` elements."""
        for value in self._declared_values:
            dims = value.type.tensor_type.shape.dim
            if len(dims) == 1 and dims[0].dim_value > MAX_ROW:
                return True
        rows = (tensor.dims[0] for tensor in self.model.graph.initializer if len(tensor.dims) == 1)
        return max(rows, default=0) > MAX_ROW

    @cached_property
    def _declared_values(self) -> list[onnx.ValueInfoProto]:
        """The values with declared types, of all graphs."""
        main = self.model.graph
        values: list[onnx.ValueInfoProto] = []
        for graph in with_bodies(main) if self._is_nested else (main,):
            values += graph.value_info
            values += graph.input
            values += (value for value in graph.output if value.type.WhichOneof("value"))
        return values


class _Knowledge(NamedTuple):
    """What is known of all of some values: their element types, ranks and lengths."""

    has_types: bool
    has_ranks: bool
    has_lengths: bool


def _knowledge_of(names: Iterable[str], types: Types) -> _Knowledge:
    """Return what ``types`` state of all values ``names``."""
    has_types = has_ranks = has_lengths = True
    for name in names:
        type_proto = types.get(name)
        value = _UNKNOWN if type_proto is None else value_of(type_proto)
        if value.type is None:
            has_types = False
        if not value.has_known_lengths:
            has_lengths = False
            if value.shape is None:
                has_ranks = False
    return _Knowledge(has_types, has_ranks, has_lengths)


def _are_known(names: Iterable[str], types: Types) -> bool:
    """Whether ``types`` state the element types and all lengths of all values ``names``."""
    for name in names:
        value = value_of(types[name]) if name in types else _UNKNOWN
        if value.type is None or not value.has_known_lengths:
            return False
    return True


def _have_known_lengths(names: Iterable[str], types: Types) -> bool:
    """Whether ``types`` state all lengths of all values ``names``."""
    for name in names:
        if name not in types or not value_of(types[name]).has_known_lengths:
            return False
    return True


class _Inferred(NamedTuple):
    """The inferred types of a slice.

    Attributes:
        typed_model: the model of the slice, with the types that onnx infers.
        known_types: the types of at least the requested values, also those that the model declares
            or a probe infers.
        undeclared: like ``typed_model``, before the model's declarations are used.
        knowledge: what ``known_types`` state of the requested values.
    """

    typed_model: _TypedModel
    known_types: Types
    undeclared: _TypedModel
    knowledge: _Knowledge


def _infer(backward_slice: BackwardSlice) -> _Inferred:
    """Infer the types and shapes of a slice.

    If the slice is invalid, only the types that it contains are known.
    """
    requested = backward_slice.requested
    names = requested.keys() | backward_slice.others.keys()
    is_nested = backward_slice.is_nested
    try:
        model = shape_inference.infer_shapes(backward_slice.model)
        typed_model = _TypedModel(model, is_nested)
        types = typed_model.types(names)
        if _are_known(names, types):
            return _Inferred(typed_model, types, typed_model, _Knowledge(True, True, True))
        # data_prop finds the ranks behind a Reshape, but needs memory for each element that it
        # follows.
        if not (_have_known_lengths(names, types) or typed_model.has_long_row):
            model = shape_inference.infer_shapes(typed_model.model, data_prop=True)
            typed_model = _TypedModel(model, is_nested)
            types = typed_model.types(names)
    except Exception as error:
        logger.debug("onnx infers no types and shapes: %s", error)
        model = onnx.ModelProto()
        model.CopyFrom(backward_slice.model)  # more types may be declared in the slice later
        typed_model = _TypedModel(model, is_nested)
        types = typed_model.types(names)
    return _Inferred(typed_model, types, typed_model, _knowledge_of(requested, types))


def _infer_with_declared_types(backward_slice: BackwardSlice, inferred: _Inferred) -> _Inferred:
    """Return the types of a slice with the declared types, if a requested type is unknown.

    They have no shapes, because a run need not have the declared ones.
    """
    if inferred.knowledge.has_types:
        return inferred
    types = inferred.typed_model.all_types
    declared: Types = {}
    for name, type_proto in backward_slice.declared_types.items():
        if not has_type(name, types):
            declared[name] = onnx.TypeProto()
            declared[name].CopyFrom(type_proto)
            clear_shapes(declared[name])
    return _infer_declared(backward_slice, inferred, declared)


def _infer_with_declared_ranks(backward_slice: BackwardSlice, inferred: _Inferred) -> _Inferred:
    """Return the types of a slice with the declared ranks, if a requested rank is unknown.

    The declared ranks are the last resort, because a run need not have them.

    Args:
        backward_slice: the slice, in which the ranks are declared.
        inferred: its types without the declared ranks. They are returned if no rank is missing.
    """
    if inferred.knowledge.has_ranks:
        return inferred
    declared: Types = {}
    for name, type_proto in backward_slice.declared_types.items():
        if not type_proto.tensor_type.HasField("shape"):
            continue
        types = (
            inferred.known_types if name in inferred.known_types else inferred.typed_model.all_types
        )
        if has_type(name, types) and not _has_rank(name, types):
            number = types[name].tensor_type.elem_type
            rank = len(type_proto.tensor_type.shape.dim)
            declared[name] = helper.make_tensor_type_proto(number, [None] * rank)
    return _infer_declared(backward_slice, inferred, declared)


def _infer_declared(
    backward_slice: BackwardSlice, inferred: _Inferred, declared: Types
) -> _Inferred:
    """Return the types of a slice in which the types ``declared`` are declared.

    onnx infers again only if the slice reads one of these values.
    """
    if not declared:
        return inferred
    backward_slice.declare_types(declared)
    if not backward_slice.reads_any(declared):
        types = inferred.known_types | declared
        knowledge = _knowledge_of(backward_slice.requested, types)
        return inferred._replace(known_types=types, knowledge=knowledge)
    return _infer(backward_slice)._replace(undeclared=inferred.undeclared)


def _add_probed(probe: Probe, backward_slice: BackwardSlice, inferred: _Inferred) -> Types:
    """Return the types of at least the requested values, with those that ``probe`` infers.

    Args:
        probe: infers the types behind operators that onnx does not know.
        backward_slice: the slice, in which the types from ``probe`` are declared.
        inferred: the types that onnx infers.
    """
    types = inferred.known_types
    knowledge = inferred.knowledge
    while not knowledge.has_types:
        before = inferred.typed_model.all_types | types
        extended = before.copy()
        nodes = nodes_of_unknown_outputs(backward_slice.graphs, before)
        add_probed_types(probe, backward_slice.model, nodes, extended)
        # add_probed_types replaces types and never changes one, so identity shows what is new.
        new_names = [name for name in extended if extended[name] is not before.get(name)]
        if not new_names:
            break
        # onnx infers the types behind these: through its operators, and in and out of If, Loop
        # and Scan.
        backward_slice.declare_types({name: extended[name] for name in new_names})
        types = extended | _infer(backward_slice).typed_model.all_types
        knowledge = _knowledge_of(backward_slice.requested, types)
    return types


def _has_rank(name: str, types: Mapping[str, onnx.TypeProto]) -> bool:
    return name in types and types[name].tensor_type.HasField("shape")
