"""Find the nodes of a model that neither a runtime nor this package knows.

A model of another package, such as mmdeploy, may have custom ops beside its sampling nodes. A
session and a patch treat the sampling nodes only, and the runtime refuses the whole model because
of the others, of which its error names one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from ..dialects.registry import dialect_of
from ..dialects.table import COMPILED_DOMAIN, DOMAIN
from ..errors import nested_name, shortened_names
from ..graph.scope import Scope, display_name, domain_of, function_key

#: Whether a runtime has an operator: of a domain, a type, and a version of the domain.
KnowsOperator = Callable[[str, str, int], bool]


@dataclass(frozen=True)
class UnknownOperator:
    """An operator of a model that neither the runtime nor this package knows.

    Attributes:
        domain: the domain of its nodes.
        op_type: their operator type.
        labels: the names of its nodes, with their graphs.
    """

    domain: str
    op_type: str
    labels: Sequence[str]

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        return f"{domain}{self.op_type}: {shortened_names(self.labels)}"


def find_unknown_operators(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    knows_operator: KnowsOperator,
) -> list[UnknownOperator]:
    """Return the operators that neither a runtime nor this package knows, with their nodes.

    Args:
        knows_operator: whether the runtime has an operator. It is called once for each.
    """
    functions = {function_key(function) for function in model.functions}
    is_known: dict[tuple[str, str, int], bool] = {}
    labels: dict[tuple[str, str], list[str]] = {}
    for scope in all_scopes:
        for node in scope.nodes:
            domain = domain_of(node.domain)
            if domain in (DOMAIN, COMPILED_DOMAIN) or function_key(node) in functions:
                continue
            key = (domain, node.op_type, scope.opsets.get(domain, 1))
            if key not in is_known:
                is_known[key] = knows_operator(*key)
            if is_known[key] or dialect_of(node, scope.opsets, functions) is not None:
                continue
            label = nested_name(display_name(node), scope.path)
            labels.setdefault((domain, node.op_type), []).append(label)
    return [UnknownOperator(*operator, names) for operator, names in labels.items()]


def unknown_operators_text(unknown: Sequence[UnknownOperator]) -> str:
    """Return a sentence on unknown operators, without a period at its end."""
    operators = "; ".join(map(str, unknown))
    return (
        "these nodes stay. The installed onnxruntime does not know their operators, and "
        "ort_gridsample does not treat them: the model needs a library of custom ops. "
        f"{operators}"
    )
