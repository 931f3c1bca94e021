"""The list of all dialects and targets: recognize nodes, and add dialects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import onnx

from .. import spec
from ..errors import GridSampleError
from ..functions import validation
from ..graph.scope import FunctionKey, domain_of, function_key
from .spelling import AttributeScalar, Dialect, Spelling
from .table import (
    AI_ONNX,
    ATTENTION_SIGNATURES,
    BUILT_IN,
    COMPILED_DOMAIN,
    COMPOSITE_OP_TYPES,
    DECOMPOSED,
    DOMAIN,
    PACKAGE_NODES,
    TENSORRT_ATTENTION,
    AttentionSignature,
    standard,
)

#: The target that writes basic operators, and the one that writes 4-D GridSamples.
PRIMITIVES: Final = "primitives"
TWO_AXES: Final = "ai.onnx-2d"

_BY_DOMAIN_AND_TYPE = {(dialect.domain, dialect.op_type): dialect for dialect in PACKAGE_NODES}


class Registry:
    """The dialects of :data:`.table.BUILT_IN` and those that were added.

    Attributes:
        by_type: the type of a node -> its dialects, the last added first.
        operator_types: the types of all nodes that have a dialect.
    """

    def __init__(self) -> None:
        self._set_dialects(BUILT_IN)
        self._added: set[tuple[str, str]] = set()  # names and operators

    def _set_dialects(self, dialects: tuple[Dialect, ...]) -> None:
        self._dialects = dialects
        by_type: dict[str, list[Dialect]] = {}
        for dialect in dialects:
            by_type.setdefault(dialect.op_type, []).append(dialect)
        self.by_type = by_type
        self.operator_types = frozenset((*spec.OPERATORS, *by_type, *COMPOSITE_OP_TYPES))

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """All dialects, the last added first."""
        return self._dialects

    def add(self, dialect: Dialect) -> None:
        """Add ``dialect``, or replace the dialect of the same name and operator."""
        key = (dialect.name, dialect.operator)
        others = [other for other in self._dialects if (other.name, other.operator) != key]
        self._set_dialects((dialect, *others))
        self._added.add(key)

    def is_added(self, dialect: Dialect) -> bool:
        """Whether ``dialect`` was added."""
        return (dialect.name, dialect.operator) in self._added

    def target_names(self) -> list[str]:
        """Return the names of all targets, those of added dialects included."""
        written = [dialect.name for dialect in reversed(self._dialects) if not dialect.reads_only]
        unique = dict.fromkeys(written)
        return [DOMAIN, AI_ONNX, TWO_AXES, PRIMITIVES, *unique, TENSORRT_ATTENTION.name]


_registry = Registry()

#: Names that an added dialect must not have: those of targets and of built-in dialects.
_RESERVED_NAMES: Final = frozenset(
    (
        *Registry().target_names(),
        *(dialect.name for dialect in (*BUILT_IN, *PACKAGE_NODES)),
        DECOMPOSED,
    )
)


def dialects() -> tuple[Dialect, ...]:
    """Return all dialects but the standard's own, the last added first."""
    return _registry.dialects


def target_names() -> list[str]:
    """Return the names that :func:`ort_gridsample.patch_model` accepts as ``target``."""
    return _registry.target_names()


def is_added(dialect: Dialect) -> bool:
    """Whether :func:`add_dialect` added ``dialect``."""
    return _registry.is_added(dialect)


