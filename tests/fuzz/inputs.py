"""Cases as data, the strategies that draw them, and their arrays."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
from hypothesis import strategies as st

from support import faults
from support.cases import FAR, OUTSIDE, TIES, dtype_of
from support.choices import NO_MODE, NO_PADDING

ROUTES = ("function", "session", "patched")
X_TYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "str",
    "complex64",
    "complex128",
)
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: Types whose kernels compile quickly: a float, a half, an integer, and one without kernels.
FEW_TYPES = ("float32", "float16", "uint8", "str")
LAYOUTS = (
    "plain",
    "plain",
    "fortran",
    "strided",
    "reversed",
    "read-only",
    "broadcast",
    "unaligned",
)
#: The shape that a model declares: that of the feed, names, none, or another one.
DECLARED = ("exact", "names", "names", "unknown", "another")
#: What is wrong with a node, apart from the values of its attributes.
SLIPS = ("", "third input", "no second input", "second output", "attribute", "kind of attribute")
NAMES = (
    "warp",
    "",
    "a 'b' \"c\"",
    "Ångström 日本",
    "x\ny",
    "n idx=7 must be within",
    "{0} %s",
    "/model/0/GridSample",
)
MODES = ("linear", "nearest", "cubic", "bilinear", "bicubic")
PADDING = ("zeros", "border", "reflection")
HUGE = (1 << 20, (1 << 31) - 1, 1 << 31, 1 << 33, 1 << 40, 1 << 62)
#: The most taps of a case. The oracle is slow.
MAX_TAPS = 6000
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """An array.

    Attributes:
        type: its type.
        shape: its shape.
        values: ``tame`` values are finite and small, ``wild`` ones may be anything.
        layout: one of ``LAYOUTS``.
    """

    type: str
    shape: tuple[int, ...]
    values: str = "tame"
    layout: str = "plain"


@dataclass(frozen=True)
class Case:
    """One call: GridSample of X and grid, or AffineGrid of theta and size.

    Attributes:
        route: one of ``ROUTES``.
        operator: GridSample or AffineGrid.
        first: X or theta.
        second: the grid, or the type and shape of size.
        size: the numbers of size.
        mode: the attribute, or None if the node lacks it.
        padding_mode: as mode.
        align_corners: the attribute.
        opset: the opset of the model.
        declared: one of ``DECLARED``.
        slip: one of ``SLIPS``.
        name: the name of the node.
        seed: of the random generator of the values.
    """

    route: str
    operator: str
    first: Tensor
    second: Tensor
    size: tuple[int, ...]
    mode: object
    padding_mode: object
    align_corners: object
    opset: int
    declared: str
    slip: str
    name: str
    seed: int

    @property
    def is_coded(self) -> bool:
        """Whether the node has an integer as mode or padding, as in plugins of its name."""
        return self.route != "function" and bool({type(self.mode), type(self.padding_mode)} & {int})

    @property
    def attributes(self) -> tuple[object, object]:
        """The mode and the padding mode as words, with the defaults of a model's node.

        Plugins have no defaults.
        """
        if self.route == "function":
            return self.mode, self.padding_mode
        if self.is_coded:
            modes = dict(enumerate(("linear", "nearest", "cubic")))
            paddings = dict(enumerate(PADDING))
            mode = modes.get(self.mode, self.mode)  # type: ignore[call-overload]
            return mode, paddings.get(self.padding_mode, self.padding_mode)  # type: ignore[call-overload]
        default = "linear" if self.opset >= 20 else "bilinear"
        return (
            default if self.mode is None else self.mode,
            "zeros" if self.padding_mode is None else self.padding_mode,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Case:
        fields = json.loads(text)
        for name in ("first", "second"):
            fields[name] = Tensor(**{**fields[name], "shape": tuple(fields[name]["shape"])})
        return Case(**{**fields, "size": tuple(fields["size"])})


def _mostly(usual: st.SearchStrategy, odd: st.SearchStrategy, one_in: int = 8) -> st.SearchStrategy:
    """Draw from ``odd`` once in ``one_in`` draws."""
    return st.integers(1, one_in).flatmap(lambda i: odd if i == one_in else usual)


def _tensors(types: tuple[str, ...], shape: tuple[int, ...]) -> st.SearchStrategy:
    # Huge arrays need no memory: all their elements are the same.
    layouts = st.just("broadcast") if math.prod(shape) > 1 << 16 else st.sampled_from(LAYOUTS)
    return st.builds(
        Tensor,
        st.sampled_from(types),
        st.just(shape),
        st.sampled_from(("tame", "tame", "wild")),
        layouts,
    )


_lengths = _mostly(st.integers(1, 6), st.just(0), 12)
_mode_or_not = _mostly(
    st.sampled_from(MODES), st.sampled_from(("", NO_MODE, "LINEAR", "nearest ", 3, None)), 16
)
_padding_or_not = _mostly(
    st.sampled_from(PADDING), st.sampled_from(("", NO_PADDING, "zeros ", 0, None)), 16
)
_aligned_or_not = _mostly(st.sampled_from((0, 1)), st.sampled_from((2, -1, 1 << 40)), 16)


def _floats(types: tuple[str, ...]) -> st.SearchStrategy:
    """Draw mostly the floats of ``types``, and sometimes types that no grid has."""
    others = tuple(name for name in X_TYPES if name not in FLOATS)
    return _mostly(st.just(tuple(name for name in FLOATS if name in types)), st.just(others), 16)


#: What may be wrong with the shapes of X and grid. Most often nothing is.
GRID_SAMPLE_MISTAKES = (
    *[""] * 23,
    "another batch",
    "other coordinates",
    "huge X",
    "huge grid",
    "fewer axes of X",
    "fewer axes of grid",
    "one more axis of X",
    "one more axis of grid",
    "any shapes",
)
#: What may be wrong with theta and size. Most often nothing is.
AFFINE_GRID_MISTAKES = (
    *[""] * 10,
    "negative length",
    "huge length",
    "huge lengths",
    "any size",
    "any theta",
    "another length of theta",
)
_small = st.integers(0, 3)
_batches_or_channels = _mostly(st.integers(1, 3), st.just(0), 12)


@st.composite
def _grid_sample(draw: st.DrawFn, types: tuple[str, ...]) -> dict[str, object]:
    r = draw(st.integers(1, 5))
    mode = draw(_mode_or_not)
    n = draw(_batches_or_channels)
    c = draw(_batches_or_channels)
    lengths = [draw(_lengths) if axis < 3 else draw(st.integers(1, 2)) for axis in range(r)]
    outputs = draw(_output_lengths(r, max(n, 1) * max(c, 1), str(mode)))
    X = [n, c, *lengths]
    grid = [n, *outputs, r]
    mistake = draw(st.sampled_from(GRID_SAMPLE_MISTAKES))
    if mistake == "another batch":
        grid[0] = draw(st.integers(0, 4))
    elif mistake == "other coordinates":
        grid[-1] = draw(st.integers(0, 6))
    elif mistake == "huge X":
        X[draw(st.integers(0, r + 1))] = draw(st.sampled_from(HUGE))
    elif mistake == "huge grid":
        grid[draw(st.integers(0, r))] = draw(st.sampled_from(HUGE))
    elif mistake == "fewer axes of X":
        X = X[: draw(st.integers(0, len(X)))]
    elif mistake == "fewer axes of grid":
        grid = grid[: draw(st.integers(0, len(grid)))]
    elif mistake == "one more axis of X":
        X.append(draw(_small))
    elif mistake == "one more axis of grid":
        grid.insert(1, draw(_small))
    elif mistake == "any shapes":
        X, grid = draw(st.tuples(*[st.lists(_small, max_size=7)] * 2))
    return {
        "operator": "GridSample",
        "first": draw(_tensors(types, tuple(X))),
        "second": draw(_tensors(draw(_floats(types)), tuple(grid))),
        "size": (),
        "mode": mode,
        "padding_mode": draw(_padding_or_not),
    }


@st.composite
def _output_lengths(draw: st.DrawFn, r: int, images: int, mode: str) -> list[int]:
    """Draw the spatial lengths of an output, with at most ``MAX_TAPS`` taps for all images."""
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(mode, 2) ** r
    outputs: list[int] = []
    for _ in range(r):
        room = MAX_TAPS // (taps * images * max(math.prod(outputs), 1))
        outputs.append(draw(_mostly(st.integers(1, min(max(room, 1), 5)), st.just(0), 16)))
    return outputs


@st.composite
def _affine_grid(draw: st.DrawFn, types: tuple[str, ...]) -> dict[str, object]:
    r = draw(st.integers(2, 3))
    n = draw(_mostly(st.integers(1, 3), st.just(0)))
    theta = [n, r, r + 1]
    size = [n, draw(_lengths), *(draw(_lengths) for _ in range(r))]
    mistake = draw(st.sampled_from(AFFINE_GRID_MISTAKES))
    if mistake == "negative length":
        size[draw(st.integers(0, r + 1))] = draw(st.sampled_from((-1, -(1 << 63), -(1 << 40))))
    elif mistake == "huge length":
        size[draw(st.integers(0, r + 1))] = draw(st.sampled_from(HUGE))
    elif mistake == "huge lengths":
        size[2:] = [draw(st.sampled_from(HUGE)) for _ in size[2:]]
    elif mistake == "any size":
        size = draw(st.lists(st.integers(-1, 3), max_size=7))
    elif mistake == "any theta":
        theta = draw(st.lists(st.integers(0, 4), max_size=5))
    elif mistake == "another length of theta":
        theta[draw(st.integers(0, 2))] = draw(st.sampled_from((0, 1, 5, 1 << 33)))
    size_type = draw(_mostly(st.just("int64"), st.sampled_from(("int32", "float32", "uint8")), 16))
    if size_type != "float32":
        size = np.array(size, np.int64).astype(size_type).tolist()
    return {
        "operator": "AffineGrid",
        "first": draw(_tensors(draw(_floats(types)), tuple(theta))),
        "second": Tensor(size_type, (len(size),)),
        "size": tuple(size),
        "mode": None,
        "padding_mode": None,
    }


@st.composite
def cases(draw: st.DrawFn, types: tuple[str, ...] = X_TYPES) -> Case:
    """Draw any case of ``types``. The specification allows about half of them."""
    operator = draw(_mostly(_grid_sample(types), _affine_grid(types), 5))
    route = draw(st.sampled_from(ROUTES))
    opsets = (16, 19, 20, 22, 22) if operator["operator"] == "GridSample" else (20, 21, 22)
    opsets = tuple(opset for opset in opsets if opset <= faults.OPSET)
    opset = draw(_mostly(st.sampled_from(opsets), st.sampled_from((13, 15, 16)), 20))
    mode = operator["mode"]
    if route != "function" and isinstance(mode, str):
        # Most often, the mode has its name in the opset.
        stem = mode.removeprefix("bi")
        name = f"bi{stem}" if opset < 20 and stem in ("linear", "cubic") else stem
        mode = draw(_mostly(st.just(name), st.just(mode), 16))
    fields = {
        "mode": mode,
        "route": route,
        "opset": opset,
        "align_corners": draw(_aligned_or_not),
        "declared": draw(st.sampled_from(DECLARED)),
        "slip": draw(_mostly(st.just(""), st.sampled_from(SLIPS), 16)),
        "name": draw(st.sampled_from(NAMES)),
        "seed": draw(st.integers(0, (1 << 32) - 1)),
    }
    return Case(**operator | fields)


def array(tensor: Tensor, rng: np.random.Generator, coordinates: bool = False) -> np.ndarray:
    """Return the array of ``tensor``, with normalized coordinates or with pixels."""
    dtype = dtype_of(tensor.type)
    shape = tensor.shape
    lengths = shape
    if tensor.layout == "broadcast":
        lengths = tuple(min(length, 1) for length in shape)
    elif tensor.layout == "strided":
        lengths = tuple(2 * length for length in shape)
    values = _values(dtype, lengths, rng, coordinates, wild=tensor.values == "wild")
    match tensor.layout:
        case "broadcast":
            return np.broadcast_to(values, shape)
        case "fortran":
            return np.asfortranarray(values)
        case "strided":
            return np.asarray(values[(slice(None, None, 2),) * len(shape)])
        case "reversed":
            return np.asarray(values[(slice(None, None, -1),) * len(shape)])
        case "unaligned" if dtype.kind != "O":
            return np.ndarray(shape, dtype, bytearray(1) + values.tobytes(), offset=1)
    values.flags.writeable = tensor.layout != "read-only"
    return values


def _values(
    dtype: np.dtype, shape: Shape, rng: np.random.Generator, coordinates: bool, wild: bool
) -> np.ndarray:
    kind = "f" if dtype.kind == "V" else dtype.kind  # bfloat16
    if coordinates and kind == "f":
        inside = rng.uniform(-1.1, 1.1, shape)
        far = rng.choice([*TIES, *TIES, *OUTSIDE, *(FAR if wild else ())], shape)
        values = np.where(rng.random(shape) < 0.5, inside, far)
    elif kind == "O":
        words = rng.choice(["", "a", "Ångström", "日本", "x" * 40], shape)
        return np.array(words, object).reshape(shape)
    elif kind == "b":
        values = rng.random(shape) < 0.5
    elif kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if wild else (max(limits.min, -9), 9)
        return np.asarray(rng.integers(low, high, shape, dtype, endpoint=True))
    else:
        values = rng.normal(size=shape) * rng.choice([1.0, 1000.0])
        values = values + (1j * rng.normal(size=shape) if kind == "c" else 0)
        if wild:
            special = rng.choice([np.nan, np.inf, -np.inf])
            values = np.where(rng.random(shape) < 0.1, special, values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype).reshape(shape)
