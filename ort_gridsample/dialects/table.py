"""How the operators are spelled: by the specifications, and by everyone who needed them before or beside those.

One table. Reading a node and writing one are the same rows, read from left to right or back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..errors import GridSampleError
from ..functions import validation
from ..graph.scope import Key, domain_of, function_key
from ..reference.arrays import Array
from ..reference.coordinates import PADDING
from ..reference.taps import MODES

Plain = str | int


@dataclass(frozen=True)
class AttributeReference:
    """The value of a node's attribute that is its function's attribute of this ``name`` (ONNX's ``ref_attr_name``)."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


AttributeValue = Plain | AttributeReference
#: The value of a node's input by its position, where it is constant.
ConstantInput = Callable[[int], "Array | None"]


@dataclass(frozen=True)
class Spelling:
    """How a dialect spells one attribute of the operator.

    Attributes:
        name: the attribute's name on the node.
        values: the operator's value (a mode by its name in :data:`ort_gridsample.spec.MODES`) -> how it is written.
        default: the operator's value where the node has no such attribute; None: it must have one.
        position: the input that may hold the value instead, as a constant.
        names: other names of the attribute that are read as well.
        words: other ways to write a value that are read as well -> the operator's value.
    """

    name: str
    values: Mapping[Plain, Plain] = field(hash=False)
    default: Plain | None = None
    position: int | None = None
    names: tuple[str, ...] = ()
    words: Mapping[Plain, Plain] = field(default_factory=dict, hash=False)

    def is_spelled_as(self, other: Spelling) -> bool:
        """Whether a value that is written for one means the same for the other, also where it is left out."""
        return (self.values, self.default) == (other.values, other.default)


@dataclass(frozen=True)
class Dialect:
    """One way to write one operator as a node.

    Attributes:
        name: its name as a target of a patch.
        operator: a key of :data:`ort_gridsample.spec.OPERATORS`.
        op_type: the node's.
        domains: the node's, the one that is written first; empty: any is read, and ``written_domain`` is written.
        attributes: the operator's attribute -> its spelling.
        marks: attributes that tell the dialect: a node of it has each, with one of these values.
        ignored: attributes without effect on the result.
        axes: the numbers of spatial axes that it can have; None: any.
        version: of its domain, as a model imports it.
        written_domain: see ``domains``.
        input_attributes: operator's input -> the attribute (ints) that may hold it instead.
        reads_only: whether it is no target of a patch.
        coded: whether a node is of this dialect only if it has an integer where the standard has a word.
    """

    #: The coordinate at the edge of X in a grid (N, r, D1_out, …), whose coordinates are planes; 0: the grid is the
    #: standard's.
    plane_scale: ClassVar[int] = 0

    name: str
    operator: str
    op_type: str
    domains: tuple[str, ...]
    attributes: Mapping[str, Spelling] = field(hash=False)
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    ignored: tuple[str, ...] = ()
    axes: tuple[int, ...] | None = None
    version: int = 1
    written_domain: str = ""
    input_attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    reads_only: bool = False
    coded: bool = False

    @property
    def domain(self) -> str:
        """The domain of a node that is written."""
        return self.domains[0] if self.domains else self.written_domain

    def spells(self, node: onnx.NodeProto) -> bool:
        """Whether ``node`` is one of this dialect."""
        if node.op_type != self.op_type or (self.domains and domain_of(node.domain) not in self.domains):
            return False
        if self.coded:
            words = {name for s in self.attributes.values() if {*s.values} != {0, 1} for name in (s.name, *s.names)}
            if not any(a.type == onnx.AttributeProto.INT and a.name in words for a in node.attribute):
                return False
        found = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.name in self.marks}
        return all(found.get(name) in allowed for name, allowed in self.marks.items())

    def read(self, where: str, node: onnx.NodeProto, constant: ConstantInput, note: str) -> dict[str, AttributeValue]:
        """The operator's attributes of ``node``; ``note`` is put behind what is said to be expected.

        Raises:
            GridSampleError: an attribute is unknown, missing, not constant or not one of its values.
        """
        known = [s.name for s in self.attributes.values()]
        others = [name for s in self.attributes.values() for name in s.names]
        for attribute in node.attribute:
            if attribute.name not in {*known, *others, *self.marks, *self.ignored, *self.input_attributes.values()}:
                raise GridSampleError(where, "attribute", repr(attribute.name), validation.format_choices(known))
        return {name: _read(where, node, spelling, constant, note) for name, spelling in self.attributes.items()}

    def write(self, attributes: Mapping[str, Plain]) -> list[onnx.AttributeProto]:
        """The operator's ``attributes`` as this dialect writes them."""
        said = ((spelling, attributes[name]) for name, spelling in self.attributes.items() if name in attributes)
        written = [helper.make_attribute(spelling.name, spelling.values[value]) for spelling, value in said]
        return written + [helper.make_attribute(name, allowed[0]) for name, allowed in self.marks.items()]


