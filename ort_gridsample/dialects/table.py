"""The table of all dialects: nodes of the standard, of this package and of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from .. import spec
from ..reference.coordinates import PADDING_RULES
from ..reference.taps import MODE_RULES
from .spelling import AttributeScalar, Dialect, PlanarDialect, Spelling

_BOOLEAN: Mapping[AttributeScalar, AttributeScalar] = {0: 0, 1: 1}

# The standard

#: The name of the standard's dialects, and of the target that writes them.
AI_ONNX: Final = "ai.onnx"


def _spellings(
    attributes: Mapping[str, spec.Attribute],
) -> dict[str, Spelling]:  # pragma: no mutate block
    """Return the attributes of a version of an operator, as the standard spells them."""

    def plain(written: AttributeScalar) -> AttributeScalar:
        return spec.mode_of(written) if isinstance(written, str) else written

    spellings = {}
    for name, attribute in attributes.items():
        values = {plain(value): value for value in attribute.allowed}
        spellings[name] = Spelling(name, values, plain(attribute.default))
    return spellings


def _standard_version(operator: str, first_opset: int) -> Dialect:  # pragma: no mutate block
    """Return the version of ``operator`` since the opset ``first_opset``, as a dialect."""
    return Dialect(
        name=AI_ONNX,
        operator=operator,
        op_type=operator,
        domains=("",),
        attributes=_spellings(spec.OPERATORS[operator][first_opset].attributes),
        version=first_opset,
    )


#: Operator -> first opset of a version -> the dialect of this version.
STANDARD = {
    operator: {first_opset: _standard_version(operator, first_opset) for first_opset in versions}
    for operator, versions in spec.OPERATORS.items()
}
_OPSET_16 = STANDARD["GridSample"][16]


def standard(operator: str, opset: int) -> Dialect:
    """Return the standard's dialect of ``operator`` in ``opset``.

    If ``opset`` is older than the operator, return the dialect of its first version.
    """
    return STANDARD[operator][spec.version_of(operator, opset) or min(STANDARD[operator])]


def _newest_versions_as(
    name: str, domain: str, **other: Any
) -> dict[str, Dialect]:  # pragma: no mutate block
    """Return operator -> the standard's newest dialect, with these fields."""
    dialects = {}
    for operator, versions in STANDARD.items():
        dialects[operator] = replace(
            versions[max(versions)],
            name=name,
            domains=(domain,),
            **other,
        )
    return dialects


# Nodes of this package

#: The domain of this package's own ops, and its version.
DOMAIN: Final = "ort_gridsample"
VERSION = 1
#: The target of compiled ops, and their domain.
COMPILED: Final = "compiled"
COMPILED_DOMAIN: Final = "ort_gridsample.compiled"
#: The operator that is equivalent to several GridSamples and the weighted sum of their outputs.
ATTENTION: Final = "DeformableAttention"
#: The compiled op for a GridSample and the nodes that compute its grid by arithmetic. Only sessions
#: write it.
FUSED: Final = "FusedGridSample"
#: The compiled ops for a GridSample and the nodes that compute its grid.
FUSED_TYPES: Final = frozenset(
    {FUSED, *(operator.fused_type for operator in spec.OP_SPECS.values() if operator.fused_type)}
)

#: Operator -> the type of its compiled op.
COMPILED_TYPES: Final = {
    **{name: operator.compiled_type for name, operator in spec.OP_SPECS.items()},
    **{name: name for name in FUSED_TYPES},
}

#: The domain of standard sampling nodes while the opset of their model is converted. They have the
#: attributes of the newest version, whatever the opset is.
UNVERSIONED: Final = "ort_gridsample.unversioned"
UNVERSIONED_DIALECTS = _newest_versions_as(UNVERSIONED, UNVERSIONED)

#: The dialect of subgraphs of basic operators, which :mod:`ort_gridsample.detection.decomposed`
#: finds.
DECOMPOSED: Final = "decomposed"


def _with_all_modes(dialect: Dialect) -> Dialect:
    """Return a dialect of GridSample with every mode and padding of this package."""
    attributes = dict(dialect.attributes)
    for name, words in (("mode", MODE_RULES), ("padding_mode", PADDING_RULES)):
        attributes[name] = replace(attributes[name], values={word: word for word in words})
    return replace(dialect, attributes=attributes)


