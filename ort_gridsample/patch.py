"""Rewriting a model's nodes to this package's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Literal

import onnx
from onnx import helper, inliner

from . import failures, spec
from .errors import GridSampleError
from .graphs import Scope, function_key, names, scopes, unique
from .inference import Inference
from .models import read_model
from .ops import DOMAIN, VERSION, where
from .records import NodeRecord, find

Selection = Literal["all", "unsupported"] | Callable[[NodeRecord], bool]


def patch_model(model: onnx.ModelProto | str | PathLike[str], *, nodes: Selection = "all") -> onnx.ModelProto:
    """A copy of ``model`` in which GridSample and AffineGrid nodes are this package's ops.

    The result runs on any ``onnxruntime.InferenceSession`` whose options went through :func:`ort_gridsample.register`.
    Names of inputs, outputs, initializers and nodes, value_info, metadata and doc strings stay as they are. float16 and
    bfloat16 tensors go through Casts to float32 and back, as no Python-defined op can take them. Patching a patched
    model changes nothing.

    Args:
        model: a ModelProto, which is not changed, or a path; the external data of a path is loaded, as by
            ``onnx.load``.
        nodes: ``"all"``; ``"unsupported"``, those that the installed onnxruntime does not run by itself (or that
            cannot be known before it runs); or a function from a :class:`NodeRecord` to a bool.

    Raises:
        GridSampleError: a node concerned is not what its opset allows, or the file is not an ONNX model.
        OSError: the file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
    else:
        copy = read_model(model, external_data=True)
    patch_in_place(copy, nodes)
    return copy


def patch_in_place(model: onnx.ModelProto, nodes: Selection = "all") -> list[NodeRecord]:
    """Do as :func:`patch_model` to ``model`` itself, and return the records of the nodes that it replaced."""
    found = scopes(model)
    selected = [record for record in find(found, Inference(model, found)) if _is_selected(record, nodes)]
    for record in selected:
        if record.error is not None:
            raise record.error
    torn = {function_key(r.scope.function)[:2] for r in selected if r.scope.function is not None and _is_torn(r)}
    if torn:
        # What one call of the function needs a Cast for, another must not cast: each gets a body of its own.
        model.CopyFrom(inliner.inline_selected_functions(model, sorted(torn)))
        return patch_in_place(model, nodes)
    if not selected:
        return []
    taken = names(model)
    for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
        replaced = {record.index: record for record in selected if record.scope is scope}
        if replaced:
            _rewrite(scope, replaced, taken)
            _import_domain(scope.function or model)
    _import_domain(model)
    return selected


def bind_threads(model: onnx.ModelProto, num_threads: int) -> bool:
    """Let the ops in ``model`` use ``num_threads`` threads, 0 for the process' default; whether that changed it."""
    changed = False
    for scope in scopes(model):
        for node in scope:
            for attribute in node.attribute if node.domain == DOMAIN else ():
                if attribute.name == "num_threads" and attribute.i != num_threads:
                    attribute.i, changed = num_threads, True
    return changed


def _is_selected(record: NodeRecord, nodes: Selection) -> bool:
    if record.patched:
        return False
    if callable(nodes):
        return bool(nodes(record))
    if nodes not in ("all", "unsupported"):
        raise GridSampleError("patch_model", "nodes", repr(nodes), "'all', 'unsupported' or a function of a NodeRecord")
    return nodes == "all" or not record.native


def _is_torn(record: NodeRecord) -> bool:
    """Whether calls of the function bring different types, of which one needs a Cast."""
    return any(len(types) > 1 and any(spec.TYPES[t].carrier != t for t in types) for types in record.types.values())


