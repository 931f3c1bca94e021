"""Compare what inference finds for the values of a model with a run of the model."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import helper, inliner

import ort_gridsample as ogs
from ort_gridsample.graph.element_types import type_of
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.use_def import UseDef
from ort_gridsample.inference.lengths import Length, ScopeLengths
from ort_gridsample.inference.probe import Probe
from ort_gridsample.inference.types import Inference, TypeAndShape

Arrays = Mapping[str, np.ndarray]


def inferred_values(model: onnx.ModelProto, probe: Probe | None = None) -> dict[str, TypeAndShape]:
    """Return what is inferred for the values that the main graph of a model computes."""
    scopes = scopes_of(model)
    names = [name for outputs in scopes[0].outputs for name in outputs if name]
    inference = Inference(model, scopes, probe, {id(scopes[0]): names})
    return {name: inference.value_in_all_calls(scopes[0], name) for name in names}


def symbolic_shapes(model: onnx.ModelProto) -> dict[str, tuple[Length, ...] | None]:
    """Return the symbolic lengths of the values that the main graph of a model computes."""
    scopes = scopes_of(model)
    main = scopes[0]
    names = [name for outputs in main.outputs for name in outputs if name]
    samplers = {
        node.output[0]: (node.input[0], node.input[1])
        for node in main.nodes
        if node.op_type == "GridSample"
    }
    inference = Inference(model, scopes, None, {id(main): names})
    lengths = ScopeLengths(UseDef(main), inference, samplers)
    return {name: lengths.shape(name) for name in names}


def computed_values(model: onnx.ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Run a model without optimizations, and return the tensors that it computes.

    Sequences and outputs that onnxruntime leaves out are left out.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    graph = extended.graph
    names = [name for node in graph.node for name in node.output if name]
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ogs.InferenceSession(
        extended, options, providers=["CPUExecutionProvider"], nodes="unsupported"
    )
    outputs = session.run(names, dict(feeds))
    return {
        name: output
        for name, output in zip(names, outputs, strict=True)
        if isinstance(output, np.ndarray)
    }


def wrong_values(model: onnx.ModelProto, feeds: Arrays, probe: Probe | None = None) -> list[str]:
    """Return a line for each value whose inferred type, rank or length a run does not have.

    Unknown types, ranks and lengths are not wrong. The model is also read with its functions
    inlined, because a run returns none of their values.
    """
    called = inferred_values(model, probe) if model.functions else {}
    if model.functions:
        model = inliner.inline_local_functions(model)
    inferred = inferred_values(model, probe)
    symbolic = symbolic_shapes(model)
    arrays = computed_values(model, feeds)
    shapes = {
        name: array.shape
        for name, array in (feeds | arrays).items()
        if isinstance(array, np.ndarray)  # not the list of a sequence
    }
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    lines = []
    for name, array in arrays.items():
        values = {inferred[name], called.get(name, inferred[name])}
        values.add(TypeAndShape(shape=_evaluated(symbolic[name], shapes)))
        for value in values:
            if not _fits(value, array):
                found = f"inferred {value.type} {value.shape}, computed {array.dtype} {array.shape}"
                lines.append(f"{makers[name]} {name}: {found}")
    return lines


def _evaluated(
    lengths: tuple[Length, ...] | None, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int | None, ...] | None:
    """Return the numbers that symbolic lengths have in a run with these shapes."""
    if lengths is None:
        return None
    return tuple(
        length.number * prod(shapes[name][axis] for name, axis in length.unknown)
        if all(name in shapes for name, _ in length.unknown)
        else None
        for length in lengths
    )


def _fits(value: TypeAndShape, array: np.ndarray) -> bool:
    if value.type not in (None, type_of(helper.np_dtype_to_tensor_dtype(array.dtype))):
        return False
    if value.shape is None:
        return True
    if len(value.shape) != array.ndim:
        return False
    pairs = zip(value.shape, array.shape, strict=True)
    return all(length == actual for length, actual in pairs if isinstance(length, int))
