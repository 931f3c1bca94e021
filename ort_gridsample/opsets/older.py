"""Write the nodes of a model in an older opset.

onnx's version converter compares signatures where it has no adapter, so it keeps nodes whose meaning changed. This
module converts node by node instead, at any depth of If, Loop and Scan. A node goes down one version of its operator at
a time. At each version, in this order:

1. a rule of :data:`_RULES` rewrites the node;
2. the node is kept where the older version of the operator computes the same;
3. the node is replaced by the body that ONNX defines for its operator;
4. the node is recorded as an obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

from .. import spec
from ..errors import GridSampleError, node_label
from ..graph.element_types import elem_type
from ..graph.scope import Names, Nodes, Scope, called, domain_of, scopes, subgraphs
from ..inference.types import Inference
from .schema_functions import body_of, has_body

#: The oldest opset that this module writes.
OLDEST = 11

#: Operator and attribute -> value -> the first opset with this value, where that is newer than the attribute.
_VALUES: dict[tuple[str, str], dict[bytes, int]] = {
    ("Pad", "mode"): {b"wrap": 19},
    ("Resize", "coordinate_transformation_mode"): {b"half_pixel_symmetric": 19},
    ("ScatterElements", "reduction"): {b"min": 18, b"max": 18},
    ("ScatterND", "reduction"): {b"min": 18, b"max": 18},
}
#: Operators and the version that changed the meaning of a node whose signature allows both.
_CHANGED = {("Attention", 24), ("Attention", 25)}
#: Operators that make sequences.
_SEQUENCE_OPS = ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence")
#: Operators that hold graphs -> the first version whose graphs may hand out sequences, and optional values.
_BODY_TYPES = {"If": (13, 16), "Loop": (13, 16)}
#: The first opset in which ReduceMean has its axes as an input.
_COMPUTED_AXES = 18
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class _ObstacleError(Exception):
    """Why a node cannot be written in an older opset: what :class:`GridSampleError` needs besides the node."""

    def __init__(self, argument: str, found: str, expected: str) -> None:
        super().__init__(argument, found, expected)
        self.argument, self.found, self.expected = argument, found, expected


def write_older(model: onnx.ModelProto, version: int, inference: Inference, found: Sequence[Scope]) -> None:
    """Write the nodes of the ONNX domain in the opset ``version``, at least :data:`OLDEST`; functions are inlined.

    ``inference`` has the types of all values in the scopes ``found``.

    Raises:
        GridSampleError: nodes cannot be written in this opset; the error lists all of them.
    """
    names = Names(model, found)
    obstacles: dict[str, _ObstacleError] = {}
    origins: dict[str, str] = {}  # output -> the node of the model that it comes from
    unconverted: set[str] = set()  # the outputs of nodes that are obstacles
    for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
        current = scope.opsets.get("", version)
        replaced: dict[int, Sequence[onnx.NodeProto]] = {}
        for index, node in enumerate(scope.nodes):
            if domain_of(node.domain) or current <= version:
                continue
            label = node_label(node.op_type, called(node))
            writer = _Writer(scope, inference, names, version)
            try:
                older = writer.write(node, current)
            except _ObstacleError as obstacle:
                obstacles[label] = obstacle
                unconverted.update(node.output)
                continue
            origins.update((name, label) for each in older for name in each.output)
            if len(older) != 1 or older[0] != node:
                replaced[index] = older
        scope.replace(replaced)
    for entry in model.opset_import:
        if domain_of(entry.domain) == "":
            entry.version = min(entry.version, version)
    obstacles.update(_forbidden_types(model, inference, found, version, origins, unconverted))
    if obstacles:
        # Inner graphs were visited first; the error lists the nodes in the order of the model.
        labels = [node_label(node.op_type, called(node)) for scope in found for node in scope]
        raise _error({label: obstacles[label] for label in dict.fromkeys((*labels, *obstacles)) if label in obstacles})


def _error(obstacles: dict[str, _ObstacleError]) -> GridSampleError:
    """The error that lists all ``obstacles``, by the nodes that they concern."""
    (label, first), *others = obstacles.items()
    expected = first.expected
    if others:
        lines = [f"{each} ({o.argument} is {o.found}, expected {o.expected})" for each, o in others]
        expected += f"; {len(others)} more cannot be converted: {', '.join(lines)}"
    return GridSampleError(label, first.argument, first.found, expected)


def _forbidden_types(
    model: onnx.ModelProto,
    inference: Inference,
    found: Sequence[Scope],
    version: int,
    origins: dict[str, str],
    unconverted: set[str],
) -> Iterator[tuple[str, _ObstacleError]]:
    """The nodes of ``model`` that have types which the opset ``version`` does not allow, at any depth."""
    after = scopes(model)
    new = all_values(model, after)
    for scope, before in zip(after, found, strict=True):

        def type_of(name: str, scope: Scope = scope, before: Scope = before) -> str | None:
            known = inference.known(before, name).type if before.home(name) is not None else None
            return known or new.known(scope, name).type

        for node in scope:
            if domain_of(node.domain) or not unconverted.isdisjoint(node.output):
                continue
            schema = _schema(node.op_type, version)
            if schema is not None and (obstacle := _forbidden_type(node, schema, version, type_of)) is not None:
                origin = next((origins[name] for name in node.output if name in origins), None)
                yield origin or node_label(node.op_type, called(node)), obstacle


def all_values(model: onnx.ModelProto, found: Sequence[Scope]) -> Inference:
    """The inference of the types of all values that ``model``, whose scopes are ``found``, makes."""
    values = {id(scope): {name for outputs in scope.outputs for name in outputs if name} for scope in found}
    return Inference(model, found, _Elementwise(), values)


class _Elementwise:
    """Tells the inference the types behind operators of ONNX for which onnx infers none."""

    #: Operators whose output has the type of their first input.
    op_types = ("GroupNormalization", "MeanVarianceNormalization")

    def types_of(self, model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
        """The types of the outputs of ``model`` that onnx infers once these operators are replaced by Identity."""
        plain = onnx.ModelProto()
        plain.CopyFrom(model)
        nodes = [node for node in plain.graph.node if node.op_type in self.op_types and not domain_of(node.domain)]
        if not nodes:
            return {}
        for node in nodes:
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1]))
        inferred = shape_inference.infer_shapes(plain).graph
        outputs = [*inferred.value_info, *inferred.output]
        return {value.name: value.type for value in outputs if value.type.tensor_type.elem_type}

    def refusal(self, *args: Any) -> str:
        """Nothing is refused."""
        return ""

    def outputs(self, *args: Any) -> None:
        """Nothing is run."""

    def answers(self, *args: Any) -> None:
        """Nothing is run."""


def _forbidden_type(
    node: onnx.NodeProto, schema: defs.OpSchema, version: int, type_of: Callable[[str], str | None]
) -> _ObstacleError | None:
    """The obstacle that ``node`` is where one of its types is none that ``schema`` allows."""
    bound: dict[str, str] = {}
    for values, parameters in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for position, name in enumerate(values):
            if not name or not parameters or not (type_name := type_of(name)):
                continue
            parameter = parameters[min(position, len(parameters) - 1)]
            is_bound = parameter.is_homogeneous and parameter.type_str not in parameter.types
            first = bound.setdefault(parameter.type_str, type_name) if is_bound else type_name
            if _in_schema(type_name) not in parameter.types:
                return _ObstacleError(
                    f"the type of {name}", type_name, f"a type that opset {version} has for {parameter.name}"
                )
            if first != type_name:
                return _ObstacleError(
                    f"the type of {name}", type_name, f"{first} in opset {version}, as another input has"
                )
    return None


def _in_schema(type_name: str) -> str:
    """A type as the schemas of operators write it."""
    known = spec.TYPES.get(type_name)
    return f"tensor({known.onnx if known is not None else type_name})"


def _schema(op_type: str, version: int) -> defs.OpSchema | None:
    """The schema of an operator of ONNX in the opset ``version``, or None where that has none."""
    try:
        return defs.get_schema(op_type, version, "")
    except defs.SchemaError:
        return None


@dataclass
class _Step:
    """A node that is taken to the opset before ``since``, the version of its operator, and what is known of it."""

    writer: _Writer
    node: onnx.NodeProto  #: a copy, which rules may change
    since: int

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or ``default``."""
        given = next((each for each in self.node.attribute if each.name == name), None)
        return default if given is None else helper.get_attribute_value(given)

    def remove(self, *names: str) -> None:
        """Remove attributes."""
        for attribute in [each for each in self.node.attribute if each.name in names]:
            self.node.attribute.remove(attribute)

    def set(self, **values: Any) -> None:
        """Give attributes other values."""
        self.remove(*values)
        self.node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())

    def input(self, position: int) -> str:
        """The name of an input; empty where the node does not have it."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def cut(self, length: int) -> None:
        """Keep the first ``length`` inputs."""
        del self.node.input[length:]

    def constant(self, position: int) -> npt.NDArray[Any] | None:
        """The value of an input where the model holds it."""
        return self.writer.constant(self.input(position))

    def numbers(self, position: int) -> list[int]:
        """The integers of an input, which the older operator has as an attribute.

        Raises:
            _ObstacleError: they are computed.
        """
        value = self.constant(position)
        if value is None:
            parameter = defs.get_schema(self.node.op_type, self.since, "").inputs[position].name
            raise _ObstacleError(
                parameter, f"computed ({self.input(position)})", f"a constant before opset {self.since}"
            )
        return [int(number) for number in value.ravel()]

    def type(self, position: int) -> str | None:
        """The type of an input."""
        return self.writer.inference.known(self.writer.scope, self.input(position)).type

    def shape(self, position: int) -> tuple[int | str | None, ...] | None:
        """The shape of an input."""
        return self.writer.inference.known(self.writer.scope, self.input(position)).shape

    def rank(self, position: int) -> int | None:
        """The rank of an input."""
        value, shape = self.constant(position), self.shape(position)
        if value is not None:
            return value.ndim
        return None if shape is None else len(shape)

    def nodes(self) -> Nodes:
        """An empty list of nodes to write."""
        return Nodes(self.writer.names, self.node.output[0] or self.node.op_type)

    def obstacle(self, argument: str, found: object) -> _ObstacleError:
        """The obstacle that this value of an attribute or input is."""
        return _ObstacleError(argument, str(found), f"a value that opset {self.since - 1} has")

    def keep(self) -> list[onnx.NodeProto]:
        """The node where the older version of its operator computes the same.

        Raises:
            _ObstacleError: the older version does not.
        """
        node = self.node
        older, newer = (_schema(node.op_type, opset) for opset in (self.since - 1, self.since))
        if older is None or older.deprecated or newer is None or (node.op_type, self.since) in _CHANGED:
            raise _ObstacleError(
                "opset", str(self.writer.version), f"at least {self.since}, which has this {node.op_type}"
            )
        for attribute in list(node.attribute):
            value = helper.get_attribute_value(attribute)
            if attribute.name not in older.attributes:
                if not _is_default(attribute, newer):
                    raise self.obstacle(attribute.name, _written(value))
                node.attribute.remove(attribute)
                continue
            firsts = _VALUES.get((node.op_type, attribute.name), {})
            if firsts and firsts.get(value, 0) >= self.since:
                raise self.obstacle(attribute.name, _written(value))
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in older.attributes.items():
            if name in given or name not in newer.attributes:
                continue
            default = newer.attributes[name].default_value
            if default.name and default != attribute.default_value:
                node.attribute.add().CopyFrom(default)
        _check_count(self, "input", node.input, older.inputs)
        _check_count(self, "output", node.output, older.outputs)
        return [node]


def _check_count(step: _Step, kind: str, values: Any, parameters: Any) -> None:
    """Raise _ObstacleError where the older operator has fewer inputs or outputs, or needs one that is left out."""
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    while len(values) and not values[-1]:
        del values[-1]
    if len(values) > len(parameters) and not (parameters and parameters[-1].option == variadic):
        extra = values[len(parameters)]
        raise _ObstacleError(f"{kind} {len(parameters)}", extra, f"nothing before opset {step.since}")
    for position, parameter in enumerate(parameters):
        is_given = position < len(values) and bool(values[position])
        if parameter.option == defs.OpSchema.FormalParameterOption.Single and not is_given:
            raise _ObstacleError(parameter.name, "left out", f"a value before opset {step.since}")


def _is_default(attribute: onnx.AttributeProto, schema: defs.OpSchema) -> bool:
    """Whether the attribute has its default in the schema; dilations are 1 by default."""
    value = helper.get_attribute_value(attribute)
    if attribute.name == "dilations":
        return all(dilation == 1 for dilation in value)
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    return bool(default.name) and value == helper.get_attribute_value(default)


def _written(value: Any) -> str:
    """The value of an attribute as an error writes it."""
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)


class _Writer:
    """Writes a node of ``scope``, and the nodes that it becomes, in the opset ``version``."""

    def __init__(self, scope: Scope, inference: Inference, names: Names, version: int) -> None:
        self.scope, self.inference, self.names, self.version = scope, inference, names, version
        self._constants: dict[str, npt.NDArray[Any]] = {}  # those that were written

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of ``name`` where the model or a node that was written holds it."""
        if not name:
            return None
        return self._constants[name] if name in self._constants else self.scope.constant(name)

    def write(self, node: onnx.NodeProto, current: int) -> list[onnx.NodeProto]:
        """The nodes for ``node`` of the opset ``current``.

        Raises:
            _ObstacleError: there are none.
        """
        written: list[onnx.NodeProto] = []
        todo = [(node, current)]
        while todo:
            node, current = todo.pop()
            schema = None if domain_of(node.domain) else _schema(node.op_type, current)
            if schema is None or schema.since_version <= self.version:
                self._record(node)
                written.append(node)
                continue
            since = schema.since_version
            step = _Step(self, deepcopy(node), since)
            older, opset = self._older(step, schema)
            for each in older:
                self._record(each)
            todo += [(each, opset) for each in reversed(older)]
        return written

    def _older(self, step: _Step, schema: defs.OpSchema) -> tuple[Sequence[onnx.NodeProto], int]:
        """The nodes for a node in an older opset, and that opset."""
        rule = _RULES.get((step.node.op_type, step.since))
        original = deepcopy(step.node)
        try:
            older = None if rule is None else rule(step)
            return _labelled(older if older is not None else step.keep(), original), step.since - 1
        except _ObstacleError:
            if not has_body(schema):
                raise
            scope = self.scope
            types = [self.inference.known(scope, name) if name else None for name in original.input]
            body = body_of(original, schema, types, self.names)
            if body is None:
                raise
            return _labelled(body[0], original), body[1]

    def _record(self, node: onnx.NodeProto) -> None:
        """Record the value of a Constant."""
        if node.op_type != "Constant" or len(node.attribute) != 1 or node.attribute[0].ref_attr_name:
            return
        tensor = _constant_tensor(node.attribute[0])
        if tensor is not None and tensor.data_location != TensorProto.EXTERNAL:
            self._constants[node.output[0]] = numpy_helper.to_array(tensor)


