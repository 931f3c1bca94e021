"""GridSample and AffineGrid decomposed to basic operators: by exporters, by people, by this package.

What may be one is found by its shape alone: values that are gathered by indices that come from a rounding, and summed;
or a matrix product with the constant base of a grid. What it is, and whether it is one, is then asked by trying it:
the part is run, by itself, on values that tell all modes, paddings and alignments apart, and must give the answers of
one of them. All that is done to X is linear there, and all that is done to theta, so that a few values speak for all;
coordinates are tried far outside, at and around all borders. What depends on sizes that are not known is tried in
several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, product
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .. import spec
from ..core import affine, numpy_core
from ..core.arrays import Array
from ..core.plan import plan_for
from .dialects import AttributeValue
from .element_types import elem_type
from .graphs import Scope
from .inference import Inference, Value
from .onnxruntime_probe import OnnxruntimeProbe
from .use_def import GATHERS, MOST_ENDS, ROUNDINGS, Subgraph, UseDef

#: The types in which rounding leaves no doubt.
TYPES = ("float32", "float64")

_FLOATS = tuple(map(elem_type, TYPES))

#: Sizes for dimensions that are not known, in the order in which they are met: with each the part is tried once.
SIZES = ((2, 3, 4, 8, 5, 6, 7, 9, 11), (3, 2, 7, 5, 4, 3, 2, 6, 8), (1, 1, 9, 6, 1, 8, 5, 3, 2))

#: So many positions are tried at least, in so many runs at most; and parts of more elements not at all.
POSITIONS, RUNS, MOST_ELEMENTS = 1024, 64, 1 << 26

#: So many positions are compared of a run, while there are several possibilities, and when there is one.
COMPARED = 1 << 12, 1 << 16

#: What no mode, padding or alignment has in common with another: no answer is taken for one that is further off.
TOLERANCE = 2e-4

#: Nor one further off than so many roundings of the values and coordinates that it is made of.
ROUNDED = 8

Attributes = Mapping[str, AttributeValue]
Size = tuple[int | None, ...]
#: What a part was found to be: the operator's attributes, and of an AffineGrid its size.
Said = tuple[Attributes, Size]
Try = Callable[[onnx.ModelProto, Sequence[Value], OnnxruntimeProbe], Said | None]
Shapes = list[tuple[int, ...]]
#: A part, and what is known of its inputs.
Key = tuple[bytes, tuple[Value, ...]]
#: Mode, padding mode, and whether corners are aligned.
Kind = tuple[str, str, bool]
#: A dimension: the number of a value, and the axis.
At = tuple[int, int]
#: Its length, or what it is called.
Dim = int | str | At


@dataclass(frozen=True)
class Found:
    """A part of a scope that computes an operator.

    Attributes:
        operator: the key of :data:`ort_gridsample.spec.OPERATORS`.
        subgraph: the part.
        attributes: the operator's.
        size: of an AffineGrid, what is known of its input, None for the batch where theta's says it; of a GridSample
            whose X has all pixels in one axis, the lengths of two.
    """

    operator: str
    subgraph: Subgraph
    attributes: Attributes
    size: Size = ()


@dataclass(frozen=True)
class _Candidate:
    """The ends that a part may have: outputs, the last first, and values for each input, the nearest first."""

    operator: str
    outputs: Sequence[str]
    inputs: Sequence[Sequence[str]]


class Search:
    """Looks for decomposed operators in the scopes of a model.

    Args:
        found: the scopes.
        native: whom to ask what a part computes; where nobody is, nothing is found.
    """

    def __init__(self, found: Sequence[Scope], native: OnnxruntimeProbe | None) -> None:
        self._native = native
        self._chains: dict[int, UseDef] = {}
        self._candidates: dict[int, list[_Candidate]] = {}
        self._said: dict[Key, Said | None] = {}
        for scope in found if native is not None else ():
            if _may_hold(scope):
                use_def = UseDef(scope)
                candidates = [*_samples(use_def), *_grids(use_def)]
                if candidates:
                    self._chains[id(scope)], self._candidates[id(scope)] = use_def, candidates

    @property
    def values(self) -> dict[int, list[str]]:
        """The id of a scope -> the values of it whose types must be known."""
        return {
            scope: list(dict.fromkeys(name for c in candidates for names in c.inputs for name in names))
            + [name for c in candidates for name in c.outputs]
            for scope, candidates in self._candidates.items()
        }

    def found(self, scope: Scope, inference: Inference) -> list[Found]:
        """The decomposed operators in ``scope``."""
        if id(scope) not in self._chains:
            return []
        use_def, native = self._chains[id(scope)], self._native
        assert native is not None  # as there are candidates
        by_output = {
            each.subgraph.output: each
            for candidate in self._candidates[id(scope)]
            if (each := _resolved(candidate, use_def, inference, native, self._said)) is not None
        }
        makers = {use_def.makers[output]: output for output in by_output}
        inside = {
            makers[index]
            for each in by_output.values()
            for index in each.subgraph.nodes
            if makers.get(index, each.subgraph.output) != each.subgraph.output
        }
        all_found = [each for output, each in by_output.items() if output not in inside]
        while True:
            nodes = {index for each in all_found for index in each.subgraph.nodes}
            kept = [each for each in all_found if not use_def.leaks(each.subgraph, nodes)]
            if len(kept) == len(all_found):
                return kept
            all_found = kept

    def use_def(self, scope: Scope) -> UseDef:
        """Who makes and who reads what in ``scope``, where something was found in it."""
        return self._chains[id(scope)]


def _may_hold(scope: Scope) -> bool:
    """Whether it is worth looking: most models have none of this."""
    op_types = set(scope.op_types)
    if not op_types.isdisjoint(GATHERS) and not op_types.isdisjoint(ROUNDINGS):
        return True
    return "MatMul" in op_types or {"Mul", "ReduceSum"} <= op_types


def _samples(use_def: UseDef) -> Iterator[_Candidate]:
    """What gathers by indices that come from a rounding."""
    groups: dict[tuple[frozenset[int], str], list[int]] = {}
    for index, inputs in enumerate(use_def.scope.inputs):
        if use_def.is_op(index, GATHERS) and len(inputs) == 2 and inputs[1] in use_def.makers:
            roundings = use_def.indices(use_def.nodes[index])
            if roundings:
                groups.setdefault((roundings, use_def.behind(inputs[0])[-1]), []).append(index)
    for (roundings, _), gathers in groups.items():
        behind = [use_def.behind(use_def.nodes[index].input[0]) for index in gathers]
        X = [name for name in behind[0] if all(name in others for others in behind)]
        outputs = _some(use_def.joins(gathers))
        if X and outputs:
            grids = _some(use_def.sources(outputs[0], gathers, roundings))
            if grids:
                yield _Candidate("GridSample", outputs[::-1], (X, grids))


def _grids(use_def: UseDef) -> Iterator[_Candidate]:
    """What multiplies the constant base of a grid."""
    for index, inputs in enumerate(use_def.scope.inputs):
        if not use_def.is_op(index, ("Mul", "MatMul")) or len(inputs) != 2:
            continue
        for base, theta in (inputs, inputs[::-1]):
            if use_def.kind(theta) == "data" != use_def.kind(base) and _may_be_base(use_def, base):
                outputs = _some(use_def.joins([index]))
                if outputs:
                    yield _Candidate("AffineGrid", outputs[::-1], (use_def.behind(theta),))


def _some(names: Iterator[str]) -> list[str]:
    return list(islice(names, MOST_ENDS))


def _may_be_base(use_def: UseDef, name: str) -> bool:
    """Whether ``name``, computed of constants and shapes alone, may be the base of a grid."""
    root = use_def.behind(name)[-1]
    return root in use_def.makers or _is_base(use_def.scope.tensor(root))


def _is_base(tensor: onnx.TensorProto | None) -> bool:
    """Whether ``tensor`` is a matrix or more, with ones in its last or next to last column."""
    if tensor is None or tensor.data_type not in _FLOATS:
        return False
    dims = [dim for dim in tensor.dims if dim != 1]
    if len(dims) < 2 or not {3, 4}.intersection(dims[-2:]):
        return False
    value = numpy_helper.to_array(tensor).squeeze()
    return value.ndim >= 2 and any(
        value.shape[axis] in (3, 4) and bool((value.take(-1, axis) == 1).all()) for axis in (-1, -2)
    )


def _resolved(
    candidate: _Candidate, use_def: UseDef, inference: Inference, native: OnnxruntimeProbe, said: dict[Key, Said | None]
) -> Found | None:
    """What ``candidate`` is, if anything; ``said`` is what was found of parts like it."""
    ends = [
        [(name, inference.known(use_def.scope, name)) for name in names]
        for names in (candidate.outputs, *candidate.inputs)
    ]
    fits = _FITS[candidate.operator]
    fitting = (each for each in product(*ends) if fits(*(value for _, value in each)))
    for (output, _), *inputs in sorted(fitting, key=lambda each: _is_flat(*(value for _, value in each[1:]))):
        values = [value for _, value in inputs]
        subgraph = use_def.subgraph(output, [name for name, _ in inputs])
        if subgraph is None:
            continue
        values += [inference.known(use_def.scope, name) for name in subgraph.shapes]
        if all(value.shape is not None and value.type in spec.TYPES for value in values):
            part = _part(use_def, subgraph, values)
            import hashlib  # here, as few need it and importing it takes a while

            key = hashlib.sha256(part.SerializeToString(deterministic=True)).digest(), tuple(values)
            if key not in said:  # layers of a model are alike
                said[key] = _TRIED[candidate.operator](part, values, native)
            if (found := said[key]) is not None:
                return Found(candidate.operator, subgraph, *found)
    return None


def _fits_sample(Y: Value, X: Value, grid: Value) -> bool:
    """Whether values of these types and shapes may be those of a GridSample."""
    if X.type not in TYPES or grid.type not in TYPES or X.shape is None or grid.shape is None or len(X.shape) < 3:
        return False
    axes = len(grid.shape) - 2
    if len(X.shape) != axes + 2 and not (_is_flat(X, grid) and isinstance(X.shape[2], int)):
        return False
    return _alike(grid.shape, (X.shape[0], *[None] * axes, axes)) and (
        Y.shape is None or _alike(Y.shape, (*X.shape[:2], *grid.shape[1:-1]))
    )


def _is_flat(X: Value, grid: Value | None = None) -> bool:
    """Whether all pixels of an image are in one axis."""
    return grid is not None and X.rank == 3 and grid.rank == 4


def _fits_grid(grid: Value, theta: Value) -> bool:
    """Whether values of these types and shapes may be those of an AffineGrid."""
    if theta.type not in TYPES or theta.shape is None:
        return False
    return any(
        _alike(theta.shape, (None, axes, axes + 1))
        and (grid.shape is None or _alike(grid.shape, (theta.shape[0], *[None] * axes, axes)))
        for axes in (2, 3)
    )


def _alike(one: Sequence[int | str | None], other: Sequence[int | str | None]) -> bool:
    """Whether two shapes may be the same: as long, and nowhere of two different numbers."""
    return len(one) == len(other) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True)
    )


def _part(use_def: UseDef, subgraph: Subgraph, values: Sequence[Value]) -> onnx.ModelProto:
    """A model of ``subgraph`` alone, in names of its own: parts that are alike are equal."""
    names: dict[str, str] = {"": ""}

    def name(of: str) -> str:
        return names.setdefault(of, f"v{len(names)}")

    graph = onnx.GraphProto(name="part")
    for of, value in zip((*subgraph.inputs, *subgraph.shapes), values, strict=True):
        graph.input.append(helper.make_tensor_value_info(name(of), elem_type(str(value.type)), [None] * _rank(value)))
    for of in subgraph.constants:
        constant = use_def.scope.tensor(of)
        assert constant is not None  # ``subgraph`` said so
        graph.initializer.append(constant)
        graph.initializer[-1].name = name(of)
    for index in subgraph.nodes:
        node = use_def.nodes[index]
        copy = onnx.NodeProto(op_type=node.op_type, attribute=node.attribute)
        copy.input.extend(map(name, node.input))
        copy.output.extend(map(name, node.output))
        graph.node.append(copy)
    graph.output.append(onnx.ValueInfoProto(name=name(subgraph.output)))
    opset = helper.make_opsetid("", use_def.scope.opsets.get("", 1))
    return onnx.ModelProto(ir_version=8, graph=graph, opset_import=[opset])


def _try_sample(part: onnx.ModelProto, values: Sequence[Value], native: OnnxruntimeProbe) -> Said | None:
    """The attributes of the GridSample that ``part`` is, and the lengths of X where they are in one axis."""
    axes, flat = _rank(values[1]) - 2, _is_flat(*values[:2])
    shapes = list(_shapes(values, [((0, 0), (1, 0))], {(1, axes + 1): axes}))
    if not shapes:
        return None
    pixels = shapes[0][0][2]
    lengths = [(h, pixels // h) for h in range(1, pixels + 1) if pixels % h == 0] if flat else [()]
    possible = list(product(product(spec.MODES, spec.PADDING_MODES, (False, True)), lengths))
    for rounds in (range(1), range(1, RUNS)):  # the first, which is the last for most that are none, by itself
        jumps = any(mode == "nearest" for (mode, _, _), _ in possible)
        feeds = list(_samples_to_try(shapes, values, rounds, jumps, possible[0][1] if rounds[0] else ()))
        answers = native.answers(part, feeds)
        if answers is None:
            return None
        for (X, grid, *_), answer in zip(feeds, answers, strict=True):
            most = COMPARED[len(possible) == 1]
            possible = [
                (kind, size)
                for kind, size in possible
                if _is_sample(kind, X.reshape(*X.shape[:2], *size) if flat else X, grid, answer, most)
            ]
        if not possible:
            return None
    if len(possible) > 1:
        return None
    (((mode, padding_mode, align_corners), size),) = possible
    return {"mode": mode, "padding_mode": padding_mode, "align_corners": int(align_corners)}, size


def _samples_to_try(
    shapes: Sequence[Shapes], values: Sequence[Value], rounds: Sequence[int], jumps: bool, size: Sequence[int]
) -> Iterator[list[Array]]:
    """Values for a part: X, of lengths ``size`` if that is known, grids, and zeros where the shape alone counts.

    Positions are inside and outside, some far, and in every other round at edges and centres of pixels; where the part
    ``jumps`` there, only at those that are exact in any arithmetic. After the first round comes one inside an X that is
    1 everywhere: there no rounding of a coordinate hides what is done to X.
    """
    for each in shapes if rounds[0] else shapes[:1]:
        grid = each[1]
        lengths = np.array((size or [*each[0][2:], *[1] * (len(grid) - len(each[0]))])[::-1])
        generator = np.random.default_rng(sum(map(sum, each)))
        X = generator.uniform(-1, 1, each[0])
        others = [np.zeros(shape) for shape in each[2:]]
        needed = -(-POSITIONS // math.prod(grid[:-1]))
        inside = generator.uniform(-1, 1, grid) * np.clip(1 - 4 / lengths, 0, 1)
        made = [(np.ones_like(X), inside)] if rounds[0] else []
        for number in rounds[: 2 * needed - bool(rounds[0])]:
            at = _at_edges(generator, grid, lengths, jumps) if number % 2 else _anywhere(generator, grid, lengths)
            made.append((X, at))
        for pair in made:
            fed = zip([*pair, *others], values, strict=True)
            yield [array.astype(str(value.type), copy=False) for array, value in fed]


def _anywhere(generator: np.random.Generator, shape: Sequence[int], lengths: Array) -> Array:
    """A grid of positions inside, around and far outside an image of ``lengths``, none near a pixel's edge."""
    reach = generator.choice([1.0, 1.0, 1.6, np.clip(400 / lengths.max(), 3, 300)], shape)
    grid: Array = generator.uniform(-1, 1, shape) * reach
    while (near := _near_edge(grid, lengths, 2e-3)).any():
        grid = np.where(near, generator.uniform(-1, 1, grid.shape), grid)
    return grid


