"""The operators' specifications, as tables.

All code that depends on an opset, an attribute or a type reads these tables: the cores, the ops,
the rewriting of models and the tests. SEMANTICS.md in .github/docs lists what the specifications
leave open, how this package decides it, and which test checks it.

Sources: ONNX GridSample-16, -20 and -22, ONNX AffineGrid-20, OpenVINO GridSample-9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

#: The names of modes and padding modes, for type checkers. Code uses the tables below.
ModeName: TypeAlias = Literal["nearest", "linear", "cubic", "lanczos3", "bilinear", "bicubic"]
PaddingModeName: TypeAlias = Literal["zeros", "border", "reflection", "wrap"]

#: The length of an axis: a number, or in a model also a name or None (unknown).
Dim: TypeAlias = int | str | None
#: A shape, as far as its lengths are known.
Shape: TypeAlias = tuple[Dim, ...]

#: The modes and paddings of the specifications. This package has more: the rows of ``MODE_RULES``
#: and ``PADDING_RULES`` in :mod:`ort_gridsample.reference`.
MODES = ("nearest", "linear", "cubic")
PADDING_MODES = ("zeros", "border", "reflection")
#: Opset 16 and OpenVINO name the 2-D case, later opsets the general one.
MODE_SYNONYMS = {"bilinear": "linear", "bicubic": "cubic"}
#: PyTorch's integers for modes and paddings, in its GridSamplerUtils.h.
PYTORCH_MODES = {"linear": 0, "nearest": 1, "cubic": 2}
PYTORCH_PADDING_MODES = {"zeros": 0, "border": 1, "reflection": 2}
#: The mode and the padding of all samples of deformable attention.
ATTENTION_SAMPLE = ("linear", "zeros")
#: The layouts of the output of deformable attention -> its axes, by their names in
#: :mod:`ort_gridsample.detection.attention.layouts`. The first layout is the default.
OUTPUT_LAYOUTS: Mapping[str, str] = {
    "by_query": "B, Q, H·D",
    "by_head": "B, Q, H, D",
    "channels_first": "B·H, D, Q",
}
#: Keys' cubic convolution kernel, with the constant that PyTorch, OpenVINO and ONNX Runtime use.
CUBIC_A = -0.75


def known_lengths(shape: Sequence[Dim] | None) -> list[int] | None:
    """Return the lengths of ``shape`` if all of them are known, or None.

    >>> known_lengths((2, 3)), known_lengths((2, "width")), known_lengths(None)
    ([2, 3], None, None)
    """
    if shape is None:
        return None
    lengths = [length for length in shape if isinstance(length, int)]
    return lengths if len(lengths) == len(shape) else None


def may_be_empty(shape: Sequence[Dim] | None) -> bool:
    """Whether a length of ``shape`` is 0, or may be 0 in a run.

    >>> may_be_empty((2, 3)), may_be_empty((2, 0)), may_be_empty((2, "width"))
    (False, True, True)
    """
    lengths = known_lengths(shape)
    return lengths is None or 0 in lengths


def mode_of(name: str) -> str:
    """Return the mode with this name or synonym; ``name`` itself if there is none.

    >>> mode_of("bilinear"), mode_of("cubic"), mode_of("area")
    ('linear', 'cubic', 'area')
    """
    return MODE_SYNONYMS.get(name, name)


@dataclass(frozen=True)
class ElementType:
    """One tensor element type."""

    #: numpy's name; that of ``ml_dtypes`` for bfloat16, ``str`` for strings
    name: str
    #: the name in an ONNX type constraint, ``tensor(<onnx>)``
    onnx: str
    #: the type in which linear and cubic interpolate; None if they are not defined
    compute: str | None
    #: the type in which a tensor is passed to a Python-defined op; None if it cannot be passed
    transport: str | None


_TYPES = (
    #           numpy         ONNX          compute       transport
    ElementType("float32", "float", "float32", "float32"),
    ElementType("float64", "double", "float64", "float64"),
    ElementType("float16", "float16", "float32", "float32"),
    ElementType("bfloat16", "bfloat16", "float32", "float32"),
    ElementType("int8", "int8", "float32", "int8"),
    ElementType("int16", "int16", "float32", "int16"),
    ElementType("int32", "int32", "float64", "int32"),
    ElementType("int64", "int64", "float64", "int64"),
    ElementType("uint8", "uint8", "float32", "uint8"),
    ElementType("uint16", "uint16", "float32", "uint16"),
    ElementType("uint32", "uint32", "float64", "uint32"),
    ElementType("uint64", "uint64", "float64", "uint64"),
    ElementType("bool", "bool", "float32", "bool"),
    ElementType("str", "string", None, "str"),
    ElementType("complex64", "complex64", "complex64", None),
    ElementType("complex128", "complex128", "complex128", None),
)
TYPES: Mapping[str, ElementType] = {t.name: t for t in _TYPES}
TYPES_BY_ONNX: Mapping[str, ElementType] = {t.onnx: t for t in _TYPES}

#: T2 of GridSample and T1 of AffineGrid: the types of a grid or theta.
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: The types of GridSample before opset 22.
_BEFORE_BFLOAT16 = tuple(name for name in TYPES if name != "bfloat16")
_FLOATS_BEFORE_BFLOAT16 = ("float32", "float64", "float16")
#: The modes of opset 16, and from opset 20 on; the first is the default.
_OPSET_16_MODES = ("bilinear", "nearest", "bicubic")
_OPSET_20_MODES = ("linear", "nearest", "cubic")


@dataclass(frozen=True)
class Attribute:
    """One attribute of an operator."""

    default: str | int
    allowed: tuple[str | int, ...]  #: the values that it may have


@dataclass(frozen=True)
class Version:
    """One version of an operator."""

    attributes: Mapping[str, Attribute]
    types: Mapping[str, tuple[str, ...]]  #: the types that each input may have
    #: the numbers of spatial axes that are defined, or None if any number is
    axes: tuple[int, ...] | None = None


def _grid_sample(
    modes: tuple[str, ...],
    X: tuple[str, ...],
    grid: tuple[str, ...],
    axes: tuple[int, ...] | None = None,
) -> Version:  # pragma: no mutate block
    attributes = {
        "mode": Attribute(modes[0], modes),
        "padding_mode": Attribute(PADDING_MODES[0], PADDING_MODES),
        "align_corners": Attribute(0, (0, 1)),
    }
    return Version(attributes, {"X": X, "grid": grid}, axes)


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """An operator, and where each way of this package to compute it is defined.

    The nodes that are read and written as the operator are the dialects of this operator in
    :mod:`ort_gridsample.dialects.table`.

    Attributes:
        name: its name.
        versions: the first opset of each of its versions -> that version. An operator outside of
            the standard has one version.
        is_standard: whether it is an operator of the ONNX domain. Others are operators that
            exporters write as many nodes, and some runtimes as one node.
        function: the function that computes it: a module of :mod:`ort_gridsample.functions`, and a
            name in this module.
        compiled_type: the type of the nodes of its compiled op. No compiled op has the type of a
            standard operator, because execution providers such as OpenVINO's claim nodes by their
            type and ignore their domain.
        implementation: the implementation of its compiled op: a module of
            :mod:`ort_gridsample.custom_ops.compiled_ops`, and a name in this module.
        compiled_attributes: the attributes that its compiled op has, and its Python op lacks:
            onnxruntime creates no Python op without a value of each attribute, so that a new one
            would make models unusable that were saved without it.
        same_types: an input -> another input, whose type it always has.
        infers_shape: whether the compiled op infers the shape of its output. That of an AffineGrid
            depends on the values of its size, and a shape with an unknown length needs a name for
            it.
        fused_type: the type of the nodes of the compiled op of a GridSample that is fused with a
            node of the operator. Empty if there is no such op, as for operators that compute no
            grid.
        fused_implementation: the implementation of that op.
        grid_operator: what is specific to an operator that computes a grid: a module of
            :mod:`ort_gridsample.functions`, and a name in this module.
    """

    name: str
    versions: Mapping[int, Version]
    is_standard: bool = True
    function: str
    compiled_type: str
    implementation: str
    compiled_attributes: Mapping[str, Attribute] = field(default_factory=dict)
    same_types: Mapping[str, str] = field(default_factory=dict)
    infers_shape: bool = True
    fused_type: str = ""
    fused_implementation: str = ""
    grid_operator: str = ""

    @property
    def newest(self) -> Version:
        """Its newest version."""
        return self.versions[max(self.versions)]


_OP_SPECS = (
    OpSpec(
        name="GridSample",
        versions={
            16: _grid_sample(_OPSET_16_MODES, _BEFORE_BFLOAT16, _FLOATS_BEFORE_BFLOAT16, axes=(2,)),
            20: _grid_sample(_OPSET_20_MODES, _BEFORE_BFLOAT16, _FLOATS_BEFORE_BFLOAT16),
            22: _grid_sample(_OPSET_20_MODES, tuple(TYPES), FLOATS),
        },
        function="sampling.grid_sample",
        compiled_type="CompiledGridSample",
        implementation="sampling.IMPLEMENTATION",
    ),
    OpSpec(
        name="AffineGrid",
        versions={
            20: Version(
                {"align_corners": Attribute(0, (0, 1))},
                {"theta": FLOATS, "size": ("int64",)},
                axes=(2, 3),
            ),
        },
        function="affine.affine_grid",
        compiled_type="CompiledAffineGrid",
        implementation="affine.IMPLEMENTATION",
        infers_shape=False,
        fused_type="FusedGridSample",
        fused_implementation="affine.FUSED_IMPLEMENTATION",
        grid_operator="affine.GRID_OPERATOR",
    ),
    OpSpec(
        name="DeformableAttention",
        versions={
            1: Version(
                {"align_corners": Attribute(0, (0, 1))},
                {
                    "value": FLOATS,
                    "levels": ("int64",),
                    "sampling_locations": FLOATS,
                    "attention_weights": FLOATS,
                },
            ),
        },
        is_standard=False,
        function="attention.attend",
        compiled_type="DeformableAttention",
        implementation="attention.IMPLEMENTATION",
        compiled_attributes={"output_layout": Attribute("by_query", tuple(OUTPUT_LAYOUTS))},
        same_types={"attention_weights": "value"},
    ),
)
#: The operators of this package by their names.
OP_SPECS: Mapping[str, OpSpec] = {operator.name: operator for operator in _OP_SPECS}

#: Operator of the ONNX domain -> first opset of each of its versions -> that version.
OPERATORS: Mapping[str, Mapping[int, Version]] = {
    operator.name: operator.versions for operator in _OP_SPECS if operator.is_standard
}


def version_of(operator: str, opset: int) -> int | None:
    """Return the version of ``operator`` in ``opset``, as the first opset of this version.

    Return None if the opset is older than the operator.

    >>> version_of("GridSample", 21), version_of("AffineGrid", 19)
    (20, None)
    """
    return max((first for first in OPERATORS[operator] if first <= opset), default=None)


def newest(operator: str) -> Version:
    """Return the newest version of ``operator``, a key of :data:`OP_SPECS`."""
    return OP_SPECS[operator].newest
