"""Write ONNX nodes as expressions: ``(g + 1) * scale`` becomes an Add and a Mul.

An :class:`Expressions` holds the nodes of one lowering, a :class:`Tensor` is a value in it. An operation on constants
is computed by NumPy at once, equal nodes are written once, and nodes whose outputs nobody reads are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod, reduce
from math import prod
from operator import mul
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...graph.element_types import elem_type
from ...reference.arrays import Array
from .runtimes import ANY, Runtime


def _operator(op_type: str) -> Callable[[Tensor, Operand], Tensor]:  # pragma: no mutate block
    """The method of :class:`Tensor` for a binary operator."""
    return lambda self, other: self.owner.op(op_type, self, other)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value: an input, the output of a node, or a constant that becomes a node when another node reads it.

    ``type`` is a name in :data:`ort_gridsample.spec.TYPES`. A constant has no name.
    """

    owner: Expressions
    type: str
    name: str
    constant: Array | None = None

    __add__ = __radd__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = __rmul__ = _operator("Mul")
    __truediv__ = _operator("Div")

    def __rsub__(self, other: Operand) -> Tensor:
        return self.owner.op("Sub", other, self)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Its type as NumPy's."""
        return np.dtype(self.type)

    def astype(self, to: str, copy: bool = False) -> Tensor:
        """The same values as type ``to``; tensors are never changed in place, so ``copy`` has no effect."""
        return self if to == self.type else self.owner.op("Cast", self, type=to, to=elem_type(to))


Operand: TypeAlias = "Tensor | float | Array"
Dim: TypeAlias = "int | Tensor"  #: a known length, or a one-element int64 tensor
#: What NumPy has, and what it calls otherwise than ONNX does.
_ALIKE = ("Abs", "Add", "Clip", "Div", "Equal", "Floor", "Less", "Max", "Min", "Mul", "Round", "Sin", "Sub", "Where")
_NAMES = {"Div": "divide", "Max": "maximum", "Min": "minimum", "Mul": "multiply", "Round": "rint", "Sub": "subtract"}
_COMPUTE: Mapping[str, Callable[..., Array]] = {
    **{op_type: getattr(np, _NAMES.get(op_type, op_type.lower())) for op_type in _ALIKE},
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Gather": lambda x, at, axis: np.take(x, at, axis),
    "Mod": lambda x, y, fmod: np.fmod(x, y),
    "Range": np.arange,
    "ReduceSum": lambda x, axes, keepdims: x.sum(tuple(axes), keepdims=bool(keepdims)),
    "Reshape": lambda x, shape, **_: x.reshape(shape),
    "Transpose": lambda x, perm: x.transpose(perm),
}
_BOOLEAN = ("Equal", "Less")
#: The operators whose results are rounded. A float64 result, rounded to float32, is the float32 result of each.
_INEXACT = ("Add", "Div", "Mul", "Sub")


def _mod_by_floor(e: Expressions, x: Tensor, y: Operand, fmod: int) -> Tensor:
    whole = e.floor(e.abs(x) / y) * y
    return e.where(e.less(x, 0), x + whole, x - whole)


def _rounded_to_float32(e: Expressions, x: Tensor) -> Tensor:
    """``x``, of type float64, rounded to the nearest float32 (to even at ties); infinity and NaN become NaN.

    No float32 appears, so that a converter to float16 has nothing to convert. What rounds to infinity becomes NaN.
    Source: Veltkamp's splitting, in Dekker, "A floating-point technique for extending the available precision" (1971).
    """
    shift = 2.0 ** (np.finfo("float64").nmant - np.finfo("float32").nmant)
    scale = 2.0**867  # with it the product below overflows where float32 does, from 2**128 on
    product = x * ((shift + 1) * scale)
    rest = x * scale - product
    return (product + rest) * (1 / scale)


def _round_by_sum(e: Expressions, x: Tensor) -> Tensor:
    large = e.constant(2.0 ** np.finfo(x.type).nmant, x.type)  # a sum with it has no fraction
    beside = e.where(e.less(x, 0), 0 - large, large)
    return e.where(e.less(e.abs(x), large), x + beside - beside, x)


#: For an operator that a runtime is without, the same of others.
_INSTEAD: Mapping[str, Callable[..., Tensor]] = {
    "Max": lambda e, x, y: e.where(e.less(x, y), y, x),  # exact, as a sum of differences is not
    "Min": lambda e, x, y: e.where(e.less(x, y), x, y),
    "Mod": _mod_by_floor,
    "Round": _round_by_sum,
}