def _at_edges(generator: np.random.Generator, shape: Sequence[int], lengths: Array, jumps: bool) -> Array:
    """A grid of pixels' centres and edges, of either alignment; where ``jumps``, of edges those that are exact."""
    halves = generator.integers(-4, 2 * lengths + 4, shape) / 2
    aligned = generator.random((*shape[:-1], 1)) < 0.5
    grid: Array = np.where(aligned, 2 * halves / np.maximum(lengths - 1, 1) - 1, (2 * halves + 1) / lengths - 1)
    if jumps:
        grid = np.round(grid * 64) / 64
        grid = np.where(
            _near_edge(grid, lengths, 1e-3) & ~_on_edge(grid, lengths), _anywhere(generator, shape, lengths), grid
        )
    return grid


def _pixels(grid: Array, lengths: Array) -> list[Array]:
    """Where ``grid`` points to in pixels, in either alignment."""
    return [(grid + 1) / 2 * (lengths - 1), ((grid + 1) * lengths - 1) / 2]


def _near_edge(grid: Array, lengths: Array, margin: float) -> Array:
    near: Array = np.logical_or(*(abs(at - np.floor(at) - 0.5) < margin for at in _pixels(grid, lengths)))
    return near


def _on_edge(grid: Array, lengths: Array) -> Array:
    """Where a pixel's edge, or none, is hit exactly in either alignment."""
    hit = [at - np.floor(at) - 0.5 for at in _pixels(grid, lengths)]
    on: Array = np.logical_and(*((at == 0) | (abs(at) > 1e-3) for at in hit))
    return on