#: Operator -> the dialect of this package's Python ops: the newest attributes, every mode and
#: padding, and two attributes that do not affect the result.
PACKAGE_DIALECTS = _newest_versions_as(
    DOMAIN, DOMAIN, ignored=("node", "num_threads"), version=VERSION
)
PACKAGE_DIALECTS["GridSample"] = _with_all_modes(PACKAGE_DIALECTS["GridSample"])
PACKAGE_DIALECTS[ATTENTION] = Dialect(
    name=DOMAIN,
    operator=ATTENTION,
    op_type=ATTENTION,
    domains=(DOMAIN,),
    attributes=_spellings(spec.newest(ATTENTION).attributes),
    ignored=("node", "num_threads", "points"),
)
_COMPILED_ATTENTION_ATTRIBUTES = _spellings(
    {**spec.newest(ATTENTION).attributes, **spec.OP_SPECS[ATTENTION].compiled_attributes}
)

#: Operator -> the dialect of a subgraph that computes it.
DECOMPOSED_DIALECTS = _newest_versions_as(DECOMPOSED, DECOMPOSED, reads_only=True)
DECOMPOSED_DIALECTS["GridSample"] = _with_all_modes(DECOMPOSED_DIALECTS["GridSample"])
DECOMPOSED_DIALECTS[ATTENTION] = replace(
    PACKAGE_DIALECTS[ATTENTION],
    name=DECOMPOSED,
    domains=(DECOMPOSED,),
    attributes=_COMPILED_ATTENTION_ATTRIBUTES,
    reads_only=True,
)

_COMPILED_DIALECTS = _newest_versions_as(COMPILED, COMPILED_DOMAIN, ignored=("node",), version=1)
_COMPILED_DIALECTS["GridSample"] = _with_all_modes(_COMPILED_DIALECTS["GridSample"])
for _operator, _dialect in _COMPILED_DIALECTS.items():
    _COMPILED_DIALECTS[_operator] = replace(_dialect, op_type=COMPILED_TYPES[_operator])
_COMPILED_ATTENTION = replace(
    PACKAGE_DIALECTS[ATTENTION],
    name=COMPILED,
    domains=(COMPILED_DOMAIN,),
    attributes=_COMPILED_ATTENTION_ATTRIBUTES,
    ignored=("node", "points"),
    version=1,
)

#: The dialects that only this package writes. A node of one is found by its domain and its type,
#: before any other dialect is tried, and so no added dialect can take it.
PACKAGE_NODES: Final = (
    *PACKAGE_DIALECTS.values(),
    *UNVERSIONED_DIALECTS.values(),
    *_COMPILED_DIALECTS.values(),
    _COMPILED_ATTENTION,
)

# Nodes of other packages

#: PyTorch's integers.
_PYTORCH_CODES: Mapping[str, Spelling] = {
    "mode": Spelling("interpolation_mode", dict(spec.PYTORCH_MODES.items())),
    "padding_mode": Spelling("padding_mode", dict(spec.PYTORCH_PADDING_MODES.items())),
    "align_corners": Spelling("align_corners", _BOOLEAN),
}
#: The same integers as constant inputs, or as attributes.
_PYTORCH_CODES_AS_INPUTS = {
    "mode": replace(_PYTORCH_CODES["mode"], input_index=2),
    "padding_mode": replace(_PYTORCH_CODES["padding_mode"], input_index=3),
    "align_corners": replace(_PYTORCH_CODES["align_corners"], input_index=4),
}
_ALL_MODE_WORDS = (*spec.MODES, *spec.MODE_SYNONYMS)
_MODE_WORDS: Mapping[AttributeScalar, AttributeScalar] = {
    word: spec.mode_of(word) for word in _ALL_MODE_WORDS
}
_PADDING_WORDS: Mapping[AttributeScalar, AttributeScalar] = {
    word: word for word in spec.PADDING_MODES
}
#: The integers of TensorRT's plugins, or the standard's words in exports that rename the standard's
#: node. The other names are those of onnxparser-trt-plugin-sample and of the many exports that
#: follow it.
_PLUGIN_CODES = {
    "mode": replace(
        _PYTORCH_CODES["mode"], other_names=("interpolationmode", "mode"), other_values=_MODE_WORDS
    ),
    "padding_mode": replace(
        _PYTORCH_CODES["padding_mode"], other_names=("paddingmode",), other_values=_PADDING_WORDS
    ),
    "align_corners": replace(
        _PYTORCH_CODES["align_corners"], other_names=("aligncorners",), other_values=_BOOLEAN
    ),
}
#: The same, where 0 is the default of each attribute.
_PLUGIN_CODES_OR_0 = {
    "mode": replace(_PLUGIN_CODES["mode"], default="linear"),
    "padding_mode": replace(_PLUGIN_CODES["padding_mode"], default="zeros"),
    "align_corners": replace(_PLUGIN_CODES["align_corners"], default=0),
}
#: The domain in which nodes of TensorRT's plugins are written. They are read in any domain.
_TENSORRT_DOMAIN = "trt.plugins"
_PLUGIN_ATTRIBUTES = ("plugin_version", "plugin_namespace", "name", "info", "version", "namespace")

