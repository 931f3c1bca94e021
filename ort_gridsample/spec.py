"""The operators' specifications, as tables.

Everything that decides by opset, attribute or type reads them here: the core, the ops, the patch and the tests.
Sources: ONNX GridSample-16, -20 and -22, ONNX AffineGrid-20, OpenVINO GridSample-9. SEMANTICS.md beside this file has
what they leave open, how that is settled and which test holds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The names of modes and padding modes, for type checkers; at run time the tables below have them.
ModeName: TypeAlias = Literal["nearest", "linear", "cubic", "bilinear", "bicubic"]
PaddingModeName: TypeAlias = Literal["zeros", "border", "reflection"]

MODES = ("nearest", "linear", "cubic")
PADDING_MODES = ("zeros", "border", "reflection")
#: Opset 16 and OpenVINO name the 2-D case, later opsets the general one.
MODE_SYNONYMS = {"bilinear": "linear", "bicubic": "cubic"}
#: Keys' cubic convolution kernel, with the constant that PyTorch, OpenVINO and ONNX Runtime use.
CUBIC_A = -0.75


def mode_of(name: str) -> str:
    """The mode that ``name`` or its synonym stands for; ``name`` itself where there is none."""
    return MODE_SYNONYMS.get(name, name)


@dataclass(frozen=True)
class ElementType:
    """One tensor element type."""

    name: str  #: numpy's name for it (``ml_dtypes``' for bfloat16, ``str`` for strings)
    onnx: str  #: the name in an ONNX type constraint, ``tensor(<onnx>)``
    compute: str | None  #: the type that linear and cubic interpolate in; None where they are not defined
    transport: str | None  #: the type in which a tensor of it reaches a Python-defined op; None where it cannot


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

_BEFORE_BFLOAT16 = tuple(t for t in TYPES if t != "bfloat16")
#: T2 of GridSample and T1 of AffineGrid: the types of a grid or theta.
FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Attribute:
    """One attribute of an operator: its default, and the values allowed."""

    default: str | int
    allowed: tuple[str | int, ...]


@dataclass(frozen=True)
class Version:
    """One version of an operator."""

    attributes: Mapping[str, Attribute]
    types: Mapping[str, tuple[str, ...]]  #: the types that each input may have
    axes: tuple[int, ...] | None = None  #: the numbers of spatial axes that it is defined for; None: any


def _grid_sample(
    modes: tuple[str, ...], X: tuple[str, ...], grid: tuple[str, ...], axes: tuple[int, ...] | None = None
) -> Version:  # pragma: no mutate block
    attributes = {
        "mode": Attribute(modes[0], modes),
        "padding_mode": Attribute(PADDING_MODES[0], PADDING_MODES),
        "align_corners": Attribute(0, (0, 1)),
    }
    return Version(attributes, {"X": X, "grid": grid}, axes)


#: Operator of the ONNX domain -> first opset of each of its versions -> that version.
OPERATORS: Mapping[str, Mapping[int, Version]] = {
    "GridSample": {
        16: _grid_sample(("bilinear", "nearest", "bicubic"), _BEFORE_BFLOAT16, ("float32", "float64", "float16"), (2,)),
        20: _grid_sample(("linear", "nearest", "cubic"), _BEFORE_BFLOAT16, ("float32", "float64", "float16")),
        22: _grid_sample(("linear", "nearest", "cubic"), tuple(TYPES), FLOATS),
    },
    "AffineGrid": {
        20: Version({"align_corners": Attribute(0, (0, 1))}, {"theta": FLOATS, "size": ("int64",)}, axes=(2, 3)),
    },
}


#: Operators that exporters write as many nodes, and runtimes as one of their own: as one version.
COMPOSITES: Mapping[str, Version] = {
    "DeformableAttention": Version(
        {"align_corners": Attribute(0, (0, 1))},
        {"value": FLOATS, "levels": ("int64",), "sampling_locations": FLOATS, "attention_weights": FLOATS},
    ),
}


def version_of(operator: str, opset: int) -> int | None:
    """The version of ``operator`` that ``opset`` holds, by its first opset; None before the first."""
    return max((first for first in OPERATORS[operator] if first <= opset), default=None)


def newest(operator: str) -> Version:
    """The newest version of ``operator``, which may be one of :data:`COMPOSITES`."""
    versions = OPERATORS.get(operator)
    return versions[max(versions)] if versions else COMPOSITES[operator]