def _is_sample(kind: Kind, X: Array, grid: Array, answer: Array, most: int) -> bool:
    """Whether ``answer`` is what GridSample of this ``kind`` answers, at ``most`` of the positions."""
    *outer, axes = grid.shape
    shape = (*X.shape[:2], *outer[1:])
    if answer.shape != shape or answer.dtype != X.dtype:
        return False
    positions = grid.reshape(len(grid), -1, axes)
    chosen = np.arange(positions.shape[1])
    if len(chosen) > most:
        chosen = np.random.default_rng(0).choice(chosen, most, replace=False)
        chosen[[0, -1]] = 0, positions.shape[1] - 1
    expected = np.empty((*X.shape[:2], len(chosen)), X.dtype)
    at = np.ascontiguousarray(positions[:, chosen])
    numpy_core.grid_sample(X, at, expected, plan_for(X.dtype, *kind), 1)
    pixels = ((abs(at) + 1) * X.shape[:1:-1] / 2).sum(-1)[:, None]
    terms = 8 if kind[0] == "cubic" else 1  # the largest one of what a weight is the sum of
    magnitudes = terms * np.max(np.abs(X)) + np.ptp(X) * pixels  # a coordinate's rounding counts as X is steep
    return _equal(answer.reshape(*X.shape[:2], -1)[..., chosen], expected, magnitudes, grid.dtype)