#: PyTorch's names of GridSample: the function that users call, and the functions that it dispatches
#: to.
SAMPLERS = ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
_GENERATOR = "affine_grid_generator"
_ATEN_DOMAINS = ("aten", "org.pytorch.aten")
_OVERLOAD = ("overload_name",)

_tensorrt_plugin = partial(
    Dialect,
    operator="GridSample",
    attributes=_PLUGIN_CODES,
    ignored=_PLUGIN_ATTRIBUTES,
)
_affine_grid_generator = partial(
    Dialect,
    operator="AffineGrid",
    attributes={"align_corners": Spelling("align_corners", _BOOLEAN, input_index=2)},
    input_attributes={"size": "size"},
    reads_only=True,
)


#: The domains of OpenMMLab's packages.
_OPENMMLAB_DOMAINS = ("mmcv", "mmdeploy")
#: The dialects of OpenMMLab's packages: PyTorch's integers as attributes. The execution provider
#: has an op for their nodes.
OPENMMLAB: Final = tuple(
    Dialect(
        name=domain,
        operator="GridSample",
        op_type="grid_sampler",
        domains=(domain,),
        attributes=_PYTORCH_CODES,
        axes=(2,),
    )
    for domain in _OPENMMLAB_DOMAINS
)


#: The dialects of GridSample and AffineGrid that are listed, and that are targets unless they are
#: only read. They are in the order in which a node is compared with them. Those of compiled ops are
#: also in :data:`PACKAGE_NODES`; they are here because ``compiled`` is a target.
BUILT_IN: Final[tuple[Dialect, ...]] = (
    *_COMPILED_DIALECTS.values(),
    Dialect(
        name="com.microsoft",
        operator="GridSample",
        op_type="GridSample",
        domains=("com.microsoft",),
        attributes=_OPSET_16.attributes,
        axes=(2,),
    ),
    *OPENMMLAB,
    # The nodes of mmcv's and mmdeploy's symbolics in exports that lost their domains ("grid_sampler
    # is not a registered function/op"), and the nodes of onnxservice, which are the same.
    Dialect(
        name="grid_sampler",
        operator="GridSample",
        op_type="grid_sampler",
        domains=("", "onnxservice"),
        attributes=_PYTORCH_CODES_AS_INPUTS,
        reads_only=True,
    ),
    _tensorrt_plugin(
        name="GridSampler",
        op_type="GridSampler",
        domains=(),
        written_domain=_TENSORRT_DOMAIN,
    ),
    # grid-sample3d-trt-plugin, whose attributes default to 0. The exports of LivePortrait and
    # SparseOcc rename the standard's node for it, with the standard's attributes or without any.
    _tensorrt_plugin(
        name="GridSample3D",
        op_type="GridSample3D",
        domains=(),
        attributes=_PLUGIN_CODES_OR_0,
        axes=(3,),
        written_domain=_TENSORRT_DOMAIN,
    ),
    # BEVFormer_tensorrt's plugins. Those with a trailing 2 request other layouts from TensorRT.
    *(
        PlanarDialect(
            name=op_type,
            operator="GridSample",
            op_type=op_type,
            domains=(),
            attributes=_PLUGIN_CODES,
            ignored=_PLUGIN_ATTRIBUTES,
            axes=(axes,),
            reads_only=True,
        )
        for axes in (2, 3)
        for op_type in (f"GridSampler{axes}DTRT", f"GridSampler{axes}DTRT2")
    ),
    # A plugin's node with the name of the standard's, from before the standard had the operator.
    _tensorrt_plugin(
        name="GridSample plugin",
        op_type="GridSample",
        domains=("",),
        reads_only=True,
        requires_code=True,
    ),
    *(
        Dialect(
            name=f"aten::{op_type}",
            operator="GridSample",
            op_type=op_type,
            domains=_ATEN_DOMAINS,
            attributes=_PYTORCH_CODES_AS_INPUTS,
            reads_only=True,
        )
        for op_type in SAMPLERS
    ),
    Dialect(
        name="ATen",
        operator="GridSample",
        op_type="ATen",
        domains=_ATEN_DOMAINS,
        attributes=_PYTORCH_CODES_AS_INPUTS,
        identifying_attributes={"operator": SAMPLERS},
        ignored=_OVERLOAD,
        reads_only=True,
    ),
    _affine_grid_generator(
        name=f"aten::{_GENERATOR}",
        op_type=_GENERATOR,
        domains=(*_ATEN_DOMAINS, "", "onnxservice"),
    ),
    _affine_grid_generator(
        name=f"ATen {_GENERATOR}",
        op_type="ATen",
        domains=_ATEN_DOMAINS,
        identifying_attributes={"operator": (_GENERATOR,)},
        ignored=_OVERLOAD,
    ),
)

