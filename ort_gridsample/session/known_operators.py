"""Whether the installed onnxruntime has an operator, with the libraries of certain options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx
import onnxruntime
from onnx import helper

from ..custom_ops.python_ops import extensions
from ..detection.unknown_nodes import KnowsOperator, UnknownOperator, find_unknown_operators
from ..graph.scope import UNSTATED_OPSET, Scope
from .installed_runtime import quiet_options
from .options import load_model

#: A part of onnxruntime's error for an operator of the ONNX domain, of any other domain, and of a
#: domain that the model does not import.
_UNKNOWN = (
    "No Op registered for ",
    " is not a registered function/op",
    "No opset import for domain",
)


def is_error_of_unknown_operator(error: BaseException) -> bool:
    """Whether onnxruntime's error states that it does not have an operator."""
    return any(part in str(error) for part in _UNKNOWN)


def unknown_operators(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    options: onnxruntime.SessionOptions | None = None,
) -> list[UnknownOperator]:
    """Return the operators of a model that neither onnxruntime nor this package has.

    Args:
        model: the model.
        all_scopes: its scopes.
        options: options of a session, with the libraries of custom ops that were registered on
            them. Without options, operators of onnxruntime-extensions count as known: its users
            register its library.
    """
    known: KnowsOperator = _knows_operator_or_extension
    if options is not None:
        known = partial(_knows_operator, options)
    return find_unknown_operators(model, all_scopes, known)


def _knows_operator_or_extension(domain: str, op_type: str, version: int) -> bool:
    return domain in extensions.DOMAINS or _knows_operator(
        quiet_options(), domain, op_type, version
    )


def _knows_operator(
    options: onnxruntime.SessionOptions,
    domain: str,
    op_type: str,
    version: int,
) -> bool:
    """Whether sessions with ``options`` have an operator.

    A model of one node of that operator is loaded. Its number of inputs may be wrong, but
    onnxruntime looks for the operator first.
    """
    versions = {"": UNSTATED_OPSET, domain: version}
    value = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, None)
    node = helper.make_node(op_type, ["X"], ["Y"], domain=domain)
    graph = helper.make_graph([node], "operator", [value], [onnx.ValueInfoProto(name="Y")])
    opsets = [helper.make_opsetid(*entry) for entry in versions.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        load_model(options, model.SerializeToString())
    except Exception as error:
        return not is_error_of_unknown_operator(error)
    return True