def _rewrite(scope: Scope, replaced: dict[int, NodeRecord], taken: set[str]) -> None:
    """Put ops in the place of the nodes ``replaced``, and a guard behind each."""
    rewritten: list[onnx.NodeProto] = []
    guards: list[onnx.NodeProto] = []
    zero = unique("ort_gridsample_zero", taken)
    for index, node in enumerate(scope):
        record = replaced.get(index)
        if record is None:
            rewritten.append(node)
            continue
        before, op, after = _op(record, taken)
        rewritten += [*before, op, *after]
        unread = unique(f"{op.output[0]}_unread", taken)
        guards.append(helper.make_node("Gather", [zero, op.output[1]], [unread], failures.guard_name(_where(record))))
    # The first node's guard comes last: onnxruntime walks back from the last node, so that a failed op is reported
    # before what reads its placeholder can fail.
    constant = helper.make_node("Constant", [], [zero], value_ints=[0])
    rewritten += [constant, *reversed(guards)]
    _set_nodes(scope.container, rewritten)


def _set_nodes(container: onnx.GraphProto | onnx.FunctionProto, nodes: Sequence[onnx.NodeProto]) -> None:
    copies = onnx.GraphProto(node=nodes)  # before the list that holds the originals is emptied
    del container.node[:]
    container.node.extend(copies.node)


def _op(record: NodeRecord, taken: set[str]) -> tuple[list[onnx.NodeProto], onnx.NodeProto, list[onnx.NodeProto]]:
    """The op in the place of the node of ``record``, with the Casts before and after it."""
    node = record.node
    op = onnx.NodeProto(op_type=record.op_type, domain=DOMAIN, name=node.name, doc_string=node.doc_string)
    op.metadata_props.extend(node.metadata_props)
    before, after = [], []
    for name, value in zip(record.inputs, node.input, strict=True):
        op.input.append(value)
        if name in record.casts:
            op.input[-1] = unique(f"{value}_as_{record.casts[name]}", taken)
            before.append(helper.make_node("Cast", [value], op.input[-1:], to=_elem_type(record.casts[name])))
    first, value = next(iter(record.inputs)), node.output[0]
    op.output.append(value)
    if first in record.casts:  # the output has the first input's type
        op.output[0] = unique(f"{value}_as_{record.casts[first]}", taken)
        after.append(helper.make_node("Cast", op.output[:], [value], to=_elem_type(record.types[first][0])))
    elif record.scope.function is not None:
        # Inside a function onnxruntime infers types before it looks for ops of ours; CastLike tells it Y's.
        op.output[0] = unique(f"{value}_untyped", taken)
        after.append(helper.make_node("CastLike", [op.output[0], node.input[0]], [value]))
    op.output.append(unique(f"{value}_status", taken))
    _set_attributes(op, record)
    return before, op, after


def _set_attributes(op: onnx.NodeProto, record: NodeRecord) -> None:
    """Every attribute written out: an op whose declared attribute is missing cannot be created."""
    written = {attribute.name: attribute for attribute in record.node.attribute}
    for name, value in record.attributes.items():
        if name in written and written[name].ref_attr_name:
            op.attribute.append(written[name])
            _give_default(record, written[name])
        else:
            op.attribute.append(helper.make_attribute(name, value))
    op.attribute.append(helper.make_attribute("node", record.label))
    op.attribute.append(helper.make_attribute("num_threads", 0))


def _give_default(record: NodeRecord, reference: onnx.AttributeProto) -> None:
    """Let the function's attribute have the operator's default where a call leaves it out."""
    function, name = record.scope.function, reference.ref_attr_name
    if function is not None and name in function.attribute:
        function.attribute.remove(name)
        function.attribute_proto.append(helper.make_attribute(name, record.default(reference.name)))


def _elem_type(type_name: str) -> int:
    return int(onnx.TensorProto.DataType.Value(spec.TYPES[type_name].onnx.upper()))


def _where(record: NodeRecord) -> str:
    return where(record.op_type, record.label)


def _import_domain(proto: onnx.ModelProto | onnx.FunctionProto) -> None:
    if all(entry.domain != DOMAIN for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