@dataclass(frozen=True)
class PlanarDialect(Dialect):
    """A sampler of BEVFormer_tensorrt, whose grids have their coordinates in axis 1, from -10 to 10."""

    plane_scale: ClassVar[int] = 10


def _read(where: str, node: onnx.NodeProto, spelling: Spelling, constant: ConstantInput, note: str) -> AttributeValue:
    back = {written: plain for plain, written in spelling.values.items()}
    found: object = None
    called = spelling.name
    for attribute in node.attribute:
        if attribute.name in (spelling.name, *spelling.names):
            if attribute.ref_attr_name:
                return AttributeReference(attribute.ref_attr_name)
            if found is not None:
                raise GridSampleError(where, spelling.name, "said twice", "said once")
            called = attribute.name
            found = helper.get_attribute_value(attribute)
            found = found.decode(errors="replace") if isinstance(found, bytes) else found
    at = spelling.position
    if found is None and at is not None and len(node.input) > at and node.input[at]:
        value = constant(at)
        if value is None or value.size != 1:
            raise GridSampleError(where, spelling.name, f"the input {node.input[at]!r}", "a constant")
        found = int(value.reshape(()))
    if found is None:
        if spelling.default is None:
            raise GridSampleError(where, spelling.name, "missing", validation.format_choices(back))
        return spelling.default
    readable = {**spelling.words, **back}
    if not isinstance(found, (str, int)) or found not in readable:
        raise GridSampleError(where, called, repr(found), validation.format_choices(back) + note)
    return readable[found]


_BOOLEAN: Mapping[Plain, Plain] = {0: 0, 1: 1}


def _standard(operator: str, first: int) -> Dialect:  # pragma: no mutate block
    """Version ``first`` of ``operator`` as a dialect."""

    def plain(written: Plain) -> Plain:
        return spec.mode_of(written) if isinstance(written, str) else written

    found = spec.OPERATORS[operator][first].attributes.items()
    attributes = {n: Spelling(n, {plain(v): v for v in each.allowed}, plain(each.default)) for n, each in found}
    return Dialect("ai.onnx", operator, operator, ("",), attributes, version=first)


STANDARD = {op: {first: _standard(op, first) for first in versions} for op, versions in spec.OPERATORS.items()}


def standard(operator: str, opset: int) -> Dialect:
    """The standard spelling of ``operator`` in ``opset``; of its first version where there is none yet."""
    return STANDARD[operator][spec.version_of(operator, opset) or min(STANDARD[operator])]


def _newest(name: str, domain: str, **differences: Any) -> dict[str, Dialect]:  # pragma: no mutate block
    """Operator -> the standard's newest spelling in another domain, but for these ``differences``."""
    newest = {operator: versions[max(versions)] for operator, versions in STANDARD.items()}
    return {op: replace(each, name=name, domains=(domain,), **differences) for op, each in newest.items()}


#: PyTorch's integers, in its GridSamplerUtils.h.
_CODES: Mapping[str, Spelling] = {
    "mode": Spelling("interpolation_mode", {"linear": 0, "nearest": 1, "cubic": 2}),
    "padding_mode": Spelling("padding_mode", {"zeros": 0, "border": 1, "reflection": 2}),
    "align_corners": Spelling("align_corners", _BOOLEAN),
}
#: The same as constant inputs, or as attributes.
_INPUTS = {name: replace(_CODES[name], position=at) for at, name in enumerate(_CODES, 2)}
_MODE_WORDS: Mapping[Plain, Plain] = {word: spec.mode_of(word) for word in (*spec.MODES, *spec.MODE_SYNONYMS)}
_PADDING_WORDS: Mapping[Plain, Plain] = {word: word for word in spec.PADDING_MODES}
#: TensorRT plugins' integers, or the standard's words where somebody renamed its node. The other names are those of
#: onnxparser-trt-plugin-sample and of the many exports that were made after it.
_PLUGIN = {
    "mode": replace(_CODES["mode"], names=("interpolationmode", "mode"), words=_MODE_WORDS),
    "padding_mode": replace(_CODES["padding_mode"], names=("paddingmode",), words=_PADDING_WORDS),
    "align_corners": replace(_CODES["align_corners"], names=("aligncorners",), words=_BOOLEAN),
}
_DEFAULTS = {name: replace(each, default=next(iter(each.values))) for name, each in _PLUGIN.items()}
_TENSORRT = "trt.plugins"
_OPSET_16 = STANDARD["GridSample"][16]
#: PyTorch's names of GridSample: the one that its function calls, and those that this becomes.
SAMPLERS = ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
_GENERATOR = "affine_grid_generator"
_ATEN, _OVERLOAD = ("aten", "org.pytorch.aten"), ("overload_name",)
_IGNORED = ("plugin_version", "plugin_namespace", "name", "info", "version", "namespace")
_plugin = partial(Dialect, operator="GridSample", attributes=_PLUGIN, ignored=_IGNORED)
_generator = partial(
    Dialect,
    operator="AffineGrid",
    attributes={"align_corners": Spelling("align_corners", _BOOLEAN, position=2)},
    input_attributes={"size": "size"},
    reads_only=True,
)

