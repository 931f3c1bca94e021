"""The operators for onnx's own evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.registry import dialect_of, dialects
from ..dialects.spelling import constant_size
from ..dialects.table import DOMAIN
from ..errors import GridSampleError, where
from ..functions.operators import affine_grid, grid_sample
from ..reference.arrays import Array

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def reference_ops() -> list[type[OpRun]]:
    """The operators, in every opset and dialect, for ``onnx.reference.ReferenceEvaluator``.

    >>> from onnx.reference import ReferenceEvaluator
    >>> evaluator = ReferenceEvaluator("model.onnx", new_ops=reference_ops())    # doctest: +SKIP

    They compute what :func:`ort_gridsample.grid_sample` and :func:`ort_gridsample.affine_grid` do, complex X included,
    in models as they are and patched to any target. A dialect of any domain is found in ONNX's own and in the one that
    a patch writes. The evaluator passes ``new_ops`` to no model-local function, and would run its own operators there:
    inline functions first, with ``onnx.inliner.inline_local_functions``. Before onnx 1.19 it has no arrays of
    bfloat16, and its own representation is refused.

    Raises, in a run:
        GridSampleError: a node's attributes or inputs are not what its opset or dialect allows.
    """
    from onnx.reference.op_run import OpRun

    # Without a schema the evaluator adds no defaults: the newest opset's would be wrong in an older one.
    own = {"op_schema": None, "_run": _run}
    keys = [(domain, operator) for domain in ("", DOMAIN) for operator in spec.OPERATORS]
    for dialect in dialects():
        keys += [(domain, dialect.op_type) for domain in dialect.domains or ("", dialect.written_domain)]
    return [type(op_type, (OpRun,), {"op_domain": domain, **own}) for domain, op_type in dict.fromkeys(keys)]


def _run(self: OpRun, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
    """The outputs of a node; ``attributes`` are its own, with the values of attribute references."""
    node = onnx.NodeProto()
    node.CopyFrom(self.onnx_node)
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            attribute.CopyFrom(helper.make_attribute(attribute.name, attributes[attribute.name]))
    here = where(node.op_type, attributes.get("node") or node.name or f"({', '.join(node.output)})")
    dialect = dialect_of(node, self.run_params["opsets"])
    if dialect is None:
        found, expected = repr(attributes.get("operator")), "grid_sampler or affine_grid_generator"
        raise GridSampleError(here, "operator", found, expected)
    standard = dialect.read(here, node, lambda position: inputs[position], "")
    arguments = {}
    for name, given in zip(spec.newest(dialect.operator).types, (*inputs, None, None), strict=False):
        size = constant_size(node, dialect, name)
        arguments[name] = given if size is None else size
        if arguments[name] is None:
            raise GridSampleError(here, name, "missing", "an input")
    standard["align_corners"] = bool(standard["align_corners"])
    function: Any = grid_sample if dialect.operator == "GridSample" else affine_grid
    answer = function(**arguments, **standard, where=here)
    return (answer, np.arange(len(answer), dtype=np.int64)[:, None]) if dialect.domain == DOMAIN else (answer,)
