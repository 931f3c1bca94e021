"""Write ONNX nodes as expressions: ``(g + 1) * scale`` becomes an Add and a Mul.

An :class:`Expressions` holds the nodes that replace one node. A :class:`Tensor` is a value in it.
Operations on constants are computed by NumPy at once, equal nodes are written once, and nodes whose
outputs are not read are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod, reduce
from math import prod
from operator import mul
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ..reference.arrays import Array
from ..spec import Dim
from .element_types import elem_type
from .first_opsets import (
    FIRST_OPSET_WITH_ALLOWZERO,
    FIRST_OPSET_WITH_AXES_AS_INPUT,
    FIRST_OPSET_WITH_CLIP_OF_ALL_TYPES,
    FIRST_OPSET_WITH_SPLIT_AS_INPUT,
)
from .folding import COMPUTE
from .new_names import Names
from .runtimes import ANY, Runtime
from .substitutes import SUBSTITUTES, MissingOperatorError, round_to_float32


def _operator(op_type: str) -> Callable[[Tensor, TensorLike], Tensor]:  # pragma: no mutate block
    """Return the method of :class:`Tensor` for a binary operator."""
    return lambda self, other: self.owner.op(op_type, self, other)


@dataclass(frozen=True, eq=False)
class Tensor:
    """An input, the output of a node, or a constant that becomes a node when a node reads it.

    Attributes:
        owner: the expressions that the tensor belongs to.
        type: a name in :data:`ort_gridsample.spec.TYPES`; empty if it is not known.
        name: the name of the value; empty for a constant.
        constant: the value of a constant.
        finite: the tensor whose elements are finite where this one, a number for a condition, is 1.
    """

    owner: Expressions
    type: str
    name: str
    constant: Array | None = None
    finite: Tensor | None = None

    __add__ = __radd__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = __rmul__ = _operator("Mul")
    __truediv__ = _operator("Div")

    def __rsub__(self, other: TensorLike) -> Tensor:
        return self.owner.op("Sub", other, self)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return self.owner.op("Div", other, self)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy type of the elements."""
        return np.dtype(self.type)

    def astype(self, to: str, copy: bool = False) -> Tensor:
        """Return the values as type ``to``.

        ``copy`` has no effect, because tensors are never changed in place.
        """
        return self if to == self.type else self.owner.op("Cast", self, type=to, to=elem_type(to))


TensorLike: TypeAlias = "Tensor | float | Array"
DimLike: TypeAlias = "int | Tensor"  #: a known length, or a one-element int64 tensor

#: Operators whose output is boolean.
_BOOLEAN_OPERATORS = ("And", "Equal", "Less")
#: The NumPy types in which constants are stored, if they are not those of the same name.
_STORED_TYPES = {"bfloat16": "float32", "str": "object"}
#: Operators whose results are rounded. The float32 result of each is its float64 result, rounded.
_INEXACT = ("Add", "Div", "Mul", "Sub")


