"""Write ONNX nodes as expressions: ``(g + 1) * scale`` becomes an Add and a Mul, and what is constant is computed here.

An :class:`Expressions` holds the nodes of one lowering, a :class:`Tensor` is a value in it. An operation whose inputs
are all constant is done in NumPy at once; one that was written before is not written twice; what nobody reads in the
end is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ...core.arrays import Array
from ..element_types import elem_type
from .runtimes import ANY, Runtime


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value: an input, the output of a node, or a constant that becomes a node when another node reads it.

    Attributes:
        owner: the expressions it belongs to.
        type: its element type, a name in :data:`ort_gridsample.spec.TYPES`.
        name: its name among the nodes; empty for a constant.
        constant: its value, where it is known.
    """

    owner: Expressions
    type: str
    name: str
    constant: Array | None = None

    def __add__(self, other: Operand) -> Tensor:
        return self.owner.op("Add", self, other)

    def __sub__(self, other: Operand) -> Tensor:
        return self.owner.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.owner.op("Sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.owner.op("Mul", self, other)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.owner.op("Div", self, other)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Its type as NumPy's."""
        return np.dtype(self.type)

    def astype(self, to: str, copy: bool = False) -> Tensor:
        """The same values as type ``to``; nothing is ever written to, so that ``copy`` has no meaning."""
        return self if to == self.type else self.owner.op("Cast", self, type=to, to=elem_type(to))


Operand: TypeAlias = "Tensor | float | Array"
Dim: TypeAlias = "int | Tensor"  #: a known length, or a one-element int64 tensor

_COMPUTE: Mapping[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "Clip": np.clip,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Div": np.divide,
    "Equal": np.equal,
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Floor": np.floor,
    "Gather": lambda x, at, axis: np.take(x, at, axis),
    "Less": np.less,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mod": lambda x, y, fmod: np.fmod(x, y),
    "Mul": np.multiply,
    "Range": np.arange,
    "Reshape": lambda x, shape, **_: x.reshape(shape),
    "Round": np.rint,
    "Sub": np.subtract,
    "Transpose": lambda x, perm: x.transpose(perm),
    "Where": np.where,
}
_BOOLEAN = ("Equal", "Less")


class Expressions:
    """The nodes of one lowering: every name among them begins with ``prefix`` and a slash.

    Args:
        prefix: the name of the node that is lowered.
        opset: the version of the ONNX domain that the nodes are for, 11 or newer.
        runtime: what the nodes are for.
    """

    def __init__(self, prefix: str, opset: int, runtime: Runtime = ANY) -> None:
        self._prefix = prefix
        self._opset = opset
        self.runtime = runtime
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[object, list[str]] = {}
        self._lengths: list[Tensor] = []
        self._floats: set[str] = set()  # the names of what is of float32

    def input(self, name: str, type: str) -> Tensor:
        """A value from outside."""
        return Tensor(self, type, name)

    def constant(self, value: npt.ArrayLike, type: str = "int64") -> Tensor:
        """A value that is known."""
        return Tensor(self, type, "", np.asarray(value, "object" if type == "str" else type))

    def op(self, op_type: str, *inputs: Operand, type: str | None = None, **attributes: Any) -> Tensor:
        """The output of this operation; Python numbers take the type of the tensor beside them."""
        *_, beside = [operand for operand in inputs if isinstance(operand, Tensor)]
        tensors = [x if isinstance(x, Tensor) else self.constant(x, beside.type) for x in inputs]
        if type is None:
            type = "bool" if op_type in _BOOLEAN else tensors[op_type == "Where"].type
        values = [x.constant for x in tensors if x.constant is not None]
        if len(values) == len(tensors) and op_type in _COMPUTE and type != "bfloat16":  # NumPy itself has none
            with np.errstate(all="ignore"):
                return self.constant(_COMPUTE[op_type](*values, **attributes), type)
        return self._tensors(type, self._node(op_type, tensors, 1, attributes))[0]

    def split(self, x: Tensor, parts: int, size: int, axis: int) -> list[Tensor]:
        """``x`` in so many parts, each ``size`` long on ``axis``."""
        if parts == 1:
            return [x]
        if x.constant is not None:
            return [self.constant(part, x.type) for part in np.split(x.constant, parts, axis)]
        sizes = [size] * parts
        if self._opset < 13:
            names = self._node("Split", [x], parts, {"axis": axis, "split": tuple(sizes)})
        else:
            names = self._node("Split", [x, self.constant(sizes)], parts, {"axis": axis})
        return self._tensors(x.type, names)

    def sum(self, x: Tensor) -> Tensor:
        """The sum along the first axis, which stays, of length 1."""
        if self._opset < 13:
            return self.op("ReduceSum", x, axes=(0,), keepdims=1)
        return self.op("ReduceSum", x, self.constant([0]), type=x.type, keepdims=1)

    def pad(self, x: Tensor, before_and_after: Sequence[int]) -> Tensor:
        """``x`` with so many zeros before and after it on each axis."""
        return self.op("Pad", x, self.constant([*before_and_after] * 2), type=x.type)

    def gather(self, x: Tensor, at: Tensor | npt.ArrayLike, axis: int = 0) -> Tensor:
        """The slices of ``x`` at these indices along ``axis``."""
        return self.op("Gather", x, at if isinstance(at, Tensor) else self.constant(at), type=x.type, axis=axis)

    # What these are called is NumPy's choice, as they stand in its place: see ``core.coordinates``.

    def where(self, condition: Tensor, x: Operand, y: Operand) -> Tensor:
        """``x`` where the condition holds, elsewhere ``y``."""
        return self.op("Where", condition, x, y)

    def equal(self, x: Tensor, y: Operand) -> Tensor:
        """Where the two are equal."""
        return self.op("Equal", x, y)

    def abs(self, x: Tensor) -> Tensor:
        """The absolute value."""
        return self.op("Abs", x)

    def floor(self, x: Tensor) -> Tensor:
        """The next whole number below."""
        return self.op("Floor", x)

    def rint(self, x: Tensor) -> Tensor:
        """The nearest whole number, of two the even one."""
        if "Round" in self.runtime.without:
            large = self.constant(2.0 ** np.finfo(x.type).nmant, x.type)  # beside which there is no fraction
            beside = self.where(self.less(x, 0), 0 - large, large)
            return self.where(self.less(self.abs(x), large), x + beside - beside, x)
        return self.op("Round", x)

    def fmod(self, x: Tensor, y: Operand) -> Tensor:
        """The remainder, of the sign of ``x``; ``y`` is positive."""
        if "Mod" in self.runtime.without:
            whole = self.floor(self.abs(x) / y) * y
            return self.where(self.less(x, 0), x + whole, x - whole)
        return self.op("Mod", x, y, fmod=1)

    def maximum(self, x: Tensor, y: Operand) -> Tensor:
        """The larger one of the two."""
        if "Max" in self.runtime.without:  # no sum of differences, which would be rounded
            return self.where(self.less(x, y), y, x)
        return self.op("Max", x, y)

    def minimum(self, x: Tensor, y: Operand) -> Tensor:
        """The smaller one of the two."""
        if "Min" in self.runtime.without:
            return self.where(self.less(x, y), x, y)
        return self.op("Min", x, y)

    def less(self, x: Tensor, y: Operand) -> Tensor:
        """Where the first is less than the second."""
        return self.op("Less", x, y)

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        """The nearest value between the two."""
        if self._opset < 12 and x.type != "float32":  # few runtimes have a Clip-11 of it
            return self.minimum(self.maximum(x, low), high)
        return self.op("Clip", x, low, high)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """The parts one after the other."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=axis)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """``x`` with its axes in this order."""
        return self.op("Transpose", x, perm=tuple(perm))

    def expand(self, x: Tensor, dims: Sequence[Dim]) -> Tensor:
        """``x`` repeated to this shape."""
        return self.op("Expand", x, self.shape(dims), type=x.type)

    def reshape(self, x: Tensor, dims: Sequence[Dim]) -> Tensor:
        """``x`` in this shape; one of several dims may be -1."""
        known = [dim for dim in dims if isinstance(dim, int)]
        if len(known) == len(dims) - 1 and prod(known) > 0:
            dims = [dim if isinstance(dim, int) else -1 for dim in dims]  # needs no arithmetic
        elif "lengths" in self.runtime.without:
            computed = [dim for dim in dims if isinstance(dim, Tensor) and dim not in self._lengths]
            if len(computed) == 1:
                dims = [-1 if dim is computed[0] else dim for dim in dims]
        shape = self.shape(dims)
        literal = shape.constant is not None and 0 not in shape.constant
        # Without allowzero a 0 stands for "as in the input"; opset 13 has no way to say a 0 that is a 0.
        allowzero = {} if literal or self._opset < 14 or "allowzero" in self.runtime.without else {"allowzero": 1}
        return self.op("Reshape", x, shape, type=x.type, **allowzero)

    def shape(self, dims: Sequence[Dim]) -> Tensor:
        """A shape as a tensor."""
        return self.concatenate([self.length(dim) for dim in dims])

    def length(self, dim: Dim) -> Tensor:
        """One length as a tensor of one element."""
        return self.constant([dim]) if isinstance(dim, int) else dim

    def product(self, dims: Sequence[Dim]) -> Dim:
        """The product of some lengths."""
        known = prod(dim for dim in dims if isinstance(dim, int))
        unknown = [dim for dim in dims if not isinstance(dim, int)]
        if not unknown or known == 0:
            return known
        total = unknown[0]
        for dim in unknown[1:]:
            total = total * dim
        return total if known == 1 else total * known

    def dims(self, x: Tensor, known: Sequence[int | str | None]) -> list[Dim]:
        """The lengths of the axes of ``x``, taken from ``known`` where that has them."""
        found: list[Dim] = []
        for axis, dim in enumerate(known):
            if isinstance(dim, int):
                found.append(dim)
            else:
                shape = self.op("Shape", x, type="int64")
                if "lengths" in self.runtime.without:
                    length = self.op("Slice", shape, self.constant([axis]), self.constant([axis + 1]), type="int64")
                else:
                    length = self.gather(shape, [axis])
                self._lengths.append(length)
                found.append(length)
        return found

    def finish(self, result: Tensor, name: str) -> list[onnx.NodeProto]:
        """The nodes that ``result`` needs, in order; its name becomes ``name``."""
        (last,) = self._names([result])
        needed, nodes = {last}, []
        for node in reversed(self._nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.append(node)
        nodes = self._unshared(nodes[::-1]) if "shared" in self.runtime.without else nodes[::-1]
        for node in nodes:
            for names in (node.input, node.output):
                names[:] = [name if each == last else each for each in names]
        return nodes

    def _unshared(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The ``nodes``, each of which reads a float32 by a name of its own, which comes by way of float64.

        Only what is gathered from several may read: it is pixels.
        """
        readers = Counter(name for node in nodes for name in _reads(node))
        shared = {name for name, count in readers.items() if count > 1 and name in self._floats}
        made: list[onnx.NodeProto] = []

        def cast(source: str, name: str, to: int) -> str:
            made.append(helper.make_node("Cast", [source], [name], name, to=to))
            return name

        for node in nodes:
            for i, name in enumerate(node.input):
                if name in shared.intersection(_reads(node)):
                    alone = f"{self._prefix}/Cast_{len(self._nodes) + len(made)}"
                    node.input[i] = cast(f"{name}_float64", alone, TensorProto.FLOAT)
            made.append(node)
            for name in shared.intersection(node.output):
                cast(name, f"{name}_float64", TensorProto.DOUBLE)
        return made

    def _node(self, op_type: str, inputs: list[Tensor], outputs: int, attributes: dict[str, Any]) -> list[str]:
        names = self._names(inputs)
        return self._once((op_type, *names, *attributes.items()), op_type, names, outputs, attributes)

    def _once(
        self, key: object, op_type: str, inputs: list[str], outputs: int, attributes: dict[str, Any]
    ) -> list[str]:
        if key not in self._known:
            name = f"{self._prefix}/{op_type}_{len(self._nodes)}"
            found = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
            self._nodes.append(helper.make_node(op_type, inputs, found, name, **attributes))
            self._known[key] = found
        return self._known[key]

    def _tensors(self, type: str, names: list[str]) -> list[Tensor]:
        if type == "float32":
            self._floats.update(names)
        return [Tensor(self, type, name) for name in names]

    def _names(self, tensors: list[Tensor]) -> list[str]:
        return [x.name if x.constant is None else self._written(x.constant, x.type) for x in tensors]

    def _written(self, value: Array, type: str) -> str:
        """The name of the node that holds this constant."""
        tensor = numpy_helper.from_array(np.array(value, order="C"), "value")
        names = self._once(tensor.SerializeToString(), "Constant", [], 1, {"value": tensor})
        return self._tensors(type, names)[0].name


def _reads(node: onnx.NodeProto) -> Sequence[str]:
    """The values that a node computes with, each as often as it reads it."""
    return node.input[1:] if node.op_type == "Gather" else node.input