#: The target of compiled ops, and their domain.
COMPILED: Final = "compiled"
COMPILED_DOMAIN: Final = "ort_gridsample.compiled"
#: The compiled op for a GridSample and the nodes that compute its grid. Only sessions write it.
FUSED: Final = "FusedGridSample"
#: The operator that is several GridSamples and the weighted sum of their outputs.
ATTENTION: Final = "DeformableAttention"

#: The domain of onnxruntime-extensions. Releases before 0.2 wrote compiled ops in it, with a prefix before their names.
EXTENSIONS_DOMAIN: Final = "ai.onnx.contrib"
OLD_COMPILED: Final = "compiled before 0.2"
OLD_PREFIX: Final = "ort_gridsample_"

#: Operator -> the type of its compiled op. No compiled op has the type of a standard operator, because execution
#: providers such as OpenVINO's claim nodes by their type and ignore their domain.
COMPILED_TYPES: Final = {
    "GridSample": "CompiledGridSample",
    "AffineGrid": "CompiledAffineGrid",
    ATTENTION: ATTENTION,
    FUSED: FUSED,
}
_COMPILED_DIALECTS = {
    operator: replace(dialect, op_type=COMPILED_TYPES[operator])
    for operator, dialect in _newest(COMPILED, COMPILED_DOMAIN, ignored=("node",), version=1).items()
}


def _old_compiled(dialect: Dialect) -> Dialect:
    """The spelling of a compiled op in releases before 0.2, which is read and never written."""
    op_type = OLD_PREFIX + dialect.operator
    return replace(dialect, name=OLD_COMPILED, op_type=op_type, domains=(EXTENSIONS_DOMAIN,), reads_only=True)


_DIALECTS: list[Dialect] = [
    *_COMPILED_DIALECTS.values(),
    *map(_old_compiled, _COMPILED_DIALECTS.values()),
    Dialect("com.microsoft", "GridSample", "GridSample", ("com.microsoft",), _OPSET_16.attributes, axes=(2,)),
    Dialect("mmcv", "GridSample", "grid_sampler", ("mmcv",), _CODES, axes=(2,)),
    Dialect("mmdeploy", "GridSample", "grid_sampler", ("mmdeploy",), _CODES, axes=(2,)),
    # mmcv's and mmdeploy's symbolics where their domains got lost ("grid_sampler is not a registered function/op"), and
    # the same of onnxservice.
    Dialect("grid_sampler", "GridSample", "grid_sampler", ("", "onnxservice"), _INPUTS, reads_only=True),
    _plugin("GridSampler", op_type="GridSampler", domains=(), written_domain=_TENSORRT),
    # grid-sample3d-trt-plugin, whose attributes default to 0; LivePortrait's and SparseOcc's exports rename the
    # standard's node for it, with its attributes or without any.
    _plugin(
        "GridSample3D", op_type="GridSample3D", domains=(), attributes=_DEFAULTS, axes=(3,), written_domain=_TENSORRT
    ),
    # BEVFormer_tensorrt's plugins; those with a trailing 2 differ in the layouts that they ask TensorRT for.
    *(
        PlanarDialect(op_type, "GridSample", op_type, (), _PLUGIN, ignored=_IGNORED, axes=(axes,), reads_only=True)
        for axes in (2, 3)
        for op_type in (f"GridSampler{axes}DTRT", f"GridSampler{axes}DTRT2")
    ),
    # As the standard's, from before there was one: for plugins of that name.
    _plugin("GridSample plugin", op_type="GridSample", domains=("",), reads_only=True, coded=True),
    *(Dialect(f"aten::{op_type}", "GridSample", op_type, _ATEN, _INPUTS, reads_only=True) for op_type in SAMPLERS),
    Dialect("ATen", "GridSample", "ATen", _ATEN, _INPUTS, {"operator": SAMPLERS}, _OVERLOAD, reads_only=True),
    _generator(f"aten::{_GENERATOR}", op_type=_GENERATOR, domains=(*_ATEN, "", "onnxservice")),
    _generator(
        f"ATen {_GENERATOR}", op_type="ATen", domains=_ATEN, marks={"operator": (_GENERATOR,)}, ignored=_OVERLOAD
    ),
]