class Expressions:
    """The nodes of one lowering: every name among them begins with ``prefix``, the lowered node's name, and a slash.

    They are for ``opset``, a version of the ONNX domain from 11 on, and for ``runtime``.
    """

    def __init__(self, prefix: str, opset: int, runtime: Runtime = ANY) -> None:
        self.prefix, self.opset, self.runtime = prefix, opset, runtime
        self._nodes: dict[bytes, onnx.NodeProto] = {}  # by their bytes without names
        self._lengths: list[Tensor] = []
        self._rounds_to_float32 = False

    def input(self, name: str, type: str) -> Tensor:
        """A value from outside."""
        return Tensor(self, type, name)

    def constant(self, value: npt.ArrayLike, type: str = "int64") -> Tensor:
        """A constant."""
        return Tensor(self, type, "", np.asarray(value, "object" if type == "str" else type))

    @contextmanager
    def rounding_to_float32(self) -> Iterator[None]:
        """Round the results of float64 arithmetic to float32 inside this context: float32 arithmetic in float64."""
        self._rounds_to_float32 = True
        try:
            yield
        finally:
            self._rounds_to_float32 = False

    def op(self, op_type: str, *inputs: Operand, type: str | None = None, **attributes: Any) -> Tensor:
        """The output of an operator, by default of its first input's type; numbers take the type of a tensor beside."""
        result = self._op(op_type, *inputs, type=type, **attributes)
        if self._rounds_to_float32 and op_type in _INEXACT and result.type == "float64":
            self._rounds_to_float32 = False  # in the rounding itself
            result = _rounded_to_float32(self, result)
            self._rounds_to_float32 = True
        return result

    def _op(self, op_type: str, *inputs: Operand, type: str | None = None, **attributes: Any) -> Tensor:
        *_, beside = [operand for operand in inputs if isinstance(operand, Tensor)]
        tensors = [x if isinstance(x, Tensor) else self.constant(x, beside.type) for x in inputs]
        if type is None:
            type = "bool" if op_type in _BOOLEAN else tensors[op_type == "Where"].type
        values = [x.constant for x in tensors if x.constant is not None]
        if len(values) == len(tensors) and op_type in _COMPUTE and type != "bfloat16":  # NumPy itself has none
            with np.errstate(all="ignore"):
                return self.constant(_COMPUTE[op_type](*values, **attributes), type)
        if op_type in self.runtime.without:
            return _INSTEAD[op_type](self, *tensors, **attributes)
        return self._write(op_type, tensors, type, **attributes)[0]

    # As NumPy names them: the core's functions take these for NumPy's, see ``core.coordinates``.
    abs, floor, rint, sin = map(partial(partialmethod, op), ("Abs", "Floor", "Round", "Sin"))
    equal, less, maximum, minimum, where = map(partial(partialmethod, op), ("Equal", "Less", "Max", "Min", "Where"))
    fmod = partialmethod(op, "Mod", fmod=1)

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        """The nearest value between the two."""
        if self.opset < 12 and x.type != "float32":  # few runtimes have a Clip-11 of it
            return self.minimum(self.maximum(x, low), high)
        return self.op("Clip", x, low, high)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """The parts one after the other."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=axis)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """``x`` with its axes in this order."""
        return self.op("Transpose", x, perm=tuple(perm))

    def split(self, x: Tensor, parts: int, size: int, axis: int) -> list[Tensor]:
        """``x`` in so many parts, each ``size`` long on ``axis``."""
        if parts == 1:
            return [x]
        if x.constant is not None:
            return [self.constant(part, x.type) for part in np.split(x.constant, parts, axis)]
        sizes = [size] * parts
        if self.opset < 13:
            return self._write("Split", [x], x.type, parts, axis=axis, split=sizes)
        return self._write("Split", [x, self.constant(sizes)], x.type, parts, axis=axis)

    def sum(self, x: Tensor, axis: int = 0, keepdims: Literal[True] = True) -> Tensor:
        """The sum along an axis, which stays, of length 1."""
        if self.opset < 13:
            return self.op("ReduceSum", x, axes=(axis,), keepdims=1)
        return self.op("ReduceSum", x, self.constant([axis]), keepdims=1)

    def pad(self, x: Tensor, before_and_after: Sequence[int]) -> Tensor:
        """``x`` with so many zeros before and after it on each axis."""
        return self.op("Pad", x, self.constant([*before_and_after] * 2))

    def gather(self, x: Tensor, at: Tensor | npt.ArrayLike, axis: int = 0) -> Tensor:
        """The slices of ``x`` at these indices along ``axis``."""
        return self.op("Gather", x, at if isinstance(at, Tensor) else self.constant(at), axis=axis)

    def zeros(self, dims: Sequence[Dim], type: str, zeros: Sequence[Tensor] = ()) -> Tensor:
        """A tensor of zeros, or of empty strings; ``zeros`` as for :meth:`reshape`."""
        value = self.constant(np.full([1] * len(dims), "" if type == "str" else 0), type)
        return self.op("Expand", value, reduce(Tensor.__add__, zeros, self.shape(dims)))

    def expand(self, x: Tensor, dims: Sequence[Dim]) -> Tensor:
        """``x`` repeated to this shape."""
        return self.op("Expand", x, self.shape(dims))

    def reshape(self, x: Tensor, dims: Sequence[Dim], exact: bool = False, zeros: Sequence[Tensor] = ()) -> Tensor:
        """``x`` in this shape; one of several dims may be -1.

        With ``exact`` no dim is replaced by -1, so that the node fails where the numbers of elements differ. ``zeros``
        are added to the shape, so that the nodes of :meth:`require_zeros` run before.
        """
        known = [dim for dim in dims if isinstance(dim, int)]
        if exact:
            pass
        elif len(known) == len(dims) - 1 and prod(known) > 0:
            dims = [dim if isinstance(dim, int) else -1 for dim in dims]  # needs no arithmetic
        elif "lengths" in self.runtime.without:
            computed = [dim for dim in dims if isinstance(dim, Tensor) and dim not in self._lengths]
            if len(computed) == 1:
                dims = [-1 if dim is computed[0] else dim for dim in dims]
        shape = self.shape(dims)
        literal = shape.constant is not None and 0 not in shape.constant
        # An Add, as ONNX Runtime replaces the one length that it does not know in a Concat by -1.
        shape = reduce(Tensor.__add__, zeros, shape)
        # Without allowzero a 0 stands for the input's length; opset 13 cannot write a length of 0.
        if literal or self.opset < 14 or "allowzero" in self.runtime.without:
            return self.op("Reshape", x, shape)
        return self.op("Reshape", x, shape, allowzero=1)

    def require_equal(self, lengths: Sequence[Dim], expected: Sequence[Dim], name: str) -> Tensor | None:
        """A 0 from a node called ``name`` that fails at run time if ``lengths`` are not ``expected``.

        Pairs of known lengths are not compared. None: all are known.
        """
        pairs = [
            (found, other)
            for found, other in zip(lengths, expected, strict=True)
            if not (isinstance(found, int) and isinstance(other, int))
        ]
        if not pairs:
            return None
        differences = self.shape([found for found, _ in pairs]) - self.shape([other for _, other in pairs])
        return self.require_zeros(differences, len(pairs), name)

    def require_zeros(self, numbers: Tensor, count: int, name: str) -> Tensor:
        """A 0, int64 of shape (1,), from a node called ``name`` that fails at run time if one of ``numbers`` is not 0.

        ``numbers`` are int64 of shape (``count``,). The node is a Gather from one element: of the even indices, only 0
        is in bounds.
        """
        (zeros,) = self._write("Gather", [self.constant([0]), numbers * 2], "int64", name=name, axis=0)
        return zeros if count == 1 else self.gather(zeros, [0])

    def shape(self, dims: Sequence[Dim]) -> Tensor:
        """A shape as a tensor."""
        return self.concatenate([self.constant([dim]) if isinstance(dim, int) else dim for dim in dims])

    def product(self, dims: Sequence[Dim]) -> Dim:
        """The product of some lengths."""
        known = prod(dim for dim in dims if isinstance(dim, int))
        unknown = [dim for dim in dims if not isinstance(dim, int)]
        if not unknown or known == 0:
            return known
        total = reduce(mul, unknown)
        return total if known == 1 else total * known

    def dims(self, x: Tensor, known: Sequence[int | str | None], unranked: str = "") -> list[Dim]:
        """The lengths of the axes of ``x``, taken from ``known`` where that has them.

        ``unranked`` is the name of an argument of unknown rank. A node then fails if its rank is not that of ``known``.
        """
        return [
            dim if isinstance(dim, int) else self._length(x, axis, len(known), unranked)
            for axis, dim in enumerate(known)
        ]

    def _length(self, x: Tensor, axis: int, rank: int, unranked: str) -> Tensor:
        shape = self.op("Shape", x, type="int64")
        if unranked:
            name = f"{unranked}_must_have_{rank}_axes"
            (shape,) = self._write("Reshape", [shape, self.constant([rank])], "int64", name=name)
        if "lengths" in self.runtime.without:
            length = self.op("Slice", shape, self.constant([axis]), self.constant([axis + 1]))
        else:
            length = self.gather(shape, [axis])
        self._lengths.append(length)
        return length

    def finish(self, result: Tensor, name: str) -> list[onnx.NodeProto]:
        """The nodes that ``result`` needs, in order; it is called ``name``."""
        last = self._name(result)
        needed, nodes = {last}, list[onnx.NodeProto]()
        for node in reversed(self._nodes.values()):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        nodes.reverse()
        for node in nodes:
            for names in (node.input, node.output):
                names[:] = [name if each == last else each for each in names]
        return nodes

    def _write(
        self, op_type: str, inputs: list[Tensor], type: str, parts: int = 1, name: str = "", **attributes: Any
    ) -> list[Tensor]:
        """The outputs of a node, written now if it is not there yet; ``name`` is part of its name."""
        node = helper.make_node(op_type, [*map(self._name, inputs)], [], **attributes)
        name = f"{self.prefix}/{name or op_type}_{len(self._nodes)}"
        node = self._nodes.setdefault(node.SerializeToString(), node)
        if not node.output:
            node.name = name
            node.output.extend([name] if parts == 1 else [f"{name}_{i}" for i in range(parts)])
        return [Tensor(self, type, output) for output in node.output]

    def _name(self, x: Tensor) -> str:
        """The name of ``x``; a constant is written now."""
        if x.constant is None:
            return x.name
        value = numpy_helper.from_array(np.array(x.constant, order="C"), "value")
        return self._write("Constant", [], x.type, value=value)[0].name
