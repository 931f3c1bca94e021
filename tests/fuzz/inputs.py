"""One case as data, how Hypothesis draws it, and the arrays that it stands for."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
from hypothesis import strategies as st

from support import faults
from support.cases import FAR, OUTSIDE, TIES, dtype_of

ROUTES = ("function", "session", "patched")
X_TYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "str", "complex64", "complex128"),
)
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: Types whose kernels are soon compiled: a float, a half, an integer, and one that has no kernels.
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
#: A shape as the model declares it: as fed, by names, not at all, or another one.
DECLARED = ("exact", "names", "names", "unknown", "another")
#: What a node may say beside its operator's attributes, inputs and outputs.
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
#: At most so many taps are added up for one case: the oracle is slow.
MAX_TAPS = 6000
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """An array: its type, its shape, what is in it and how it lies in memory."""

    type: str
    shape: tuple[int, ...]
    values: str = "tame"
    layout: str = "plain"


@dataclass(frozen=True)
class Case:
    """One call: GridSample of X and grid, or AffineGrid of theta and size."""

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
        """Whether the model's node says a mode in PyTorch's integers, as plugins of its name take them."""
        return self.route != "function" and bool({type(self.mode), type(self.padding_mode)} & {int})

    @property
    def attributes(self) -> tuple[object, object]:
        """The mode and the padding mode; in a model, what is left out is the default, which plugins have none of."""
        if self.route == "function":
            return self.mode, self.padding_mode
        if self.is_coded:
            modes, paddings = (
                dict(enumerate(("linear", "nearest", "cubic"))),
                dict(enumerate(PADDING)),
            )
            return modes.get(self.mode, self.mode), paddings.get(
                self.padding_mode, self.padding_mode
            )
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
    return st.integers(1, one_in).flatmap(lambda i: odd if i == one_in else usual)


def _tensors(types: tuple[str, ...], shape: tuple[int, ...]) -> st.SearchStrategy:
    # Huge shapes take no memory: all their elements are one.
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
    st.sampled_from(MODES), st.sampled_from(("", "lanczos", "LINEAR", "nearest ", 3, None)), 16
)
_padding_or_not = _mostly(
    st.sampled_from(PADDING), st.sampled_from(("", "wrap", "zero", 0, None)), 16
)
_aligned_or_not = _mostly(st.sampled_from((0, 1)), st.sampled_from((2, -1, 1 << 40)), 16)


def _floats(types: tuple[str, ...]) -> st.SearchStrategy:
    """Mostly the floats of ``types``, and now and then what no grid is of."""
    others = tuple(name for name in X_TYPES if name not in FLOATS)
    return _mostly(st.just(tuple(name for name in FLOATS if name in types)), st.just(others), 16)


@st.composite
def _grid_sample(draw: st.DrawFn, types: tuple[str, ...]) -> dict[str, object]:
    r, mode = draw(st.integers(1, 5)), draw(_mode_or_not)
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(str(mode), 2) ** r
    n, c = (
        draw(_mostly(st.integers(1, 3), st.just(0), 12)),
        draw(_mostly(st.integers(1, 3), st.just(0), 12)),
    )
    lengths, outputs = [draw(_lengths) if i < 3 else draw(st.integers(1, 2)) for i in range(r)], []
    for _ in range(r):
        room = MAX_TAPS // (taps * max(n, 1) * max(c, 1) * max(math.prod(outputs), 1))
        outputs.append(draw(_mostly(st.integers(1, min(max(room, 1), 5)), st.just(0), 16)))
    X, grid = [n, c, *lengths], [n, *outputs, r]
    what = draw(st.integers(0, 31))
    if what == 0:
        grid[0] = draw(st.integers(0, 4))
    elif what == 1:
        grid[-1] = draw(st.integers(0, 6))
    elif what == 2:
        X[draw(st.integers(0, r + 1))] = draw(st.sampled_from(HUGE))
    elif what == 3:
        grid[draw(st.integers(0, r))] = draw(st.sampled_from(HUGE))
    elif what == 4:
        X = X[: draw(st.integers(0, len(X)))]
    elif what == 5:
        grid = grid[: draw(st.integers(0, len(grid)))]
    elif what == 6:
        X.append(draw(st.integers(0, 3)))
    elif what == 7:
        grid.insert(1, draw(st.integers(0, 3)))
    elif what == 8:
        X, grid = [[draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 7)))] for _ in "Xg"]
    first, second = (
        draw(_tensors(types, tuple(X))),
        draw(_tensors(draw(_floats(types)), tuple(grid))),
    )
    made = {"operator": "GridSample", "first": first, "second": second, "size": ()}
    return made | {"mode": mode, "padding_mode": draw(_padding_or_not)}


@st.composite
def _affine_grid(draw: st.DrawFn, types: tuple[str, ...]) -> dict[str, object]:
    r, n = draw(st.integers(2, 3)), draw(_mostly(st.integers(1, 3), st.just(0)))
    theta, size = [n, r, r + 1], [n, draw(_lengths), *(draw(_lengths) for _ in range(r))]
    what = draw(st.integers(0, 15))
    if what == 0:
        size[draw(st.integers(0, r + 1))] = draw(st.sampled_from((-1, -(1 << 63), -(1 << 40))))
    elif what == 1:
        size[draw(st.integers(0, r + 1))] = draw(st.sampled_from(HUGE))
    elif what == 2:
        size[2:] = [draw(st.sampled_from(HUGE)) for _ in size[2:]]
    elif what == 3:
        size = [draw(st.integers(-1, 3)) for _ in range(draw(st.integers(0, 7)))]
    elif what == 4:
        theta = [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 5)))]
    elif what == 5:
        theta[draw(st.integers(0, 2))] = draw(st.sampled_from((0, 1, 5, 1 << 33)))
    size_type = draw(_mostly(st.just("int64"), st.sampled_from(("int32", "float32", "uint8")), 16))
    if size_type != "float32":
        size = np.array(size, np.int64).astype(size_type).tolist()
    first, second = (
        draw(_tensors(draw(_floats(types)), tuple(theta))),
        Tensor(size_type, (len(size),)),
    )
    made = {"operator": "AffineGrid", "first": first, "second": second, "size": tuple(size)}
    return made | {"mode": None, "padding_mode": None}


@st.composite
def cases(draw: st.DrawFn, types: tuple[str, ...] = X_TYPES) -> Case:
    """Any case of ``types``; about half of them are what their operator's specification allows."""
    operator = draw(_mostly(_grid_sample(types), _affine_grid(types), 5))
    route = draw(st.sampled_from(ROUTES))
    opsets = (16, 19, 20, 22, 22) if operator["operator"] == "GridSample" else (20, 21, 22)
    opsets = tuple(opset for opset in opsets if opset <= faults.OPSET)
    opset = draw(_mostly(st.sampled_from(opsets), st.sampled_from((13, 15, 16)), 20))
    mode = operator["mode"]
    if route != "function" and isinstance(
        mode, str
    ):  # each mode by its opset's name, save now and then
        stem = mode.removeprefix("bi")
        proper = f"bi{stem}" if opset < 20 and stem in ("linear", "cubic") else stem
        mode = draw(_mostly(st.just(proper), st.just(mode), 16))
    drawn = {"mode": mode, "route": route, "opset": opset, "align_corners": draw(_aligned_or_not)}
    drawn["declared"] = draw(st.sampled_from(DECLARED))
    drawn["slip"] = draw(_mostly(st.just(""), st.sampled_from(SLIPS), 16))
    return Case(
        **operator | drawn,
        name=draw(st.sampled_from(NAMES)),
        seed=draw(st.integers(0, (1 << 32) - 1)),
    )


def array(tensor: Tensor, rng: np.random.Generator, coordinates: bool = False) -> np.ndarray:
    """The array of ``tensor``, whose values are normalized coordinates or pixels."""
    dtype, shape, layout = dtype_of(tensor.type), tensor.shape, tensor.layout
    lengths = {"broadcast": [min(d, 1) for d in shape], "strided": [2 * d for d in shape]}.get(
        layout, shape
    )
    values = _values(dtype, tuple(lengths), rng, coordinates, wild=tensor.values == "wild")
    if layout == "broadcast":
        return np.broadcast_to(values, shape)
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout in ("strided", "reversed"):
        return np.asarray(
            values[(slice(None, None, 2 if layout == "strided" else -1),) * len(shape)]
        )
    if layout == "unaligned" and dtype.kind != "O":
        return np.ndarray(shape, dtype, bytearray(1) + values.tobytes(), offset=1)
    values.flags.writeable = layout != "read-only"
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
        return np.array(rng.choice(["", "a", "Ångström", "日本", "x" * 40], shape), object).reshape(
            shape
        )
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
            values = np.where(
                rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf]), values
            )
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype).reshape(shape)