def _try_grid(part: onnx.ModelProto, values: Sequence[Value], native: OnnxruntimeProbe) -> Said | None:
    """The attributes and the size of the AffineGrid that ``part`` is."""
    theta = values[0].shape
    assert theta is not None  # ``_FITS`` said so
    for axes in (2, 3):
        possible, sizes = [False, True], set[Size]()
        for shapes in _shapes(values, [], {(0, 1): axes, (0, 2): axes + 1}):
            feeds = [_thetas(shapes, values, seed) for seed in range(2)]
            answers = native.answers(part, feeds)
            if answers is None:
                return None
            for (fed, *_), answer in zip(feeds, answers, strict=True):
                possible = [each for each in possible if _is_grid(fed, answer, axes, each)]
                sizes.add((1, *answer.shape[1:-1]))
        if possible and len(sizes) == 1:
            batch = theta[0] if isinstance(theta[0], int) else None
            return {"align_corners": int(possible[0])}, (batch, *sizes.pop())
    return None


def _thetas(shapes: Sequence[Sequence[int]], values: Sequence[Value], seed: int) -> list[Array]:
    theta = np.random.default_rng(seed).uniform(-2, 2, shapes[0])
    others = [np.zeros(shape) for shape in shapes[1:]]
    return [array.astype(str(value.type)) for array, value in zip([theta, *others], values, strict=True)]


