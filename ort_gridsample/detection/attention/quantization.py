"""Find the quantization that prevents the fusion of samples into deformable attention."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.scope import OUTSIDE
from ...graph.use_def import UseDef
from ...inference.views import REARRANGING
from ..records import NodeRecord
from ..subgraphs import MAX_NODES
from .matcher import is_attention_sample

#: The operators between a sample and the sum in a quantized model.
_OPERATORS_TO_SUM = {*REARRANGING, "Concat", "DequantizeLinear", "Mul", "QuantizeLinear"}


@dataclass(frozen=True)
class _Derived:
    """A value that is computed from a sample.

    Attributes:
        name: the name of the value.
        is_product: whether a Mul lies between the sample and the value.
        quantizing: the name of the first QuantizeLinear between them, or "".
    """

    name: str
    is_product: bool = False
    quantizing: str = ""


def quantization_between(use_def: UseDef, sample: NodeRecord) -> str:
    """Return the name of the QuantizeLinear that keeps a GridSample out of deformable attention.

    The QuantizeLinear lies between the sample and a sum of products that would otherwise be
    deformable attention. Return "" if there is no such node.
    """
    if not is_attention_sample(sample):
        return ""
    pending = [_Derived(sample.output)]
    seen = {sample.output}
    for value in pending:  # grows during the loop
        for reader in sorted(use_def.scope.readers.get(value.name, set()) - {OUTSIDE}):
            op_type = use_def.scope.op_types[reader]
            if op_type == "ReduceSum" and value.is_product and value.quantizing:
                return value.quantizing
            if not use_def.is_op(reader, _OPERATORS_TO_SUM):
                continue
            output = use_def.scope.outputs[reader][0]
            if output in seen or len(seen) >= MAX_NODES:
                continue
            seen.add(output)
            quantizing = value.quantizing
            if not quantizing and op_type == "QuantizeLinear":
                quantizing = use_def.nodes[reader].name or f"({output})"
            pending.append(_Derived(output, value.is_product or op_type == "Mul", quantizing))
    return ""
