"""Whether the installed onnxruntime has an operator, with the libraries of certain options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx
import onnxruntime

from ..custom_ops.python_ops import extensions
from ..detection.unknown_nodes import KnowsOperator, UnknownOperator, find_unknown_operators
from ..graph.scope import Scope
from .installed_runtime import quiet_options
from .options import has_operator


def unknown_operators(
    model: onnx.ModelProto,
    all_scopes: Sequence[Scope],
    options: onnxruntime.SessionOptions | None = None,
) -> list[UnknownOperator]:
    """Return the operators of a model that neither onnxruntime nor this package has.

    Args:
        options: options of a session, with the libraries of custom ops that were registered on
            them. Without options, operators of onnxruntime-extensions count as known: its users
            register its library.
    """
    known: KnowsOperator = _knows_operator_or_extension
    if options is not None:
        known = partial(has_operator, options)
    return find_unknown_operators(model, all_scopes, known)


def _knows_operator_or_extension(domain: str, op_type: str, version: int) -> bool:
    return domain in extensions.DOMAINS or has_operator(quiet_options(), domain, op_type, version)