def _is_grid(theta: Array, answer: Array, axes: int, align_corners: bool) -> bool:
    lengths = answer.shape[1:-1]
    if answer.shape != (len(theta), *lengths, axes) or len(lengths) != axes or answer.dtype != theta.dtype:
        return False
    expected = np.empty_like(answer)
    affine.affine_grid(theta, lengths, align_corners, expected, 1)
    return _equal(answer, expected, np.max(np.abs(theta).sum(-1)), theta.dtype)


def _equal(answer: Array, expected: Array, magnitudes: Array, coarser: np.dtype[Any]) -> bool:
    """Whether two arrays are the same but for rounding, in their type or another, what has these ``magnitudes``."""
    epsilon = max(np.finfo(answer.dtype).eps, np.finfo(coarser).eps)
    return bool((abs(answer - expected) <= np.minimum(TOLERANCE, ROUNDED * epsilon * magnitudes)).all())


def _rank(value: Value) -> int:
    assert value.shape is not None  # ``_FITS`` said so
    return len(value.shape)


def _shapes(values: Sequence[Value], same: Sequence[tuple[At, At]], known: Mapping[At, int]) -> Iterator[Shapes]:
    """Shapes that ``values`` may have: one of each where all is known, else some, for dimensions of one name the same.

    Args:
        values: what is known of them.
        same: pairs of dimensions, by value and axis, that are the same.
        known: such dimensions -> their lengths.
    """
    dims: dict[At, Dim] = {}
    for number, value in enumerate(values):
        for axis, dim in enumerate(value.shape or ()):
            dims[number, axis] = (number, axis) if dim is None else dim
    for pair in [*same, *((at, at) for at in known)]:
        found: set[Dim] = {dims[at] for at in pair} | {known[at] for at in pair if at in known}
        lengths = [each for each in found if isinstance(each, int)]
        if len(lengths) > 1:
            return
        one: Dim = lengths[0] if lengths else next(iter(found))
        dims = {at: one if dim in found else dim for at, dim in dims.items()}
    free = list(dict.fromkeys(dim for dim in dims.values() if not isinstance(dim, int)))
    for row in SIZES if free else SIZES[:1]:
        chosen = dict(zip(free, chain(row, count(max(row) + 1)), strict=False))
        shapes = [
            tuple(at if isinstance(at := dims[number, axis], int) else chosen[at] for axis in range(_rank(value)))
            for number, value in enumerate(values)
        ]
        if all(0 < math.prod(shape) <= MOST_ELEMENTS for shape in shapes):
            yield shapes


_FITS: Mapping[str, Callable[..., bool]] = {"GridSample": _fits_sample, "AffineGrid": _fits_grid}
_TRIED: Mapping[str, Try] = {"GridSample": _try_sample, "AffineGrid": _try_grid}
