"""Finding the nodes concerned in a model, and reading what each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from .. import spec
from ..core.plan import type_name
from ..errors import GridSampleError, where
from .asking import Native
from .dialects import SET_ASIDE, AttributeValue, Dialect, constant_size, dialect_of, operator_types, standard
from .graphs import Scope, domain_of, function_key, scopes
from .helpers import Helpers
from .inference import Inference, Value
from .node_checks import fault_of, reason_of
from .records import NodeRecord


@dataclass(frozen=True, eq=False)
class Match:
    """A node concerned, where it was found.

    Attributes:
        record: what is known of it.
        node: the node itself.
        scope: the list of nodes that it is in.
        index: its position there.
        helpers: the positions of the nodes that a patch put around it.
    """

    record: NodeRecord
    node: onnx.NodeProto
    scope: Scope
    index: int
    helpers: frozenset[int]

    @property
    def is_set_aside(self) -> bool:
        """Whether the node is a standard one, which is to be written in the model's new opset."""
        return self.node.domain == SET_ASIDE


def records_of(model: onnx.ModelProto, native: Native | None = None) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    ``native`` is asked whether onnxruntime runs them, and for types that onnx does not know; None: nobody is.
    """
    found = scopes(model)
    return [match.record for match in find(model, found, Inference(model, found, native), native)]


def find(
    model: onnx.ModelProto, found: Sequence[Scope], inference: Inference, native: Native | None = None
) -> list[Match]:
    """Every node concerned in ``found``, the scopes of ``model``; ``native`` is asked whether onnxruntime runs them."""
    matches = []
    functions, op_types = {function_key(function) for function in model.functions}, operator_types()
    for scope in found:
        candidates = [(index, node) for index, node in enumerate(scope) if node.op_type in op_types]
        helpers = Helpers(scope)
        for index, node in candidates:
            dialect = dialect_of(node, scope.opsets, functions)
            if dialect is not None:
                matches.append(_match(dialect, node, index, scope, inference, helpers, native))
    return matches


def _match(
    dialect: Dialect,
    node: onnx.NodeProto,
    index: int,
    scope: Scope,
    inference: Inference,
    helpers: Helpers,
    native: Native | None,
) -> Match:
    aside = node.domain == SET_ASIDE
    domain = "" if aside else domain_of(node.domain)
    opset = scope.opsets.get(domain, dialect.version if domain else 0)
    name = node.name or f"({', '.join(node.output)})"
    sources, output, belonging = helpers.around(node)
    inputs, values, known = {}, {}, {}
    for position, argument in enumerate(spec.newest(dialect.operator).types):
        size = constant_size(node, dialect, argument)
        value = sources[position] if position < len(sources) and size is None else ""
        constant = scope.constant(value) if value else size
        values[argument] = value
        inputs[argument] = inference.alternatives(scope, value) if value else []
        if constant is not None:
            known[argument] = constant
            if not inputs[argument]:
                inputs[argument] = [Value(type_name(constant.dtype), constant.shape)]
    attributes: dict[str, AttributeValue] = {}
    unreadable = None
    try:
        here = where(node.op_type, f"{name} in {scope.path}" if scope.path else name)
        note = f" (opset {opset})" if domain == "" else ""
        attributes = dialect.read(here, node, lambda i: scope.constant(node.input[i]), note)
    except GridSampleError as error:
        unreadable = error
    record = NodeRecord(
        graph=scope.path,
        name=name,
        operator=dialect.operator,
        op_type=node.op_type,
        domain=domain,
        opset=opset,
        dialect=standard(dialect.operator, opset) if aside else dialect,
        attributes=attributes,
        inputs=inputs,
        values=values,
        constants=known,
        output=output,
    )
    record = replace(record, error=fault_of(record, node, unreadable))
    if native is not None:
        record = replace(record, reason=reason_of(record, scope.opsets, native))
    return Match(record, node, scope, index, belonging)