def add_dialect(dialect: Dialect) -> None:
    """Add a ``dialect`` that models are read in, and written in with its name as a target.

    Here a node ``my.domain::Sampler`` has an integer ``order`` instead of the mode:

    >>> import onnx, ort_gridsample as ogs
    >>> ogs.add_dialect(ogs.Dialect("mine", "GridSample", "Sampler", ("my.domain",), attributes={
    ...     "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
    ...     "padding_mode": ogs.Spelling("outside", {"zeros": 0, "border": 1}, default="zeros"),
    ...     "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
    ... }))
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 20, "my.domain": 1]>
    ...     g (float[1,1,8,8] X, float[1,4,4,2] grid) => (float[1,1,4,4] Y)
    ...     { Y = my.domain.Sampler <order = 3, outside = 1> (X, grid) }''')
    >>> [record] = ogs.inspect_model(model)
    >>> print(record.operator, record.mode, record.padding_mode, record.align_corners)
    GridSample cubic border 0
    >>> [node] = ogs.patch_model(model, target="ai.onnx").graph.node
    >>> print(node.op_type, [onnx.helper.get_attribute_value(value) for value in node.attribute])
    GridSample [b'cubic', b'border', 0]

    An added dialect of the same name and operator is replaced. The nodes of the dialect have inputs
    and an output of the standard's layout: a grid (N, D1_out, …, Dr_out, r) with coordinates in
    [-1, 1]. A dialect cannot describe other grids, such as those with their coordinates in axis 1
    or in another range. A node is refused if its output has another shape than its graph states.

    Raises:
        GridSampleError: the dialect has no spelling for an attribute of its operator, or spells a
            value that the operator lacks, such as a synonym of a mode; or it has the name of a
            target or of a built-in dialect; or its nodes are already those of the standard, of this
            package or of deformable attention, which are read first.
    """
    where = f"dialect {dialect.name!r}"
    if dialect.operator not in spec.OPERATORS:
        expected_operators = validation.format_choices(spec.OPERATORS)
        raise GridSampleError(where, "operator", repr(dialect.operator), expected_operators)
    newest_opset = max(spec.OPERATORS[dialect.operator])
    expected = standard(dialect.operator, newest_opset).attributes
    if dialect.attributes.keys() != expected.keys():
        found = str(sorted(dialect.attributes))
        expected_names = str(sorted(expected))
        raise GridSampleError(where, "attributes", found, expected_names, verb="are")
    for name, spelling in dialect.attributes.items():
        _check_operator_values(where, name, spelling, expected[name].values)
    if dialect.name in _RESERVED_NAMES:
        expected_name = "one that no target and no built-in dialect has"
        raise GridSampleError(where, "name", repr(dialect.name), expected_name)
    for domain in dialect.domains or (dialect.written_domain,):
        if _is_read_first(dialect, domain):
            found = f"{dialect.op_type!r} in domain {domain!r}"
            expected_nodes = "nodes that are not read as another operator or dialect already"
            raise GridSampleError(where, "op_type", found, expected_nodes)
    _registry.add(dialect)


def _check_operator_values(
    where: str, name: str, spelling: Spelling, allowed: Collection[AttributeScalar]
) -> None:
    """Check that the operator has all values to which ``spelling`` translates.

    Args:
        where: the dialect, for error messages.
        spelling: the spelling of the attribute in the dialect.

    Raises:
        GridSampleError: the operator lacks a value.
    """
    defaults = () if spelling.default is None else (spelling.default,)
    for value in (*spelling.values, *spelling.other_values.values(), *defaults):
        if value not in allowed:
            expected = validation.format_choices(allowed)
            raise GridSampleError(where, f"the operator's {name}", repr(value), expected)


def _is_read_first(dialect: Dialect, domain: str) -> bool:
    """Whether :func:`dialect_of` never returns ``dialect`` for nodes in ``domain``."""
    node = onnx.NodeProto(op_type=dialect.op_type, domain=domain)
    if (domain_of(domain), dialect.op_type) in _BY_DOMAIN_AND_TYPE:
        return True
    if attention_signature(node) is not None:
        return True
    return _is_standard(node) and not dialect.requires_code


def dialect_of(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    functions: Collection[FunctionKey] = (),
) -> Dialect | None:
    """Return the dialect of ``node``; None if the node is not one of the operators.

    Args:
        node: any node of a model; not changed.
        opsets: domain -> version, of the graph or function of the node.
        functions: the keys (:func:`.function_key`) of the model's functions. A call of one is not
            an operator.
    """
    if function_key(node) in functions:
        return None
    domain = domain_of(node.domain)
    package_dialect = _BY_DOMAIN_AND_TYPE.get((domain, node.op_type))
    if package_dialect is not None:
        return package_dialect
    if attention_signature(node) is not None:
        return TENSORRT_ATTENTION
    is_standard = _is_standard(node)
    for dialect in _registry.by_type.get(node.op_type, ()):
        if (dialect.requires_code or not is_standard) and dialect.spells(node):
            return dialect
    return standard(node.op_type, opsets.get("", 0)) if is_standard else None


def _is_standard(node: onnx.NodeProto) -> bool:
    """Whether ``node`` has the type and the domain of a standard operator."""
    return node.op_type in spec.OPERATORS and domain_of(node.domain) == ""


def attention_signature(node: onnx.NodeProto) -> AttentionSignature | None:
    """Return the signature of ``node`` if it is another package's deformable attention, or None."""
    signature = ATTENTION_SIGNATURES.get(node.op_type)
    if signature is None or node.domain in (DOMAIN, COMPILED_DOMAIN):
        return None
    if signature.domains and domain_of(node.domain) not in signature.domains:
        return None
    return signature


def operator_types() -> frozenset[str]:
    """Return the types of all nodes that have a dialect: a quick test that a node has none."""
    return _registry.operator_types
