"""The public functions that read a model and return records or a patched model.

They query the installed onnxruntime, on which detection and rewriting do not depend. Where none is
installed, some properties of a model are unknown.
"""

from __future__ import annotations

import importlib
import logging
from copy import deepcopy
from typing import Literal

import onnx

from .detection.find import records_of, standard_records_of
from .detection.node_checks import UNKNOWN_UNTIL_RUN
from .detection.records import NodeRecord, NodeRecords
from .dialects.registry import TWO_AXES
from .dialects.spelling import Dialect
from .dialects.table import AI_ONNX
from .graph.files import Model, read_model, translate_errors
from .graph.runtimes import RuntimeName
from .inference.runtime_probe import MissingRuntime, RuntimeProbe
from .rewriting.coordinate_nodes import coordinate_nodes as coordinate_node_names
from .rewriting.passes import Selection
from .rewriting.patch import patch_to
from .versions import check_module

logger = logging.getLogger("ort_gridsample")

#: The predefined targets. A dialect that was added is also a target.
TargetName = Literal[
    "ort_gridsample",
    "compiled",
    "ai.onnx",
    "ai.onnx-2d",
    "primitives",
    "com.microsoft",
    "mmcv",
    "mmdeploy",
    "GridSampler",
    "GridSample3D",
    "tensorrt-plugins",
]


#: What a patch without onnxruntime may miss.
MISSED_WITHOUT_ONNXRUNTIME = (
    "onnxruntime is not installed: operators that were decomposed to basic ones are not detected, "
    "and types behind operators that onnx does not know are unknown"
)


def installed_probe() -> RuntimeProbe:
    """Return the probe of the installed onnxruntime; one that finds nothing if none is installed.

    Raises:
        ImportError: the installed onnxruntime is too old, or not complete.
    """
    try:
        importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        return RuntimeProbe(MissingRuntime())
    from .session.installed_runtime import PROBE

    return PROBE


def warn_of_missing_runtime(probe: RuntimeProbe) -> None:
    """Log a warning if the probe was called for properties of a model that stay unknown."""
    if not probe.has_runtime and probe.was_asked_about_model:
        logger.warning("%s; this model may have some", MISSED_WITHOUT_ONNXRUNTIME)


def warn_of_refused_nodes(model: onnx.ModelProto, target: str | None, probe: RuntimeProbe) -> None:
    """Log a warning if a model of standard nodes has some that onnxruntime does not run.

    Args:
        probe: tests whether onnxruntime runs a node.
    """
    if target not in (AI_ONNX, TWO_AXES) or not probe.has_runtime:
        return
    refused = [
        record
        for record in standard_records_of(model, probe)
        if not record.native and record.reason != UNKNOWN_UNTIL_RUN
    ]
    if not refused:
        return
    first = refused[0]
    others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    logger.warning(
        "the installed onnxruntime does not run %s%s of the patched model: %s",
        first.where,
        others,
        first.reason,
    )


def probe_for(nodes: Selection) -> RuntimeProbe:
    """Return the probe for a patch of ``nodes``.

    Raises:
        ImportError: ``nodes`` depend on the installed onnxruntime, and none is installed; or the
            installed one cannot be used.
    """
    if nodes == "unsupported":
        check_module("onnxruntime")
    return installed_probe()


def inspect_model(model: Model) -> list[NodeRecord]:
    """Return a record for every GridSample, AffineGrid and deformable attention of a model.

    Nodes in branches, loops and functions have records, too. A notebook displays them as a table.

    >>> from onnx import parser
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 20]>
    ...     g (float[1,1,8,8] X, float[1,4,4,2] grid) => (float[1,1,4,4] Y)
    ...     { [sample] Y = GridSample (X, grid) }
    ... ''')
    >>> [(record.op_type, record.mode) for record in inspect_model(model)]
    [('GridSample', 'linear')]

    Args:
        model: a ModelProto, the serialized bytes of a model, or a path. The external data of a path
            is not read.

    Returns:
        The records. Where onnxruntime is not installed, it is unknown which nodes it runs, and a
        warning is logged if other properties may be missing.

    Raises:
        GridSampleError: the file or the bytes are not an ONNX model.
        ImportError: the installed onnxruntime is too old, or not complete.
        OSError: the file cannot be read.
    """
    proto = read_model(model)
    with translate_errors(proto):
        probe = installed_probe()
        records = NodeRecords(records_of(proto, probe))
        warn_of_missing_runtime(probe)
        return records