def _labelled(nodes: Sequence[onnx.NodeProto], original: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """``nodes``, of which those that make an output of ``original`` have its name, text and metadata."""
    outputs = {name for name in original.output if name}
    main = next((node for node in reversed(nodes) if not outputs.isdisjoint(node.output)), None)
    for node in nodes:
        if node.name == original.name:
            node.name = ""  # onnxruntime refuses two nodes of one name
    if main is not None:
        main.name = original.name
        main.doc_string = original.doc_string
        del main.metadata_props[:]
        main.metadata_props.extend(original.metadata_props)
    return nodes


def _constant_tensor(attribute: onnx.AttributeProto) -> TensorProto | None:
    """The value of a Constant that has this attribute; None of sparse values."""
    value = helper.get_attribute_value(attribute)
    dtypes: dict[str, Any] = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    if attribute.name == "value":
        return attribute.t
    if attribute.name in dtypes:
        return numpy_helper.from_array(np.array(value, dtypes[attribute.name]))
    if attribute.name in ("value_string", "value_strings"):
        strings = [value] if isinstance(value, bytes) else list(value)
        dims = [] if isinstance(value, bytes) else [len(strings)]
        return TensorProto(data_type=TensorProto.STRING, dims=dims, string_data=strings)
    return None


#: What a rule returns: the nodes of the opset before, or None where the node, maybe changed, is to be kept if it can.
_Rewritten = Sequence[onnx.NodeProto] | None
_Rule = Callable[[_Step], _Rewritten]


def _softmax(step: _Step) -> _Rewritten:
    """Before opset 13 the axes from ``axis`` on are flattened, so the axis must be the last."""
    node, rank = step.node, step.rank(0)
    axis = step.attribute("axis", -1)
    step.set(axis=-1)
    if axis == -1 or axis + 1 == rank:
        return [node]
    nodes = step.nodes()
    if rank is not None:
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        before = nodes.add("Transpose", node.input[0], perm=order)
        after = nodes.add(node.op_type, before, axis=-1)
        nodes.add("Transpose", after, output=node.output[0], perm=order)
        return nodes
    if node.op_type == "Hardmax":
        raise _ObstacleError("axis", str(axis), f"-1 before opset {step.since}, as the rank of the input is not known")
    largest = nodes.add("ReduceMax", node.input[0], axes=[axis])
    shifted = nodes.add("Sub", node.input[0], largest)
    powers = nodes.add("Exp", shifted)
    total = nodes.add("ReduceSum", powers, axes=[axis])
    if node.op_type == "Softmax":
        nodes.add("Div", powers, total, output=node.output[0])
    else:
        nodes.add("Sub", shifted, nodes.add("Log", total), output=node.output[0])
    return nodes


def _reduce(step: _Step) -> _Rewritten:
    """``axes`` are an attribute."""
    keeps_all = bool(step.attribute("noop_with_empty_axes", 0))
    axes = step.numbers(1) if step.input(1) else []
    step.remove("noop_with_empty_axes")
    step.cut(1)
    if axes:
        step.set(axes=axes)
    elif keeps_all:
        if step.node.op_type not in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
            raise step.obstacle("noop_with_empty_axes", 1)
        return [helper.make_node("Identity", step.node.input, step.node.output)]
    return [step.node]


def _axes(step: _Step) -> _Rewritten:
    """``axes`` of a Squeeze or Unsqueeze are an attribute."""
    if step.input(1):
        step.set(axes=step.numbers(1))
    step.cut(1)
    return None


def _split_attribute(step: _Step) -> _Rewritten:
    """The lengths of a Split are an attribute."""
    if step.input(1):
        step.set(split=step.numbers(1))
    step.cut(1)
    return [step.node]


def _split_count(step: _Step) -> _Rewritten:
    """The lengths of a Split follow from their number: all are equal but the last, which may be shorter."""
    node, axis, shape = step.node, step.attribute("axis", 0), step.shape(0)
    if step.input(1):
        step.remove("num_outputs")
        return None
    count = step.attribute("num_outputs", len(node.output))
    step.remove("num_outputs")
    nodes = step.nodes()
    length = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if isinstance(length, int):
        chunk = -(-length // count)
        lengths = [min(chunk, length - chunk * i) for i in range(count)]
        if min(lengths) < 0:
            raise _ObstacleError("num_outputs", str(count), f"at most the {length} elements of the axis")
        node.input[:] = [node.input[0], nodes.row(*lengths)]
        nodes.append(node)
        return nodes
    # The length is known at run time only. Slice, unlike Split, takes computed positions in every opset.
    last = nodes.row(axis)
    size = nodes.add("Gather", nodes.add("Shape", node.input[0]), last)
    chunk_size = nodes.add("Div", nodes.add("Add", size, nodes.row(count - 1)), nodes.row(count))
    for index, output in enumerate(node.output):
        if output:
            start = nodes.add("Mul", chunk_size, nodes.row(index))
            end = nodes.add("Mul", chunk_size, nodes.row(index + 1))
            nodes.add("Slice", node.input[0], start, end, last, output=output)
    return nodes


def _reshape(step: _Step) -> _Rewritten:
    """Without ``allowzero``, a 0 in the shape is the length of the same axis of the input."""
    node = step.node
    allows_zero = bool(step.attribute("allowzero", 0))
    step.remove("allowzero")
    if not allows_zero:
        return [node]
    shape = step.constant(1)
    before = step.shape(0)
    if shape is not None:
        lengths: Sequence[int | str | None] = [int(length) for length in shape.ravel()]
    else:
        known = step.writer.inference.known(step.writer.scope, node.output[0]).shape
        lengths = known if known is not None else [None, None]
        home = step.writer.scope.home(node.input[1])
        if home is not None and home.definitions[node.input[1]] is None:
            raise step.obstacle("allowzero", 1)  # whatever is fed may have zeros
    zeros = 0
    for axis, length in enumerate(lengths):
        is_same = before is not None and axis < len(before) and length is not None and length == before[axis]
        if not is_same and not (isinstance(length, int) and length != 0):
            zeros += 1
            if length == 0:
                raise step.obstacle("allowzero", 1)
    # A single 0 that is not the input's length changes the number of elements: the run fails, as nothing else can be
    # done. Two of them could be another empty shape, so they are turned into a length that no run can have.
    if zeros < 2:
        return [node]
    nodes = step.nodes()
    is_zero = nodes.add("Equal", node.input[1], nodes.row(0))
    node.input[1] = nodes.add("Where", is_zero, nodes.row(1 << 40), node.input[1])
    nodes.append(node)
    return nodes


def _constant(step: _Step) -> _Rewritten:
    """A Constant holds a tensor."""
    (attribute,) = step.node.attribute
    tensor = _constant_tensor(attribute)
    if tensor is None or attribute.name == "value" or attribute.ref_attr_name:
        return None
    step.remove(attribute.name)
    step.set(value=tensor)
    return [step.node]


def _shape(step: _Step) -> _Rewritten:
    """A Shape is whole; a Slice follows."""
    node = step.node
    start, end = step.attribute("start", 0), step.attribute("end", 1 << 62)
    step.remove("start", "end")
    if start == 0 and end == 1 << 62:
        return [node]
    nodes = step.nodes()
    output = node.output[0]
    node.output[0] = step.writer.names.new(f"{output}_whole")
    nodes.append(node)
    nodes.add("Slice", node.output[0], nodes.row(start), nodes.row(end), output=output)
    return nodes


def _pad_axes(step: _Step) -> _Rewritten:
    """All axes are padded."""
    if not step.input(3):
        return None
    node, axes, rank = step.node, step.numbers(3), step.rank(0)
    if rank is None:
        raise _ObstacleError(
            "axes", str(axes), f"none before opset {step.since}, as the rank of the input is not known"
        )
    axes = [axis % rank for axis in axes]
    nodes, pads = step.nodes(), step.constant(1)
    places = [*axes, *(axis + rank for axis in axes)]
    whole = np.zeros(2 * rank, np.int64)
    if pads is not None:
        whole[places] = pads.ravel()
        node.input[1] = nodes.row(*whole.tolist())
    else:
        node.input[1] = nodes.add("ScatterElements", nodes.row(*whole.tolist()), nodes.row(*places), node.input[1])
    step.cut(3)
    nodes.append(node)
    return nodes


def _resize_axes(step: _Step) -> _Rewritten:
    """All axes are resized."""
    node, axes = step.node, step.attribute("axes")
    if step.input(2):
        step.remove("keep_aspect_ratio_policy")  # which concerns sizes
    if axes is None:
        return None
    rank = step.rank(0)
    if rank is None:
        raise _ObstacleError(
            "axes", str(axes), f"none before opset {step.since}, as the rank of the input is not known"
        )
    axes = [axis % rank for axis in axes]
    is_cropped = step.attribute("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if axes == list(range(rank)):
        step.remove("axes")
        return None
    if is_cropped and step.input(1):
        raise step.obstacle("axes", axes)
    step.remove("axes")
    step.keep()  # raises of the other attributes
    nodes, scales = step.nodes(), step.constant(2)
    places = nodes.row(*axes)
    if scales is not None:
        whole = np.ones(rank, np.float32)
        whole[axes] = scales.ravel()
        node.input[2] = nodes.constant(whole)
    elif step.input(2):
        ones = nodes.constant(np.ones(rank, np.float32))
        node.input[2] = nodes.add("ScatterElements", ones, places, node.input[2])
    else:
        node.input[3] = nodes.add("ScatterElements", nodes.add("Shape", node.input[0]), places, node.input[3])
    nodes.append(node)
    return nodes


def _resize_inputs(step: _Step) -> _Rewritten:
    """``roi`` and ``scales`` are there, empty where they are not used."""
    node, nodes = step.node, step.nodes()
    inputs = [step.input(position) for position in range(4)]
    for position in (1, 2):
        if not inputs[position]:
            inputs[position] = nodes.constant(np.zeros(0, np.float32))
    node.input[:] = inputs if inputs[3] else inputs[:3]
    nodes.append(node)
    return nodes


def _scalar_scale(step: _Step) -> _Rewritten:
    """A single scale is used for the whole tensor."""
    if step.rank(1) != 0:
        raise _ObstacleError("the shape of the scale", _shape_text(step.shape(1)), f"() before opset {step.since}")
    step.remove("axis")
    return None


def _shape_text(shape: tuple[int | str | None, ...] | None) -> str:
    return "not known" if shape is None else str(shape)


def _output_dtype(step: _Step) -> _Rewritten:
    """The type of the output follows from the inputs."""
    dtype = step.attribute("output_dtype", 0)
    like = 2 if step.input(2) and step.node.op_type == "QuantizeLinear" else 1
    default = step.type(2) if like == 2 else step.type(1)
    if step.node.op_type == "QuantizeLinear" and not step.input(2):
        default = "uint8"
    if dtype and default is not None and default in spec.TYPES and elem_type(default) == dtype:
        step.remove("output_dtype")
    return None


def _saturate(step: _Step) -> _Rewritten:
    """``saturate`` and ``round_mode`` concern the types of 8 bits and fewer, which the type check refuses."""
    step.remove("saturate", "round_mode")
    return None


def _round_mode(step: _Step) -> _Rewritten:
    """``round_mode`` concerns float8e8m0, which the type check refuses."""
    step.remove("round_mode")
    return None


def _dropout(step: _Step) -> _Rewritten:
    """Outside of training, a Dropout returns its input."""
    training = step.constant(2)
    if step.input(2) and (training is None or bool(training.ravel()[0])):
        raise _ObstacleError("training_mode", "true or computed", f"false before opset {step.since}")
    if len(step.node.output) > 1 and step.node.output[1]:
        raise _ObstacleError("the output mask", step.node.output[1], f"unused before opset {step.since}")
    return [helper.make_node("Identity", step.node.input[:1], step.node.output[:1])]


def _roi_align(step: _Step) -> _Rewritten:
    """The coordinates are those of ``output_half_pixel``."""
    mode = step.attribute("coordinate_transformation_mode", b"half_pixel")
    if mode != b"output_half_pixel":
        raise step.obstacle("coordinate_transformation_mode", _written(mode))
    step.remove("coordinate_transformation_mode")
    return None


def _dft(step: _Step) -> _Rewritten:
    """The axis is an attribute."""
    axis = step.numbers(2) if step.input(2) else [-2]
    if step.attribute("inverse", 0) and step.attribute("onesided", 0):
        raise step.obstacle("onesided", 1)
    step.cut(2)
    step.set(axis=axis[0])
    return [step.node]


def _power(step: _Step) -> _Rewritten:
    """Base and exponent have one type."""
    base, exponent = step.type(0), step.type(1)
    if base is None or exponent is None or base == exponent or base not in _FLOATS:
        return None  # the type check decides
    nodes = step.nodes()
    step.node.input[1] = nodes.add("Cast", step.node.input[1], to=elem_type(base))
    nodes.append(step.node)
    return nodes


def _batch_normalization(step: _Step) -> _Rewritten:
    """Outside of training, the statistics are not outputs."""
    if any(step.node.output[1:]):
        raise step.obstacle("the number of outputs", len(step.node.output))
    return None


def _body_types(step: _Step) -> _Rewritten:
    """The graphs hand out tensors."""
    from_sequences, from_optionals = _BODY_TYPES[step.node.op_type]
    for _, graph in subgraphs(step.node):
        makers = {name: node.op_type for node in graph.node for name in node.output}
        for value in graph.output:
            kind = value.type.WhichOneof("value")
            if makers.get(value.name) in _SEQUENCE_OPS:
                kind = "sequence_type"
            first = {"sequence_type": from_sequences, "optional_type": from_optionals}.get(kind or "", 0)
            if first >= step.since:
                raise _ObstacleError(
                    f"the type of {value.name}", kind.partition("_")[0], f"a tensor before opset {first}"
                )
    return None


def _modulo(step: _Step) -> _Rewritten:
    """Floats need ``fmod``."""
    type_name = step.type(0)
    if not step.attribute("fmod", 0) and (type_name is None or type_name in _FLOATS):
        raise step.obstacle("fmod", 0)
    return None


def _cast_like(step: _Step) -> _Rewritten:
    """A Cast, where the type is known."""
    type_name = step.type(1)
    if type_name is None or type_name not in spec.TYPES:
        raise _ObstacleError(f"the type of {step.input(1)}", str(type_name or "not known"), "a known type for a Cast")
    return [helper.make_node("Cast", step.node.input[:1], step.node.output, to=elem_type(type_name))]


def _normalize(step: _Step, nodes: Nodes, value: str, axes: list[int], type_name: str) -> tuple[str, str, str]:
    """Write the normalization of ``value`` over ``axes``: the result, the mean, and 1 / the standard deviation.

    ONNX's own body computes the variance as a difference of squares, which loses the digits that large means have.
    """

    def mean_of(name: str) -> str:
        if step.since > _COMPUTED_AXES:
            return nodes.add("ReduceMean", name, nodes.row(*axes))
        return nodes.add("ReduceMean", name, axes=axes)

    mean = mean_of(value)
    deviation = nodes.add("Sub", value, mean)
    variance = mean_of(nodes.add("Mul", deviation, deviation))
    epsilon = _epsilon(step, nodes, type_name)
    scale = nodes.add("Reciprocal", nodes.add("Sqrt", nodes.add("Add", variance, epsilon)))
    return nodes.add("Mul", deviation, scale), mean, scale


def _epsilon(step: _Step, nodes: Nodes, type_name: str) -> str:
    """Write the epsilon of a normalization that computes in this type."""
    if type_name == "bfloat16":
        raise step.obstacle("stash_type", elem_type(type_name))
    return nodes.constant(np.array(step.attribute("epsilon", 1e-5), type_name))


def _stash_type(step: _Step) -> tuple[str, str]:
    """The type of the input, and the one that a normalization computes in."""
    type_name = step.type(0)
    if type_name is None or type_name not in _FLOATS:
        raise _ObstacleError(f"the type of {step.input(0)}", str(type_name or "not known"), "a known type of floats")
    stash = step.attribute("stash_type", 1)
    return type_name, next(name for name in _FLOATS if elem_type(name) == stash)


def _last_axes(step: _Step) -> list[int]:
    """The axes that a normalization computes over: from its attribute ``axis`` to the last one, as negative numbers."""
    axis, rank = step.attribute("axis", -1), step.rank(0)
    if axis >= 0:
        if rank is None:
            raise _ObstacleError("axis", str(axis), "a negative one, as the rank of the input is not known")
        axis -= rank
    return list(range(axis, 0))


def _layer_normalization(step: _Step) -> _Rewritten:
    """The operators that compute a LayerNormalization."""
    node = step.node
    type_name, stash = _stash_type(step)
    axes = _last_axes(step)
    nodes = step.nodes()
    is_cast = type_name != stash
    value = nodes.add("Cast", node.input[0], to=elem_type(stash)) if is_cast else node.input[0]
    result, mean, scale = _normalize(step, nodes, value, axes, stash)
    if is_cast:
        result = nodes.add("Cast", result, to=elem_type(type_name))
    extra = dict(zip((mean, scale), node.output[1:], strict=False))
    if step.input(2):
        nodes.add("Add", nodes.add("Mul", result, node.input[1]), node.input[2], output=node.output[0])
    else:
        nodes.add("Mul", result, node.input[1], output=node.output[0])
    for name, output in extra.items():
        if output:
            nodes.add("Identity", name, output=output)
    return nodes


def _rms_normalization(step: _Step) -> _Rewritten:
    """The operators that compute an RMSNormalization."""
    node = step.node
    type_name, stash = _stash_type(step)
    axes = _last_axes(step)
    nodes = step.nodes()
    is_cast = type_name != stash
    value = nodes.add("Cast", node.input[0], to=elem_type(stash)) if is_cast else node.input[0]
    mean = nodes.add("ReduceMean", nodes.add("Mul", value, value), nodes.row(*axes))
    epsilon = _epsilon(step, nodes, stash)
    result = nodes.add("Div", value, nodes.add("Sqrt", nodes.add("Add", mean, epsilon)))
    if is_cast:
        result = nodes.add("Cast", result, to=elem_type(type_name))
    nodes.add("Mul", result, node.input[1], output=node.output[0])
    return nodes


def _group_normalization(step: _Step) -> _Rewritten:
    """The operators that compute a GroupNormalization, whose factors are those of groups before opset 21."""
    node, groups = step.node, step.attribute("num_groups")
    type_name, stash = _stash_type(step)
    nodes = step.nodes()
    shape = nodes.add("Shape", node.input[0])
    value = nodes.add("Reshape", node.input[0], nodes.row(0, groups, -1))
    if is_cast := type_name != stash:
        value = nodes.add("Cast", value, to=elem_type(stash))
    result, *_ = _normalize(step, nodes, value, [2], stash)
    if is_cast:
        result = nodes.add("Cast", result, to=elem_type(type_name))
    if step.since >= 21:
        channels = nodes.add("Slice", shape, nodes.row(0), nodes.row(2))
        result = nodes.add("Reshape", result, nodes.add("Concat", channels, nodes.row(-1), axis=0))
    factor, offset = (nodes.add("Reshape", name, nodes.row(1, -1, 1)) for name in node.input[1:3])
    result = nodes.add("Add", nodes.add("Mul", result, factor), offset)
    nodes.add("Reshape", result, shape, output=node.output[0])
    return nodes


#: Operator and version -> the rule that takes a node of this version to the opset before.
_RULES: dict[tuple[str, int], _Rule] = {
    **dict.fromkeys([(op, 13) for op in ("Softmax", "LogSoftmax", "Hardmax")], _softmax),
    **dict.fromkeys([(f"Reduce{of}", 18) for of in ("L1", "L2", "LogSum", "LogSumExp", "Max")], _reduce),
    **dict.fromkeys([(f"Reduce{of}", 18) for of in ("Mean", "Min", "Prod", "SumSquare")], _reduce),
    ("ReduceSum", 13): _reduce,
    ("Squeeze", 13): _axes,
    ("Unsqueeze", 13): _axes,
    ("Split", 13): _split_attribute,
    ("Split", 18): _split_count,
    ("Reshape", 14): _reshape,
    ("Constant", 12): _constant,
    ("Shape", 15): _shape,
    ("Pad", 18): _pad_axes,
    ("Resize", 18): _resize_axes,
    ("Resize", 13): _resize_inputs,
    ("QuantizeLinear", 13): _scalar_scale,
    ("DequantizeLinear", 13): _scalar_scale,
    ("QuantizeLinear", 21): _output_dtype,
    ("DequantizeLinear", 23): _output_dtype,
    ("QuantizeLinear", 19): _saturate,
    ("Cast", 19): _saturate,
    ("Cast", 24): _round_mode,
    ("Dropout", 12): _dropout,
    ("RoiAlign", 16): _roi_align,
    ("DFT", 20): _dft,
    ("Pow", 12): _power,
    ("BatchNormalization", 14): _batch_normalization,
    **dict.fromkeys([(op, version) for op in _BODY_TYPES for version in (13, 16)], _body_types),
    ("Mod", 28): _modulo,
    **dict.fromkeys([("CastLike", version) for version in (15, 19, 21, 23, 24, 25)], _cast_like),
    ("LayerNormalization", 17): _layer_normalization,
    ("RMSNormalization", 23): _rms_normalization,
    ("GroupNormalization", 18): _group_normalization,
    ("GroupNormalization", 21): _group_normalization,
}
