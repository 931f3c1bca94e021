"""The targets ``primitives``, basic standard operators, and ``ai.onnx-2d``, GridSamples of two spatial axes."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import count

import onnx
from onnx import helper

from ...detection.helpers import lowered_name
from ...detection.match import Match
from ...errors import GridSampleError
from ...graph.scope import Names
from ...reference.arrays import Array
from . import FUNCTIONS_DOMAIN, Replacement, Target, primitives, two_axes
from .expressions import Expressions
from .runtimes import ANY, Runtime


class Primitives(Target):
    """Basic standard operators for a ``runtime``.

    With ``functions``, nodes that are lowered alike share a model-local function; some are ``there`` already.
    """

    reads_decomposed = False
    _first_opset = primitives.FIRST_OPSET
    _lower_grid_sample = staticmethod(primitives.lower_grid_sample)

    def __init__(
        self, functions: bool = False, there: Iterable[onnx.FunctionProto] = (), runtime: Runtime = ANY
    ) -> None:
        self._functions, self._runtime = functions, runtime
        self._shared = {_body_of(function): function for function in there if function.domain == FUNCTIONS_DOMAIN}
        self._grids: dict[tuple[int, str], Array] = {}  # of AffineGrids that came out constant

    def takes(self, match: Match) -> bool:
        return not match.record.unrolled

    def needs_inlining(self, match: Match) -> bool:
        """With ``functions`` where calls differ in types, ranks or attributes; else always: many runtimes have none."""
        record = match.record
        differ = any(len(found) > 1 for found in (*record.types.values(), *record.ranks.values()))
        return not self._functions or record.passes_on or differ

    def least_opset(self, match: Match) -> int:
        return self._first_opset

    def replace(self, match: Match, names: Names) -> Replacement:
        if self._functions:
            return self._call(match)
        record = match.record
        prefix = match.node.name or record.output
        nodes = self._lower(match, prefix, record.output, {})
        while not names.take_all({name for node in nodes for name in node.output} - {record.output}):
            prefix += "_"
            nodes = self._lower(match, prefix, record.output, {})
        if len(nodes) == 1 and nodes[0].op_type == "Constant":
            self._grids[id(match.scope), record.output] = onnx.numpy_helper.to_array(nodes[0].attribute[0].t)
        return Replacement(nodes, reads_shapes=True)

    def _call(self, match: Match) -> Replacement:
        """A call of a function that holds these nodes."""
        record = match.record
        values = dict.fromkeys(value for value in record.values.values() if value)
        inputs = {value: f"input{i}" for i, value in enumerate(values)}
        nodes = self._lower(match, record.operator, "output", inputs)
        read = {name for node in nodes for name in node.input}
        arguments = [value for value, name in inputs.items() if name in read]
        parameters, imports = [inputs[value] for value in arguments], [helper.make_opsetid("", match.scope.opsets[""])]
        body = helper.make_function(FUNCTIONS_DOMAIN, "", parameters, ["output"], nodes, imports)
        function = self._shared.setdefault(_body_of(body), body)
        if not function.name:
            taken, names = {each.name for each in self._shared.values()}, (f"{record.operator}_{n}" for n in count(1))
            function.name = next(name for name in names if name not in taken)
        named = function.name, arguments, [record.output], match.node.name, match.node.doc_string
        call = helper.make_node(*named, FUNCTIONS_DOMAIN)
        return Replacement([call], functions=[function], reads_shapes=True)

    def _lower(self, match: Match, name: str, output: str, inputs: Mapping[str, str]) -> list[onnx.NodeProto]:
        """The nodes, in which ``inputs`` are the names of the node's inputs, if others than its own."""
        record = match.record
        first, second = (self._value(match, argument, inputs) for argument in record.values)
        e, aligned = Expressions(name, match.scope.opsets.get("", 0), self._runtime), bool(record.align_corners)
        if record.operator == "AffineGrid":
            grid, nodes = first, primitives.lower_affine_grid(e, first, second, output, align_corners=aligned)
        else:
            how = {"mode": str(record.mode), "padding_mode": str(record.padding_mode)}
            grid, nodes = second, self._lower_grid_sample(e, first, second, output, **how, align_corners=aligned)
        for node in nodes:
            node.name = lowered_name(name, node.name.removeprefix(f"{name}/"), grid.name in node.input)
        return nodes

    def _value(self, match: Match, argument: str, inputs: Mapping[str, str]) -> primitives.Value:
        record = match.record
        types = record.types[argument]
        if not types:
            raise GridSampleError(record.where, argument, "of unknown type", "a type that is known before it runs")
        name = record.values[argument]
        constant = record.constants.get(argument, self._grids.get((id(match.scope.home(name)), name)))
        shape = _common([value.shape for value in record.inputs[argument]])
        return primitives.Value(inputs.get(name, name), types[0], shape, constant)


class TwoAxes(Primitives):
    """GridSamples of two spatial axes. AffineGrid, which opset 16 does not have, is lowered."""

    _first_opset = two_axes.FIRST_OPSET
    _lower_grid_sample = staticmethod(two_axes.lower_grid_sample)

    def takes(self, match: Match) -> bool:
        record = match.record
        is_one = (record.dialect.name, record.operator, record.spatial_axes) == ("ai.onnx", "GridSample", (2,))
        # No opset that is written has it with bfloat16.
        return super().takes(match) and (not is_one or any("bfloat16" in types for types in record.types.values()))


def _body_of(function: onnx.FunctionProto) -> bytes:
    """The bytes of a function without its name."""
    copy = deepcopy(function)
    copy.name = ""
    return copy.SerializeToString(deterministic=True)


def _common(shapes: Sequence[tuple[int | str | None, ...] | None]) -> tuple[int | str | None, ...] | None:
    """The dimensions that all of ``shapes`` agree on."""
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    return tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*known, strict=True))