#: The names and operators of the dialects that were added.
_ADDED: set[tuple[str, str]] = set()

#: The domain of this package's own ops, and its version.
DOMAIN: Final = "ort_gridsample"
VERSION = 1
#: This package's own nodes: the operators' newest attributes, with every mode and padding that there is, and two
#: attributes without effect on the result.
OURS = _newest(DOMAIN, DOMAIN, ignored=("node", "num_threads"), version=VERSION)
_ALL = dict(OURS["GridSample"].attributes)
for _name, _words in (("mode", MODES), ("padding_mode", PADDING)):
    _ALL[_name] = replace(_ALL[_name], values={word: word for word in _words})
OURS["GridSample"] = replace(OURS["GridSample"], attributes=_ALL)
#: Deformable attention as one node: this package's own, and what :mod:`ort_gridsample.detection.attention` finds.
OURS[ATTENTION] = Dialect(
    DOMAIN, ATTENTION, ATTENTION, (DOMAIN,), {"align_corners": Spelling("align_corners", _BOOLEAN, 0)},
    ignored=("node", "num_threads"),
)  # fmt: skip


@dataclass(frozen=True)
class AttentionNode:
    """The contract of another package's node that is a whole deformable attention.

    Attributes:
        inputs: the names of its inputs, in their order.
        is_by_head: whether the output is (B, Q, H, D); else it is (B, Q, H·D).
        domains: the domains in which the node is read; empty: any.
    """

    inputs: tuple[str, ...]
    is_by_head: bool
    domains: tuple[str, ...] = ()

    @property
    def has_offsets(self) -> bool:
        """Whether the node computes its locations from reference points and offsets in pixels."""
        return "sampling_offsets" in self.inputs


_LOCATED = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")
_OFFSET = ("value", "value_spatial_shapes", "reference_points", "sampling_offsets", "attention_weights")
#: The type of a node -> its contract. Sources: TensorRT's multiscaleDeformableAttnPlugin, mmdeploy's ms_deform_attn,
#: BEVFormer_tensorrt's multi_scale_deformable_attn.
ATTENTION_PLUGINS: Mapping[str, AttentionNode] = {
    "MultiscaleDeformableAttnPlugin_TRT": AttentionNode(_LOCATED, is_by_head=True),
    "MMCVMultiScaleDeformableAttention": AttentionNode(_LOCATED, is_by_head=False),
    "MultiScaleDeformableAttention": AttentionNode(_LOCATED, is_by_head=False, domains=("com.microsoft",)),
    "MultiScaleDeformableAttnTRT": AttentionNode(_OFFSET, is_by_head=True),
    "MultiScaleDeformableAttnTRT2": AttentionNode(_OFFSET, is_by_head=True),
}
#: The types of the nodes that stand for several.
WHOLE_NODES = frozenset((
    *ATTENTION_PLUGINS, ATTENTION, OLD_PREFIX + ATTENTION, *(d.op_type for d in _DIALECTS if d.plane_scale),
))  # fmt: skip
PLUGINS = replace(
    OURS[ATTENTION], name="tensorrt-plugins", op_type="MultiscaleDeformableAttnPlugin_TRT", domains=(),
    attributes={"align_corners": Spelling("align_corners", {0: 0}, 0)}, written_domain=_TENSORRT,
    ignored=("plugin_version", "plugin_namespace", "im2col_step"),
)  # fmt: skip

#: The domain of standard nodes while the opset around them changes, in which they are spelled as in the newest.
SET_ASIDE: Final = "ort_gridsample.set_aside"
ASIDE = _newest(SET_ASIDE, SET_ASIDE)
#: Subgraphs of basic operators that :mod:`ort_gridsample.detection.decomposed` finds.
DECOMPOSED: Final = "unrolled"
PARTS = _newest(DECOMPOSED, DECOMPOSED, reads_only=True)
PARTS[ATTENTION] = replace(OURS[ATTENTION], name=DECOMPOSED, domains=(DECOMPOSED,), reads_only=True)