def coordinate_nodes(model: Model, *, attention: bool = True) -> list[str]:
    """Return the names of the nodes that compute with coordinates.

    Quantization and float16 make the results of these nodes wrong. Pass their names to
    ``onnxruntime.quantization`` as ``nodes_to_exclude``, after ``quant_pre_process``, or to
    ``onnxruntime.transformers.onnx_model.OnnxModel.convert_float_to_float16`` as
    ``node_block_list``. Convert first and patch last. The converters in
    ``onnxruntime.transformers.float16`` and ``onnxconverter_common`` round coordinates between two
    listed nodes, or write models that onnxruntime refuses.

    >>> from onnx import parser
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 20]>
    ...     g (float[1,1,8,8] X, float[1,4,4,2] flow) => (float[1,1,4,4] Y) {
    ...         [double] grid = Add (flow, flow)
    ...         [sample] Z = GridSample (X, grid)
    ...         [relu] Y = Relu (Z)
    ...     }
    ... ''')
    >>> coordinate_nodes(model)
    ['double', 'sample']

    No converter treats listed nodes in the bodies of If, Loop and Scan. A model that is patched to
    ``"primitives"`` before a conversion to float16 needs ``functions=True`` or, for
    ``onnxconverter_common.float16``, ``for_runtime="onnxconverter-common"``.

    Args:
        model: a ModelProto, the serialized bytes of a model, or a path. The external data of a path
            is not read.
        attention: whether to list the nodes of deformable attention, too. Quantization and Casts
            between them would keep a session from replacing them by one op.

            These are the nodes between the values, locations and weights and the output. Without
            them, as many nodes as possible are converted, as a runtime may need that has no op for
            deformable attention.

    Returns:
        The names of GridSample and AffineGrid nodes in any dialect, of the nodes or calls that they
        were lowered to, and of the arithmetic that leads only to their coordinates; and the names
        of the nodes of deformable attention. Arithmetic is listed only in the graph of the node
        that reads it, not around a branch or a loop body.

    Raises:
        GridSampleError: such a node has no name, or the file or the bytes are not an ONNX model.
        ImportError: the installed onnxruntime is too old, or not complete.
        OSError: the file cannot be read.
    """
    proto = read_model(model)
    with translate_errors(proto):
        return coordinate_node_names(proto, attention=attention, probe=installed_probe())