class Expressions:
    """The nodes that replace one node.

    Args:
        prefix: the beginning of the names of the new nodes and values.
        opset: the version of the ONNX domain.
        runtime: the runtime that the nodes are for.
        names: the names of the model, for the choice of new ones. Without them, the caller compares
            the new names with those of the model.
        origin: the node that errors name. By default, it is ``prefix``.
    """

    def __init__(
        self,
        prefix: str,
        opset: int,
        runtime: Runtime = ANY,
        names: Names | None = None,
        origin: str = "",
    ) -> None:
        self.prefix = prefix
        self.origin = origin or prefix
        self.opset = opset
        self.runtime = runtime
        self._names = names
        self._nodes: dict[bytes, onnx.NodeProto] = {}  # by their bytes without names
        self._kept: list[onnx.NodeProto] = []
        self._lengths: list[Tensor] = []
        self._rounds_to_float32 = False

    def input(self, name: str, type: str = "") -> Tensor:
        """Return a value from outside. A type that is not known is empty."""
        return Tensor(self, type, name)

    def constant(self, value: npt.ArrayLike, type: str = "int64") -> Tensor:
        """Return a constant."""
        return Tensor(self, type, "", np.asarray(value, _STORED_TYPES.get(type, type)))

    def row(self, *numbers: int) -> Tensor:
        """Return a constant 1-D tensor of int64."""
        return self.constant(numbers)

    def like(self, value: npt.ArrayLike, x: Tensor) -> Tensor:
        """Return a constant of the type of ``x``.

        If the type is not known, the opset must be 15 or newer.
        """
        if x.type:
            return self.constant(value, x.type)
        return self.op("CastLike", self.constant(value, "float32"), x, type="")

    def node(self, node: onnx.NodeProto) -> Tensor:
        """Add a node as it is. It is kept, and nodes that compute its inputs are kept as well.

        Returns:
            Its first output.
        """
        self._nodes[node.SerializeToString()] = node
        self._kept.append(node)
        return Tensor(self, "", node.output[0])

    @contextmanager
    def rounding_to_float32(self) -> Iterator[None]:
        """Round the results of float64 arithmetic to float32: float32 arithmetic in float64."""
        self._rounds_to_float32 = True
        try:
            yield
        finally:
            self._rounds_to_float32 = False

    def op(
        self,
        op_type: str,
        *inputs: TensorLike,
        type: str | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Return the output of an operator.

        Args:
            inputs: its inputs, at least one tensor. Numbers get the type of the last tensor.
            type: the type of the output. By default that of the inputs, or bool for a comparison.
        """
        result = self._op(op_type, *inputs, type=type, **attributes)
        if self._rounds_to_float32 and op_type in _INEXACT and result.type == "float64":
            self._rounds_to_float32 = False  # in the rounding itself
            result = round_to_float32(self, result)
            self._rounds_to_float32 = True
        return result

    def _op(
        self,
        op_type: str,
        *inputs: TensorLike,
        type: str | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Like :meth:`op`, but without rounding."""
        *_, last_tensor = [operand for operand in inputs if isinstance(operand, Tensor)]
        tensors: list[Tensor] = []
        for operand in inputs:
            if not isinstance(operand, Tensor):
                operand = self.like(operand, last_tensor)
            tensors.append(operand)
        if type is None:
            if op_type in _BOOLEAN_OPERATORS:
                type = "bool"
            elif op_type == "Where":
                type = tensors[1].type
            else:
                type = tensors[0].type
        values = [tensor.constant for tensor in tensors if tensor.constant is not None]
        is_constant = len(values) == len(tensors) and op_type in COMPUTE
        if is_constant and type != "bfloat16":  # NumPy itself has no bfloat16
            with np.errstate(all="ignore"):
                return self.constant(COMPUTE[op_type](*values, **attributes), type)
        if self.runtime.lacks(op_type):
            if op_type not in SUBSTITUTES:
                raise MissingOperatorError(op_type)
            return SUBSTITUTES[op_type](self, *tensors, **attributes)
        return self._write(op_type, tensors, type, **attributes)[0]

    def named_op(self, op_type: str, *inputs: Tensor, name: str, **attributes: Any) -> Tensor:
        """Return the output of a node of this ``name``, which is written even for constants."""
        type = "bool" if op_type in _BOOLEAN_OPERATORS else inputs[0].type
        return self._write(op_type, list(inputs), type, name=name, **attributes)[0]

    # The functions of ``xp`` in :mod:`ort_gridsample.reference.coordinates`, named as in NumPy.
    abs = partialmethod(op, "Abs")
    floor = partialmethod(op, "Floor")
    rint = partialmethod(op, "Round")
    sin = partialmethod(op, "Sin")
    sqrt = partialmethod(op, "Sqrt")
    equal = partialmethod(op, "Equal")
    less = partialmethod(op, "Less")
    maximum = partialmethod(op, "Max")
    minimum = partialmethod(op, "Min")
    where = partialmethod(op, "Where")
    fmod = partialmethod(op, "Mod", fmod=1)

    def operand_less_itself(self, x: Tensor) -> Tensor | None:
        """Return t if ``x`` is the difference t - t, which is 0 where t is finite."""
        for node in self._nodes.values():
            is_source = bool(x.name) and x.name in node.output
            if is_source and node.op_type == "Sub" and node.input[0] == node.input[1]:
                return Tensor(self, x.type, node.input[0])
        return None

    def clip(self, x: Tensor, low: TensorLike, high: TensorLike) -> Tensor:
        """Return the nearest values from ``low`` to ``high``."""
        # Few runtimes have a Clip-11 of other types. Limits of a Clip are single numbers.
        has_clip = self.opset >= FIRST_OPSET_WITH_CLIP_OF_ALL_TYPES or x.type == "float32"
        if isinstance(low, Tensor) or isinstance(high, Tensor) or not has_clip:
            return self.minimum(self.maximum(x, low), high)
        return self.op("Clip", x, low, high)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Return ``parts`` joined along an axis."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=axis)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Return ``x`` with its axes in this order."""
        return self.op("Transpose", x, perm=tuple(perm))

    def split(self, x: Tensor, parts: int, size: int, axis: int) -> list[Tensor]:
        """Return ``x`` in ``parts`` parts, each of length ``size`` along ``axis``."""
        if parts == 1:
            return [x]
        if x.constant is not None:
            return [self.constant(part, x.type) for part in np.split(x.constant, parts, axis)]
        sizes = [size] * parts
        if self.opset < FIRST_OPSET_WITH_SPLIT_AS_INPUT:
            return self._write("Split", [x], x.type, parts, axis=axis, split=sizes)
        return self._write("Split", [x, self.constant(sizes)], x.type, parts, axis=axis)

    def slice(self, x: Tensor, start: Tensor, end: Tensor, axis: int | None = None) -> Tensor:
        """Return the elements of ``x`` from ``start`` to ``end``, (1,), along the first or an axis.

        The opset must be 10 or newer.
        """
        axes = [] if axis is None else [self.row(axis)]
        return self.op("Slice", x, start, end, *axes)

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        """Return ``x`` with a new axis of length 1."""
        if self.opset < FIRST_OPSET_WITH_AXES_AS_INPUT:
            return self.op("Unsqueeze", x, axes=[axis])
        return self.op("Unsqueeze", x, self.row(axis))

    def shape_of(self, x: Tensor) -> Tensor:
        """Return the shape of ``x``."""
        return self.op("Shape", x, type="int64")

    def lengths(self, x: Tensor, *axes: int) -> Tensor:
        """Return the lengths of some axes of ``x``."""
        return self.gather(self.shape_of(x), axes)

    def sum(self, x: Tensor, axis: int = 0, keepdims: bool = True) -> Tensor:
        """Return the sum along an axis, which keeps the length 1 or is dropped."""
        if self.opset < FIRST_OPSET_WITH_AXES_AS_INPUT:
            return self.op("ReduceSum", x, axes=(axis,), keepdims=int(keepdims))
        return self.op("ReduceSum", x, self.constant([axis]), keepdims=int(keepdims))

    def prod(self, row: Tensor) -> Tensor:
        """Return the product of the elements of a row, (1,)."""
        return self.op("ReduceProd", row, keepdims=1)

    def pad(self, x: Tensor, before_and_after: Sequence[int]) -> Tensor:
        """Return ``x`` with a number of zeros before and after it on each axis."""
        return self.op("Pad", x, self.constant([*before_and_after] * 2))

    def gather(self, x: Tensor, indices: Tensor | npt.ArrayLike, axis: int = 0) -> Tensor:
        """Return the slices of ``x`` at ``indices`` along ``axis``."""
        if not isinstance(indices, Tensor):
            indices = self.constant(indices)
        return self.op("Gather", x, indices, axis=axis)

    def zeros(self, dims: Sequence[DimLike], type: str, checks: Sequence[Tensor] = ()) -> Tensor:
        """Return a tensor of zeros, or of empty strings; ``checks`` as for :meth:`reshape`."""
        value = self.constant(np.full([1] * len(dims), "" if type == "str" else 0), type)
        return self.op("Expand", value, reduce(Tensor.__add__, checks, self.shape(dims)))

    def expand(self, x: Tensor, dims: Sequence[DimLike]) -> Tensor:
        """Return ``x`` repeated to a shape."""
        return self.op("Expand", x, self.shape(dims))

    def reshape(
        self,
        x: Tensor,
        dims: Sequence[DimLike],
        exact: bool = False,
        checks: Sequence[Tensor] = (),
        name: str = "",
    ) -> Tensor:
        """Return ``x`` in another shape.

        Args:
            x: the tensor to reshape.
            dims: the lengths; one of several may be -1.
            exact: whether no length is replaced by -1, so that the node fails if the numbers of
                elements differ.
            checks: outputs of :func:`.run_errors.write_check`, which are 0. They are added to the
                shape, so that the checks run before this node.
            name: the name of the node, such as the error if it fails.
        """
        if not exact:
            dims = self._with_free_length(dims)
        shape = self.shape(dims)
        is_positive = shape.constant is not None and 0 not in shape.constant
        # Added, because ONNX Runtime replaces the one unknown length of a Concat by -1.
        shape = reduce(Tensor.__add__, checks, shape)
        # Without allowzero, 0 means the input's length; opset 13 cannot write a length of 0.
        has_allowzero = self.opset >= FIRST_OPSET_WITH_ALLOWZERO and self.runtime.has_allowzero
        attributes: dict[str, Any] = {}
        if has_allowzero and not is_positive:
            attributes["allowzero"] = 1
        if name and x.constant is None:
            return self.named_op("Reshape", x, shape, name=name, **attributes)
        return self.op("Reshape", x, shape, **attributes)

    def _with_free_length(self, dims: Sequence[DimLike]) -> Sequence[DimLike]:
        """Return ``dims`` with -1 for a length that the others imply, which saves arithmetic."""
        known = [dim for dim in dims if isinstance(dim, int)]
        if len(known) == len(dims) - 1 and prod(known) > 0:
            return [dim if isinstance(dim, int) else -1 for dim in dims]
        if not self.runtime.computes_shapes:
            computed = [d for d in dims if isinstance(d, Tensor) and d not in self._lengths]
            if len(computed) == 1:
                return [-1 if dim is computed[0] else dim for dim in dims]
        return dims

    def shape(self, dims: Sequence[DimLike]) -> Tensor:
        """Return a shape as a tensor."""
        parts = [self.constant([dim]) if isinstance(dim, int) else dim for dim in dims]
        return self.concatenate(parts)

    def product(self, dims: Sequence[DimLike]) -> DimLike:
        """Return the product of lengths."""
        known = prod(dim for dim in dims if isinstance(dim, int))
        unknown = [dim for dim in dims if not isinstance(dim, int)]
        if not unknown or known == 0:
            return known
        total = reduce(mul, unknown)
        return total if known == 1 else total * known

    def dims(
        self,
        x: Tensor,
        known: Sequence[Dim],
        rank_error: str = "",
    ) -> list[DimLike]:
        """Return the lengths of the axes of ``x``.

        Args:
            x: a tensor of any rank.
            known: its shape, with integers where lengths are known.
            rank_error: the error if its rank is not that of ``known``, as the name of the node that
                fails in a run. Empty if the rank is known.
        """
        return [
            dim if isinstance(dim, int) else self._length(x, axis, len(known), rank_error)
            for axis, dim in enumerate(known)
        ]

    def _length(self, x: Tensor, axis: int, rank: int, rank_error: str) -> Tensor:
        """Return the length of an axis, int64 of shape (1,)."""
        shape = self.op("Shape", x, type="int64")
        if rank_error:
            shape = self.reshape(shape, [rank], exact=True, name=rank_error)
        if not self.runtime.computes_shapes:
            length = self.op("Slice", shape, self.constant([axis]), self.constant([axis + 1]))
        else:
            length = self.gather(shape, [axis])
        self._lengths.append(length)
        return length

    def finish(self, result: Tensor, name: str) -> list[onnx.NodeProto]:
        """Return the nodes that ``result`` needs, in order, and call the result ``name``."""
        return self.finish_all({name: result})

    def finish_all(self, results: Mapping[str, Tensor] | None = None) -> list[onnx.NodeProto]:
        """Return the nodes that some values need, and the added nodes, in order.

        Args:
            results: the new names of the values, and the values. A value that no node writes, or
                that has two names, gets an Identity.
        """
        new_names: dict[str, str] = {}
        for name, result in (results or {}).items():
            result_name = self.name_of(result)
            is_written = any(result_name in node.output for node in self._nodes.values())
            if not is_written or result_name in new_names:
                result_name = self._write("Identity", [result], result.type)[0].name
            new_names[result_name] = name
        needed = {*new_names, *(name for node in self._kept for name in node.output)}
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes.values()):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        nodes.reverse()
        for node in nodes:
            for names in (node.input, node.output):
                names[:] = [new_names.get(value, value) for value in names]
        return nodes

    def _write(
        self,
        op_type: str,
        inputs: list[Tensor],
        type: str,
        n_outputs: int = 1,
        name: str = "",
        **attributes: Any,
    ) -> list[Tensor]:
        """Return the outputs of a node, which is written unless there is an equal one.

        Args:
            type: the type of the outputs.
            n_outputs: the number of outputs.
            name: the name of the node, or a part of it without the names of a model. By default,
                the operator is a part of the name.
        """
        input_names = [self.name_of(tensor) for tensor in inputs]
        node = helper.make_node(op_type, input_names, [], **attributes)
        key = node.SerializeToString() + name.encode()
        if key not in self._nodes:
            value_name = self._new_name(op_type)
            node.name = value_name
            if name and self._names is None:
                node.name = self._new_name(name)
            elif name and self._names is not None:
                node.name = self._names.new(name)
            if n_outputs == 1:
                node.output.append(value_name)
            else:
                node.output.extend(f"{value_name}_{index}" for index in range(n_outputs))
            self._nodes[key] = node
        return [Tensor(self, type, output) for output in self._nodes[key].output]

    def _new_name(self, part: str) -> str:
        """Return a new name that ends with ``part``."""
        if self._names is None:
            return f"{self.prefix}/{part}_{len(self._nodes)}"
        return self._names.new(f"{self.prefix}_{part.lower()}")

    def name_of(self, x: Tensor) -> str:
        """Return the name of ``x``, which is written now if it is a constant."""
        if x.constant is None:
            return x.name
        value = numpy_helper.from_array(np.array(x.constant, order="C"), "value")
        if x.type == "bfloat16":
            numbers = x.constant.ravel().tolist()
            value = helper.make_tensor("value", elem_type(x.type), x.constant.shape, numbers)
        return self._write("Constant", [], x.type, value=value)[0].name