_COMPILED_ATTENTION = replace(
    OURS[ATTENTION], name=COMPILED, domains=(COMPILED_DOMAIN,), ignored=("node", "points"), version=1
)
_WHOLE = _COMPILED_ATTENTION, _old_compiled(_COMPILED_ATTENTION)
_OWN = {(each.domain, each.op_type): each for each in (*OURS.values(), *ASIDE.values(), *_WHOLE)}


def dialect_of(node: onnx.NodeProto, opsets: Mapping[str, int], functions: Collection[Key] = ()) -> Dialect | None:
    """The dialect that ``node`` is written in; None where it is none of the operators in any.

    ``opsets`` are the versions of the domains that it is written in, ``functions`` the keys (:func:`function_key`) of
    its model's functions: a call of one is nothing else.
    """
    if function_key(node) in functions:
        return None
    domain = domain_of(node.domain)
    if own := _OWN.get((domain, node.op_type)):
        return own
    if attention_node(node) is not None:
        return PLUGINS
    is_standard = node.op_type in spec.OPERATORS and domain == ""
    found = next((d for d in _DIALECTS if (d.coded or not is_standard) and d.spells(node)), None)
    return standard(node.op_type, opsets.get("", 0)) if is_standard and found is None else found


def attention_node(node: onnx.NodeProto) -> AttentionNode | None:
    """The contract of ``node`` where it is a whole deformable attention of another package."""
    contract = ATTENTION_PLUGINS.get(node.op_type)
    if contract is None or (contract.domains and domain_of(node.domain) not in contract.domains):
        return None
    return None if node.domain in (DOMAIN, COMPILED_DOMAIN) else contract


def operator_types() -> frozenset[str]:
    """The types of all nodes that :func:`dialect_of` knows: to tell quickly that a node is none of them."""
    return frozenset((*spec.OPERATORS, *(dialect.op_type for dialect in _DIALECTS), *WHOLE_NODES))


def add_dialect(dialect: Dialect) -> None:
    """Let models be read, and with its name as a target written, in one more ``dialect``.

    >>> add_dialect(Dialect("mine", "GridSample", "Warp", ("my.domain",), attributes={
    ...     "mode": Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
    ...     "padding_mode": Spelling("outside", {"zeros": "constant", "border": "edge"}, default="zeros"),
    ...     "align_corners": Spelling("corners", {0: 0, 1: 1}, default=0),
    ... }))

    A dialect of the same name and operator is replaced. Its nodes have inputs and an output of the standard's layout: a
    grid (N, D1_out, …, Dr_out, r) with coordinates in [-1, 1]. A dialect cannot describe other grids, such as those
    with their coordinates in axis 1 or in another range. A node whose output has another shape than its graph states is
    refused.

    Raises:
        GridSampleError: the dialect has no spelling for an attribute of its operator, or has the name of a target.
    """
    where = f"dialect {dialect.name!r}"
    if dialect.operator not in spec.OPERATORS:
        raise GridSampleError(where, "operator", repr(dialect.operator), validation.format_choices(spec.OPERATORS))
    expected = set(standard(dialect.operator, max(spec.OPERATORS[dialect.operator])).attributes)
    if set(dialect.attributes) != expected:
        raise GridSampleError(where, "attributes", str(sorted(dialect.attributes)), str(sorted(expected)))
    if dialect.name in ("ai.onnx", DOMAIN, "primitives", COMPILED, OLD_COMPILED, DECOMPOSED):
        raise GridSampleError(where, "name", repr(dialect.name), "one that is not a target already")
    same = (dialect.name, dialect.operator)
    _ADDED.add(same)
    _DIALECTS[:] = [dialect, *(d for d in _DIALECTS if (d.name, d.operator) != same)]


def is_added(dialect: Dialect) -> bool:
    """Whether :func:`add_dialect` added a dialect."""
    return (dialect.name, dialect.operator) in _ADDED


def dialects() -> tuple[Dialect, ...]:
    """All dialects but the standard's own, the one added last first."""
    return tuple(_DIALECTS)


def constant_size(node: onnx.NodeProto, dialect: Dialect, name: str) -> Array | None:
    """The operator's input ``name`` where ``node`` holds it as an attribute."""
    found = (each.ints for each in node.attribute if each.name == dialect.input_attributes.get(name))
    return next((np.array(ints, np.int64) for ints in found), None)