def patch_model(
    model: Model,
    *,
    nodes: Selection = "all",
    target: TargetName | Dialect | None = None,
    functions: bool = False,
    opset: int | None = None,
    for_runtime: RuntimeName | None = None,
    max_multiply_adds: int | None = None,
) -> onnx.ModelProto:
    """Return a copy of a model with its GridSample and AffineGrid nodes rewritten for a target.

    A target is what the nodes become, such as basic operators for a runtime that has no GridSample.
    Nodes in the spelling of another package (its dialect) are rewritten as well.

    >>> from onnx import parser
    >>> model = parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 20]>
    ...     g (float[1,1,8,8] X, float[1,4,4,2] grid) => (float[1,1,4,4] Y)
    ...     { [sample] Y = GridSample (X, grid) }
    ... ''')
    >>> patched = patch_model(model, target="com.microsoft")
    >>> [(node.domain, node.op_type) for node in patched.graph.node]
    [('com.microsoft', 'GridSample')]

    The names of inputs, outputs, initializers and nodes, value_info, metadata and doc strings do
    not change, with one exception: for values that lead to replaced nodes or are computed from
    their outputs, value_info loses the lengths and shapes that nothing else implies. onnxruntime
    would rely on them in a run. Patching a patched model changes nothing.

    Args:
        model: a ModelProto, which is not changed, the serialized bytes of a model, or a path. The
            external data of a path is loaded.
        nodes: the nodes to rewrite: ``"all"``, ``"unsupported"`` for those that the installed
            onnxruntime cannot run or that depend on shapes unknown before a run, or a function from
            a :class:`NodeRecord` to a bool.

            Only ``"unsupported"`` needs onnxruntime.
        target: what the nodes become. None: ``"ort_gridsample"``, or what ``for_runtime`` needs.

            ``"ort_gridsample"``: this package's ops that are defined in Python, for onnxruntime:
            ``onnxruntime.InferenceSession("patched.onnx", ogs.register())``.
            ``ogs.InferenceSession`` runs the nodes as compiled ops where it can.

            float16 and bfloat16 tensors are cast to float32 and back, because Python-defined ops
            cannot accept them.

            ``"compiled"``: this package's compiled ops, for onnxruntime where Numba is installed,
            in the same session, or anywhere with a library. Nodes with strings stay as they are.

            ``"ai.onnx"``: the standard operators. The model's opset is raised if it does not have
            them.

            The opset is not raised for decomposed operators alone. It is raised to 20 for 5-D nodes
            of other packages, which older opsets do not define, and for float64, which onnxruntime
            does not run before. With ``opset``, a warning is logged for nodes that onnxruntime does
            not run.

            ``"ai.onnx-2d"``: 4-D GridSamples of opset 16 to 19, also for 3-D and 5-D nodes, for
            runtimes that support no others. AffineGrid becomes basic operators.

            Of 5-D nodes, those in linear and nearest mode of floats are replaced. Such a node has
            an error of up to 2**-22 times the number of pixels of its two shortest spatial axes
            (their product, or that of the outer two if lengths are not known), times the difference
            between neighboring pixels.

            ``"primitives"``: a few basic standard operators (Gather, Mul, Pad, …), from opset 11
            on, for runtimes that have no GridSample. The result needs neither this package nor
            onnxruntime.

            Functions that contain such a node are inlined, unless ``functions`` is true.

            ``"com.microsoft"``, ``"mmcv"``, ``"mmdeploy"``, ``"GridSampler"``, ``"GridSample3D"``:
            the nodes of other packages, for the runtimes that have them. An added dialect, or its
            name, is a target as well. Nodes that the dialect cannot express stay as they are.

            ``"tensorrt-plugins"``: deformable attention as TensorRT's plugin
            ``MultiscaleDeformableAttnPlugin_TRT``. GridSamples outside of deformable attention stay
            as they are.
        functions: with ``"primitives"``, whether nodes that become the same operators share a
            function.
        opset: the opset to convert the whole model to, up or down. None: its own, or a newer one
            that the target needs.

            A conversion inlines the model's functions.
        for_runtime: the runtime or converter that shall read the model.

            It determines the target of each node, the operators and the newest opset.
            :data:`ort_gridsample.graph.runtimes.RUNTIMES` lists them, with the reasons. With a
            ``target`` of theirs, the targets before it are not used: for ``"tensorrt"``,
            ``"ai.onnx-2d"`` writes GridSamples instead of the plugin.
        max_multiply_adds: for a runtime without Gather, the maximum number of multiply-adds of a
            GridSample, which has one for each value of X at each output position, or of a
            deformable attention. None: 10 billion.

    Returns:
        The patched copy.

    Raises:
        GridSampleError: an argument is wrong; a node is not what its opset or dialect allows; the
            target cannot express it, or it takes too many multiply-adds; the file or the bytes are
            not an ONNX model; its external data lies outside its folder; or a node cannot be
            expressed in ``opset``, or onnx's version converter cannot convert it.
        ImportError: ``nodes`` is ``"unsupported"`` and onnxruntime is not installed; or the
            installed one is too old, or not complete.
        OSError: the file cannot be read.
    """
    copy = read_model(model, external_data=True)
    if copy is model:
        copy = deepcopy(copy)
    target_name = target.name if isinstance(target, Dialect) else target
    probe = probe_for(nodes)
    patch_to(
        copy,
        nodes=nodes,
        target=target_name,
        functions=functions,
        probe=probe,
        opset=opset,
        for_runtime=for_runtime,
        max_multiply_adds=max_multiply_adds,
    )
    warn_of_missing_runtime(probe)
    if for_runtime is None:
        warn_of_refused_nodes(copy, target_name, probe)
    return copy
