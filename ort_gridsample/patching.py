"""Models in, records or patched models out: what users call, which asks the installed onnxruntime where it must."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import onnx

from .detection.find import records_of
from .detection.records import NodeRecord, NodeRecords
from .dialects.table import DOMAIN, Dialect
from .graph.files import Model, explaining_invalid, read_model
from .rewriting.coordinate_nodes import coordinate_nodes as names_of
from .rewriting.patch import Selection, patch_to
from .rewriting.targets.runtimes import RuntimeName
from .rewriting.unfusing import unfused
from .session import native

#: The targets that are always there; a dialect that was added is a target as well.
TargetName = Literal[
    "ort_gridsample", "compiled", "ai.onnx", "ai.onnx-2d", "primitives",
    "com.microsoft", "mmcv", "mmdeploy", "GridSampler", "GridSample3D", "tensorrt-plugins",
]  # fmt: skip


def inspect_model(model: Model) -> list[NodeRecord]:
    """One record for every GridSample and AffineGrid node of ``model``, in every graph and function of it.

    In a notebook the list shows itself as a table.

    Args:
        model: a ModelProto, the bytes of a model, or a path (its external data is not read).

    Raises:
        GridSampleError: the file or the bytes are not an ONNX model.
        OSError: the file cannot be read.
    """
    proto = read_model(model)
    with explaining_invalid(proto):
        return NodeRecords(records_of(unfused(proto), native))


def coordinate_nodes(model: Model) -> list[str]:
    """The names of the nodes of ``model`` that compute with coordinates: quantization and float16 spoil these.

    They are GridSample and AffineGrid nodes in whatever dialect, the nodes or calls that they were lowered to, and the
    arithmetic that leads to their coordinates alone. For ``nodes_to_exclude`` of ``onnxruntime.quantization``, and
    ``node_block_list`` of ``onnxconverter_common.float16``. The latter rounds even what lies between two of them, where
    several read it: lower with ``functions=True``, or ``for_runtime="onnxconverter-common"``, for it.

    Args:
        model: a ModelProto, the bytes of a model, or a path (its external data is not read).

    Raises:
        GridSampleError: such a node has no name, or the file or the bytes are not an ONNX model.
        OSError: the file cannot be read.
    """
    proto = read_model(model)
    with explaining_invalid(proto):
        return names_of(proto)


def patch_model(
    model: Model, *, nodes: Selection = "all", target: TargetName | Dialect = DOMAIN, functions: bool = False,
    opset: int | None = None, for_runtime: RuntimeName | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """A copy of ``model`` in which GridSample and AffineGrid nodes, in whatever dialect, are what ``target`` says.

    Names of inputs, outputs, initializers and nodes, value_info, metadata and doc strings stay as they are; patching a
    patched model changes nothing. Of the values that lead to replaced nodes, or are made from their outputs, value_info
    loses the lengths and shapes that nothing else tells: onnxruntime would take them for those of a run.

    Args:
        model: a ModelProto, which is not changed, the bytes of a model, or a path; the external data of a path is
            loaded.
        nodes: ``"all"``; ``"unsupported"``, those that the installed onnxruntime does not run by itself (or that
            cannot be known before it runs); or a function from a :class:`NodeRecord` to a bool.
        target:
            ``"ort_gridsample"``: this package's ops. The result runs on any ``onnxruntime.InferenceSession`` whose
            options went through :func:`ort_gridsample.register`. float16 and bfloat16 tensors go through Casts to
            float32 and back, as no Python-defined op can take them.
            ``"compiled"``: this package's ops of machine code, which need Numba where they run, and take every type but
            strings. The result runs on such an ``InferenceSession`` too. Strings stay as they are.
            ``"ai.onnx"``: the standard operators, the model's opset raised where it has none yet.
            ``"ai.onnx-2d"``: 4-D GridSamples of opset 16 to 19, also of 5-D nodes (linear and nearest of floats) and of
                3-D ones, for what runs no others. A 5-D one is off by up to 2**-22 times the pixels of its two shortest
                spatial axes (their product, of the outer two where lengths are not known), times the difference between
                neighbouring pixels. AffineGrid becomes basic operators.
            ``"primitives"``: basic standard operators only, from opset 11 on; runs anywhere, without this package.
                Functions that hold such a node are inlined.
            ``"com.microsoft"``, ``"mmcv"``, ``"mmdeploy"``, ``"GridSampler"``, ``"GridSample3D"``, or a dialect that
            was added, or its name: that dialect. Nodes that it has no spelling for stay as they are.
            ``"tensorrt-plugins"``: deformable attention as TensorRT's plugin; GridSamples that are no part of it stay.
        functions: with ``"primitives"``, whether nodes that are lowered alike share a model-local function.
        opset: the opset of the ONNX domain that the whole model is converted to, up or down; None: its own, raised
            where the target needs a newer one. The model's functions are inlined then.
        for_runtime: with ``"primitives"``, the runtime or converter that needs a form or an older opset, if it is one
            of those: :data:`ort_gridsample.rewriting.targets.runtimes.RUNTIMES` says which and why.

    Raises:
        GridSampleError: a node concerned is not what its opset or dialect allows, the target cannot say it, the
            file or the bytes are not an ONNX model, its external data lies outside its folder, or a node of it cannot
            be said in ``opset`` or converted to it by onnx's version converter.
        OSError: the file cannot be read.
    """
    copy = deepcopy(model) if isinstance(model, onnx.ModelProto) else read_model(model, external_data=True)
    name = target.name if isinstance(target, Dialect) else target
    patch_to(copy, nodes, name, functions, native, opset, for_runtime)
    return copy