# Deformable attention of other packages


#: The axes of the heights and widths of all levels, and of their first pixels.
LENGTHS_AXES = "L, 2"
STARTS_AXES = "L"


@dataclass(frozen=True)
class AttentionSignature:
    """The inputs and the output of another package's node that computes deformable attention.

    Attributes:
        inputs: the names of the inputs, in their order -> their axes. The names of axes are those
            of :mod:`ort_gridsample.detection.attention.layouts`.
        output_layout: the output's layout, a key of :data:`ort_gridsample.spec.OUTPUT_LAYOUTS`.
        domains: the domains in which the node is read. If empty, it is read in any domain.
        op_domains: the domains in which the execution provider has an op for the node.
    """

    inputs: Mapping[str, str]
    output_layout: str
    domains: tuple[str, ...] = ()
    op_domains: tuple[str, ...] = ()

    @property
    def is_com_microsoft(self) -> bool:
        """Whether the node is read in the domain ``com.microsoft`` only."""
        return self.domains == ("com.microsoft",)

    @property
    def lengths_input(self) -> str:
        """The name of the input that has the spatial lengths of each level."""
        return next(name for name, axes in self.inputs.items() if axes == LENGTHS_AXES)

    @property
    def starts_input(self) -> str:
        """The name of the input that has the first pixel of each level; empty if there is none."""
        return next((name for name, axes in self.inputs.items() if axes == STARTS_AXES), "")

    @property
    def integer_inputs(self) -> tuple[str, str]:
        """The names of the inputs that are integers; empty for none."""
        return self.lengths_input, self.starts_input

    @property
    def has_offsets(self) -> bool:
        """Whether the node computes its locations from reference points and offsets in pixels."""
        return "sampling_offsets" in self.inputs


_INPUTS_WITH_LOCATIONS = {
    "value": "B, S, H, D",
    "spatial_shapes": LENGTHS_AXES,
    "level_start_index": STARTS_AXES,
    "sampling_locations": "B, Q, H, L, P, 2",
    "attention_weights": "B, Q, H, L, P",
}
_INPUTS_WITH_OFFSETS = {
    "value": "B, S, H, D",
    "value_spatial_shapes": LENGTHS_AXES,
    "reference_points": "B, Q, 1, 2·G",
    "sampling_offsets": "B, Q, H, L·P·2",
    "attention_weights": "B, Q, H, L·P",
}
#: The type of a node -> its signature. Sources: TensorRT's multiscaleDeformableAttnPlugin,
#: mmdeploy's ms_deform_attn, BEVFormer_tensorrt's multi_scale_deformable_attn.
ATTENTION_SIGNATURES: Mapping[str, AttentionSignature] = {
    "MultiscaleDeformableAttnPlugin_TRT": AttentionSignature(
        _INPUTS_WITH_LOCATIONS, output_layout="by_head", op_domains=(_TENSORRT_DOMAIN,)
    ),
    "MMCVMultiScaleDeformableAttention": AttentionSignature(
        _INPUTS_WITH_LOCATIONS, output_layout="by_query", op_domains=_OPENMMLAB_DOMAINS
    ),
    "MultiScaleDeformableAttention": AttentionSignature(
        _INPUTS_WITH_LOCATIONS, output_layout="by_query", domains=("com.microsoft",)
    ),
    "MultiScaleDeformableAttnTRT": AttentionSignature(
        _INPUTS_WITH_OFFSETS, output_layout="by_head"
    ),
    "MultiScaleDeformableAttnTRT2": AttentionSignature(
        _INPUTS_WITH_OFFSETS, output_layout="by_head"
    ),
}

#: The dialect of all nodes of :data:`ATTENTION_SIGNATURES`. As a target it writes TensorRT's.
TENSORRT_ATTENTION = replace(
    PACKAGE_DIALECTS[ATTENTION],
    name="tensorrt-plugins",
    op_type="MultiscaleDeformableAttnPlugin_TRT",
    domains=(),
    attributes={"align_corners": Spelling("align_corners", {0: 0}, default=0)},
    written_domain=_TENSORRT_DOMAIN,
    ignored=("plugin_version", "plugin_namespace", "im2col_step"),
)

#: The types of nodes that are equivalent to several nodes: deformable attention, and samplers of
#: planar grids.
COMPOSITE_OP_TYPES = frozenset(
    (
        *ATTENTION_SIGNATURES,
        ATTENTION,
        *(dialect.op_type for dialect in BUILT_IN if dialect.has_planar_grids),
    )
)
