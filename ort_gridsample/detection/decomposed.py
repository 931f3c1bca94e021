"""GridSample and AffineGrid decomposed to basic operators: by exporters, by people, by this package.

A subgraph is a candidate by its structure alone: it gathers values by indices that come from a rounding and sums them,
or it multiplies the constant base of a grid. Which operator it computes, if any, is then tried: onnxruntime runs the
subgraph by itself, on values that tell all modes, paddings and alignments apart, and it must answer as one of them.
Every such subgraph is linear in X, or in theta, so that a few values of these are enough; coordinates are tried far
outside, and at and around all borders. A subgraph that depends on unknown sizes is tried in several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count, islice, product
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..dialects.table import AttributeValue
from ..functions.validation import alike
from ..graph.element_types import elem_type
from ..graph.scope import Scope
from ..graph.use_def import GATHERS, MOST_ENDS, ROUNDINGS, Subgraph, UseDef
from ..inference.types import Inference, Probe, Value
from ..reference import affine, sampler
from ..reference.arrays import Array
from ..reference.coordinates import PADDING, Axis, normalize, unnormalize
from ..reference.plan import plan_for

#: The types in which rounding leaves no doubt.
TYPES = ("float32", "float64")

_FLOATS = tuple(map(elem_type, TYPES))
#: Lengths for dimensions that are not known, in the order in which they are met; a subgraph is tried with each row.
SIZES = ((2, 3, 4, 8, 5, 6, 7, 9, 11), (3, 2, 7, 5, 4, 3, 2, 6, 8), (1, 1, 9, 6, 1, 8, 5, 3, 2))
#: The least number of positions that are tried, the most runs for them, and the most elements of an input.
POSITIONS, RUNS, MOST_ELEMENTS = 1024, 64, 1 << 26
#: The most positions that are compared of a run, while several kinds are possible, and when one is left.
COMPARED = 1 << 12, 1 << 16
#: Tolerance: above rounding error, below the difference between any two combinations of attributes.
TOLERANCE = 2e-4
#: The most roundings of the values and coordinates that an answer may be off by.
ROUNDED = 8

Size = tuple[int | None, ...]
#: The operator's attributes that a subgraph was found to have, and its size as in :class:`DecomposedOperator`.
Result = tuple[Mapping[str, AttributeValue], Size]
Shapes = list[tuple[int, ...]]
#: Mode, padding mode, and whether corners are aligned.
Kind = tuple[str, str, bool]
#: A dimension, by the number of a value and the axis.
At = tuple[int, int]
#: Its length, its name, or itself.
Dim = int | str | At


@dataclass(frozen=True)
class DecomposedOperator:
    """A subgraph that computes an operator.

    ``size`` is, of an AffineGrid, its input ``size`` as far as it is known, with None for a batch that is theta's; of a
    GridSample whose X has all pixels in one axis, the lengths of two.
    """

    operator: str
    subgraph: Subgraph
    attributes: Mapping[str, AttributeValue]
    size: Size = ()


@dataclass(frozen=True)
class _Candidate:
    """The values that may be the output, the last first, and those that may be each input, the nearest first."""

    operator: str
    outputs: Sequence[str]
    inputs: Sequence[Sequence[str]]


class Search:
    """Looks for decomposed operators in the scopes ``found``; ``probe`` runs candidates: without it there are none.

    ``values``: the id of a scope -> the values of it whose types must be known.
    """

    def __init__(self, found: Sequence[Scope], probe: Probe | None) -> None:
        self._probe, self.values = probe, dict[int, list[str]]()
        self._candidates: dict[int, tuple[UseDef, list[_Candidate]]] = {}
        self._results: dict[tuple[bytes, tuple[Value, ...]], Result | None] = {}
        for scope in found if probe is not None else ():
            op_types = set(scope.op_types)
            rounds = not (op_types.isdisjoint(GATHERS) or op_types.isdisjoint(ROUNDINGS))
            if rounds or "MatMul" in op_types or {"Mul", "ReduceSum"} <= op_types:  # most others have none
                use_def = UseDef(scope)
                candidates = [*(_samples(use_def) if rounds else ()), *_grids(use_def)]
                if candidates:
                    self._candidates[id(scope)] = use_def, candidates
                    inputs = dict.fromkeys(name for c in candidates for names in c.inputs for name in names)
                    self.values[id(scope)] = [*inputs, *(name for c in candidates for name in c.outputs)]

    def operators(self, scope: Scope, inference: Inference) -> list[DecomposedOperator]:
        """The decomposed operators in ``scope``."""
        if id(scope) not in self._candidates:
            return []
        use_def, candidates = self._candidates[id(scope)]
        resolved = [self._resolve(candidate, use_def, inference) for candidate in candidates]
        by_output = {each.subgraph.output: each for each in resolved if each is not None}
        uses = Counter(index for each in by_output.values() for index in each.subgraph.nodes)
        # One that lies inside another is part of that.
        kept = [each for output, each in by_output.items() if uses[use_def.makers[output]] == 1]
        while True:
            nodes = {index for each in kept for index in each.subgraph.nodes}
            private = [each for each in kept if not use_def.leaks(each.subgraph, nodes)]
            if len(private) == len(kept):
                return kept
            kept = private

    def _resolve(self, candidate: _Candidate, use_def: UseDef, inference: Inference) -> DecomposedOperator | None:
        """The operator that ``candidate`` is, if any."""
        known, (fits, attempt) = partial(inference.known, use_def.scope), _OPERATORS[candidate.operator]
        fitting = (names for names in product(candidate.outputs, *candidate.inputs) if fits(*map(known, names)))
        for output, *inputs in sorted(fitting, key=lambda names: _is_flat(*map(known, names[1:]))):
            subgraph = use_def.subgraph(output, inputs)
            if subgraph is None:
                continue
            values = [*map(known, (*inputs, *subgraph.shapes))]
            if all(value.shape is not None and value.type in spec.TYPES for value in values):
                model = _model_of(use_def, subgraph, values)
                key = model.SerializeToString(deterministic=True), tuple(values)
                if key not in self._results:  # layers of a model are alike
                    assert self._probe is not None  # as there are candidates
                    self._results[key] = attempt(model, values, self._probe)
                if (result := self._results[key]) is not None:
                    return DecomposedOperator(candidate.operator, subgraph, *result)
        return None


def _samples(use_def: UseDef) -> Iterator[_Candidate]:
    """Values that are gathered by indices that come from a rounding."""
    groups: dict[tuple[frozenset[int], str], list[int]] = {}
    for index, inputs in enumerate(use_def.scope.inputs):
        if use_def.is_op(index, GATHERS) and len(inputs) == 2 and inputs[1] in use_def.makers:
            roundings = use_def.indices(use_def.nodes[index])
            if roundings:
                groups.setdefault((roundings, use_def.behind(inputs[0])[-1]), []).append(index)
    for (roundings, _), gathers in groups.items():
        behind = [use_def.behind(use_def.nodes[index].input[0]) for index in gathers]
        X = [name for name in behind[0] if all(name in others for others in behind)]
        outputs = [*islice(use_def.post_dominators(gathers), MOST_ENDS)]
        grids = [*islice(use_def.dominators(outputs[0], gathers, roundings), MOST_ENDS)] if X and outputs else []
        if grids:
            yield _Candidate("GridSample", outputs[::-1], (X, grids))


def _grids(use_def: UseDef) -> Iterator[_Candidate]:
    """Products with the constant base of a grid."""
    scope, may_be_base = use_def.scope, cache(partial(_may_be_base, use_def))
    for index, op_type in enumerate(scope.op_types):
        inputs = scope.inputs[index] if op_type in ("Mul", "MatMul") else ()
        if len(inputs) != 2:
            continue
        # Beside a constant, the other input is no base: quickly said of most nodes, which multiply by weights.
        held = [name for name in inputs if name not in use_def.makers and scope.held(name) is not None]
        for base in filter(may_be_base, held or inputs):
            theta = inputs[base == inputs[0]]
            if use_def.is_op(index, (op_type,)) and use_def.kind(theta) == "data":
                outputs = [*islice(use_def.post_dominators([index]), MOST_ENDS)]
                if outputs:
                    yield _Candidate("AffineGrid", outputs[::-1], (use_def.behind(theta),))


def _may_be_base(use_def: UseDef, name: str) -> bool:
    """Whether ``name`` may be the base of a grid: computed of constants and shapes alone, and not one number.

    Where it is a constant, a matrix or more, with ones in its last or next to last column.
    """
    tensor = use_def.scope.held(name)
    if name in use_def.makers:
        if (tensor is not None and math.prod(tensor.dims) == 1) or use_def.kind(name) == "data":
            return False
        name = use_def.behind(name)[-1]
        if name in use_def.makers:
            return True
        tensor = use_def.scope.held(name)
    lengths = () if tensor is None else tensor.dims[:]
    if tensor is None or (3 not in lengths and 4 not in lengths):  # as most
        return False
    dims = [dim for dim in lengths if dim != 1]
    if len(dims) < 2 or not {3, 4}.intersection(dims[-2:]) or tensor.data_type not in _FLOATS:
        return False
    value = np.array(use_def.scope.constant(name)).reshape(dims)
    return any(dims[axis] in (3, 4) and bool((value.take(-1, axis) == 1).all()) for axis in (-1, -2))


def _fits_sample(Y: Value, X: Value, grid: Value) -> bool:
    """Whether values of these types and shapes may be those of a GridSample."""
    if X.type not in TYPES or grid.type not in TYPES or X.shape is None or grid.shape is None or len(X.shape) < 3:
        return False
    axes = len(grid.shape) - 2
    fits = len(X.shape) == axes + 2 or (_is_flat(X, grid) and isinstance(X.shape[2], int))
    fits = fits and alike(grid.shape, (X.shape[0], *[None] * axes, axes))
    return fits and alike(Y.shape, (*X.shape[:2], *grid.shape[1:-1]))


def _is_flat(X: Value, grid: Value | None = None) -> bool:
    """Whether all pixels of an image are in one axis."""
    return grid is not None and X.rank == 3 and grid.rank == 4


def _fits_grid(grid: Value, theta: Value) -> bool:
    """Whether values of these types and shapes may be those of an AffineGrid."""
    if theta.type not in TYPES or theta.shape is None:
        return False
    shapes = (((None, r, r + 1), (theta.shape[0], *[None] * r, r)) for r in (2, 3))
    return any(alike(theta.shape, one) and alike(grid.shape, other) for one, other in shapes)


def _model_of(use_def: UseDef, subgraph: Subgraph, values: Sequence[Value]) -> onnx.ModelProto:
    """A model of ``subgraph`` alone, in names of its own, so that like subgraphs make equal models."""
    names: dict[str, str] = {"": ""}

    def name(of: str) -> str:
        return names.setdefault(of, f"v{len(names)}")

    graph = onnx.GraphProto(name="part")
    for of, value in zip((*subgraph.inputs, *subgraph.shapes), values, strict=True):
        shape = [None] * len(value.shape or ())
        graph.input.append(helper.make_tensor_value_info(name(of), elem_type(str(value.type)), shape))
    for of in subgraph.constants:
        constant = use_def.scope.tensor(of)
        assert constant is not None  # as its kind says
        graph.initializer.append(constant)
        graph.initializer[-1].name = name(of)
    for index in subgraph.nodes:
        node = use_def.nodes[index]
        inputs, outputs = map(name, node.input), map(name, node.output)
        graph.node.append(onnx.NodeProto(op_type=node.op_type, attribute=node.attribute, input=inputs, output=outputs))
    graph.output.append(onnx.ValueInfoProto(name=name(subgraph.output)))
    opset = helper.make_opsetid("", use_def.scope.opsets.get("", 1))
    return onnx.ModelProto(ir_version=8, graph=graph, opset_import=[opset])


def _try_sample(model: onnx.ModelProto, values: Sequence[Value], probe: Probe) -> Result | None:
    """The attributes of the GridSample that ``model`` is, and the lengths of X where they are in one axis."""
    axes, flat = len(values[1].shape or ()) - 2, _is_flat(*values[:2])
    shapes = list(_shapes(values, [((0, 0), (1, 0)), ((1, axes + 1), axes)]))
    if not shapes:
        return None
    pixels = shapes[0][0][2]
    lengths = [(h, pixels // h) for h in range(1, pixels + 1) if pixels % h == 0] if flat else [()]
    possible = list(product(product(spec.MODES, spec.PADDING_MODES, (False, True)), lengths))
    for rounds in (range(1), range(1, RUNS)):  # the first alone, as it is the last for most that are none
        jumps = any(mode == "nearest" for (mode, _, _), _ in possible)
        feeds = list(_samples_to_try(shapes, values, rounds, jumps, possible[0][1] if rounds[0] else ()))
        answers = probe.answers(model, feeds)
        if answers is None:
            return None
        for (X, grid, *_), answer in zip(feeds, answers, strict=True):
            most = COMPARED[len(possible) == 1]
            possible = [each for each in possible if _is_sample(*each, X, grid, answer, most)]
        if not possible:
            return None
    match possible:
        case [((mode, padding_mode, align_corners), size)]:
            if mode == "nearest":
                kind = mode, padding_mode, align_corners
                if not all(_agrees_at_ties(model, each, values, probe, kind, size) for each in shapes):
                    return None
            return {"mode": mode, "padding_mode": padding_mode, "align_corners": int(align_corners)}, size
    return None


def _samples_to_try(
    shapes: Sequence[Shapes], values: Sequence[Value], rounds: Sequence[int], jumps: bool, size: Sequence[int]
) -> Iterator[list[Array]]:
    """Inputs for a candidate: X, of lengths ``size`` if these are known, grids, and zeros where only shapes count.

    Positions are inside and outside, some far, and in every other round at edges and centres of pixels; of a candidate
    that ``jumps`` there, only at those that are exact in any arithmetic. After the first round one X is 1 everywhere,
    with positions inside: no rounding of a coordinate hides arithmetic on X.
    """
    for each in shapes if rounds[0] else shapes[:1]:
        grid = each[1]
        lengths = np.array((size or [*each[0][2:], *[1] * (len(grid) - len(each[0]))])[::-1])
        generator = np.random.default_rng(sum(map(sum, each)))
        X = generator.uniform(-1, 1, each[0])
        needed = -(-POSITIONS // math.prod(grid[:-1]))
        inside = generator.uniform(-1, 1, grid) * np.clip(1 - 4 / lengths, 0, 1)
        if rounds[0]:
            yield _typed((np.ones_like(X), inside), each, values)
        for number in rounds[: 2 * needed - bool(rounds[0])]:
            at = _at_edges(generator, grid, lengths, jumps) if number % 2 else _anywhere(generator, grid, lengths)
            yield _typed((X, at), each, values)


def _agrees_at_ties(
    model: onnx.ModelProto, shapes: Shapes, values: Sequence[Value], probe: Probe, kind: Kind, size: Sequence[int]
) -> bool:
    """Whether ``model``, a GridSample of this ``kind`` elsewhere, is one where its own arithmetic meets a tie.

    On an axis of 3 pixels, say, no coordinate is on a tie in any arithmetic. Which coordinates the graph takes to one
    depends on the order of its operations, so the values that it rounds are read from it. Positions are near ties on
    one axis, and near pixels' centres on the others.
    """
    roundings = [node for node in model.graph.node if node.op_type in ROUNDINGS]
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    traced.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(n.input[0] for n in roundings))
    lengths = np.array((size or shapes[0][2:])[::-1])
    axis = Axis.of(lengths.astype(np.float64), kind[2], True, np.maximum)
    generator = np.random.default_rng(0)
    X, grid_shape = generator.permutation(math.prod(shapes[0])).reshape(shapes[0]) + 1.0, shapes[1]
    inside = generator.uniform(-1, 1, grid_shape) * (1 - 1 / lengths)
    runs = min(RUNS, -(-POSITIONS // math.prod(grid_shape[:-1])))
    near_ties = [_near_ties(generator, grid_shape, lengths, axis, np.dtype(str(values[1].type))) for _ in range(runs)]
    feeds = [_typed((X, grid), shapes, values) for grid in (inside, *(grid for grid, _, _ in near_ties))]
    outputs = probe.outputs(traced, feeds)
    if outputs is None:
        return False
    rounded = dict(zip((value.name for value in traced.graph.output), range(len(traced.graph.output)), strict=True))
    indices = [(rounded[node.input[0]], node.op_type) for node in roundings]
    pixels = unnormalize(feeds[0][1].astype(np.float64), axis)
    layouts = [(at, op_type, _layout_of(outputs[0][at], pixels)) for at, op_type in indices]
    seen = {axis_number for _, _, layout in layouts for axis_number in layout}
    if not all(number in seen for number, length in enumerate(lengths) if length > 1):
        return False  # the graph does not round pixel coordinates, so its ties are unknown
    for (_, coordinates, tested), (X, *_), (answer, *more) in zip(near_ties, feeds[1:], outputs[1:], strict=True):
        on_tie = np.zeros(grid_shape[:-1], bool)
        for at, op_type, layout in layouts:
            for number, view in layout.items():
                value = view(more[at - 1])
                jump = value - np.floor(value) == (0.5 if op_type == "Round" else 0.0)
                on_tie |= jump & (tested == number)
        expected = _nearest_at(X.reshape(*X.shape[:2], *lengths[::-1]), coordinates, axis, kind[1])
        differs = (answer != expected).any(1) & on_tie
        if differs.any():
            return False
    return True


def _near_ties(
    generator: np.random.Generator, shape: Sequence[int], lengths: Array, axis: Axis, dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """A grid near ties, the pixel coordinates that are meant, and the number of each position's axis with a tie."""
    centres = generator.integers(0, lengths, shape).astype(np.float64)
    tested = generator.integers(0, len(lengths), shape[:-1])
    chosen = np.arange(len(lengths)) == tested[..., None]
    ties = generator.integers(-4, lengths + 4, shape) + 0.5
    pixels = np.where(chosen, ties, centres)
    # An axis of one pixel, aligned, has no other coordinate than 0.
    pixels = np.where((lengths == 1) & axis.align_corners, 0.0, pixels)
    grid = normalize(pixels, axis.last, axis.span).astype(dtype)
    steps = generator.integers(-2, 3, shape[:-1])[..., None] * chosen
    for step in (1, 2):
        grid = np.where(steps >= step, np.nextafter(grid, np.array(np.inf, dtype)), grid)
        grid = np.where(steps <= -step, np.nextafter(grid, np.array(-np.inf, dtype)), grid)
    return grid, pixels, tested


def _layout_of(rounded: Array, pixels: Array) -> dict[int, Callable[[Array], Array]]:
    """How pixel coordinates (N, …, r) lie in what a node rounds: the number of each axis -> its values there.

    Coordinates may be off by a constant, as where an image has zeros around it. Empty where they do not lie there.
    """
    *outer, axes = pixels.shape
    batch, positions = outer[0], math.prod(outer)
    views: dict[int, Callable[[Array], Array]] = {}
    if positions == 0 or rounded.size % positions:
        return views
    parts = rounded.size // positions

    def view_of(part: int, order: int) -> Callable[[Array], Array]:
        def view(x: Array) -> Array:
            rows = (
                x.reshape(parts, positions)[part],
                x.reshape(positions, parts)[:, part],
                x.reshape(batch, parts, -1)[:, part],
            )
            return rows[order].reshape(outer)

        return view

    for part, order, number in product(range(min(parts, axes)), range(3), range(axes)):
        view = view_of(part, order)
        off = view(rounded) - pixels[..., number]
        constant = np.rint(2 * off.flat[0]) / 2
        if number not in views and (abs(off - constant) < 1e-3).all():
            views[number] = view
    return views


def _nearest_at(X: Array, pixels: Array, axis: Axis, padding_mode: str) -> Array:
    """The nearest pixels of ``X`` (N, C, D1, …, Dr) to exact pixel coordinates (N, …, r), innermost axis first."""
    padding = PADDING[padding_mode]
    nearest = np.rint(padding.pad(np, pixels, axis))
    is_inside = ((nearest >= 0) & (nearest <= axis.last)).all(-1)
    index = np.clip(nearest, 0, axis.last).astype(np.int64)
    batch = np.arange(len(X)).reshape(-1, *[1] * (pixels.ndim - 2))
    found = X[(batch, slice(None), *(index[..., i] for i in reversed(range(pixels.shape[-1]))))]
    return np.moveaxis(np.where(is_inside[..., None], found, 0), -1, 1)


def _typed(first: Sequence[Array], shapes: Shapes, values: Sequence[Value]) -> list[Array]:
    """The inputs that ``values`` are: the ``first`` arrays, and zeros of the other ``shapes``, which alone count."""
    arrays = [*first, *map(np.zeros, shapes[len(first) :])]
    return [array.astype(str(value.type), copy=False) for array, value in zip(arrays, values, strict=True)]


def _anywhere(generator: np.random.Generator, shape: Sequence[int], lengths: Array) -> Array:
    """A grid of positions inside, around and far outside an image of ``lengths``, none near a pixel's edge."""
    reach = generator.choice([1.0, 1.0, 1.6, np.clip(400 / lengths.max(), 3, 300)], shape)
    grid: Array = generator.uniform(-1, 1, shape) * reach
    while (near := (abs(_from_edges(grid, lengths)) < 2e-3).any(0)).any():
        grid = np.where(near, generator.uniform(-1, 1, grid.shape), grid)
    return grid


def _at_edges(generator: np.random.Generator, shape: Sequence[int], lengths: Array, jumps: bool) -> Array:
    """A grid of pixels' centres and edges, of either alignment; where ``jumps``, of edges those that are exact."""
    halves = generator.integers(-4, 2 * lengths + 4, shape) / 2
    aligned = generator.random((*shape[:-1], 1)) < 0.5
    grid: Array = np.where(aligned, *(normalize(halves, axis.last, axis.span) for axis in _axes(lengths)))
    if jumps:
        grid = np.round(grid * 64) / 64
        off = abs(_from_edges(grid, lengths))
        grid = np.where(((off > 0) & (off < 1e-3)).any(0), _anywhere(generator, shape, lengths), grid)
    return grid


def _axes(lengths: Array) -> list[Axis]:
    """The axes of these ``lengths``, as one: aligned, and not aligned."""
    return [Axis.of(lengths, aligned, True, np.maximum) for aligned in (True, False)]


def _pixels(grid: Array, lengths: Array) -> list[Array]:
    """The pixel coordinates of ``grid``, in either alignment."""
    return [unnormalize(grid, axis) for axis in _axes(lengths)]


def _from_edges(grid: Array, lengths: Array) -> Array:
    """The distances, in pixels, from the edge in the pixel that a position is in: (2, …), for either alignment."""
    return np.stack([at - np.floor(at) - 0.5 for at in _pixels(grid, lengths)])


def _is_sample(kind: Kind, size: Sequence[int], X: Array, grid: Array, answer: Array, most: int) -> bool:
    """Whether ``answer`` is what GridSample of this ``kind`` answers, at ``most`` of the positions."""
    X = X.reshape(*X.shape[:2], *(size or X.shape[2:]))  # whose pixels may be in one axis
    *outer, axes = grid.shape
    if (answer.dtype, answer.shape) != (X.dtype, (*X.shape[:2], *outer[1:])):
        return False
    count = math.prod(outer[1:])
    chosen = np.arange(count)
    if count > most:
        chosen = np.random.default_rng(0).choice(chosen, most, replace=False)
        chosen[[0, -1]] = 0, count - 1
    expected = np.empty((*X.shape[:2], len(chosen)), X.dtype)
    at = np.ascontiguousarray(grid.reshape(len(grid), count, axes)[:, chosen])
    sampler.grid_sample(X, at, expected, plan_for(X.dtype, *kind), 1)
    pixels = ((abs(at) + 1) * X.shape[:1:-1] / 2).sum(-1)[:, None]
    terms = 8 if kind[0] == "cubic" else 1  # the largest term of a weight
    magnitudes = terms * np.max(np.abs(X)) + np.ptp(X) * pixels  # a coordinate's rounding counts as X is steep
    return _equal(answer.reshape(*X.shape[:2], count)[..., chosen], expected, magnitudes, grid.dtype)


def _try_grid(model: onnx.ModelProto, values: Sequence[Value], probe: Probe) -> Result | None:
    """The attributes and the size of the AffineGrid that ``model`` is."""
    for axes in (2, 3):
        possible, sizes = [False, True], set[Size]()
        for shapes in _shapes(values, [((0, 1), axes), ((0, 2), axes + 1)]):
            generators = map(np.random.default_rng, range(2))
            feeds = [_typed([g.uniform(-2, 2, shapes[0])], shapes, values) for g in generators]
            answers = probe.answers(model, feeds)
            if answers is None:
                return None
            for (theta, *_), answer in zip(feeds, answers, strict=True):
                possible = [each for each in possible if _is_grid(theta, answer, axes, each)]
                sizes.add((1, *answer.shape[1:-1]))
        if possible and len(sizes) == 1:
            batch = (values[0].shape or (None,))[0]
            return {"align_corners": int(possible[0])}, (batch if isinstance(batch, int) else None, *sizes.pop())
    return None


def _is_grid(theta: Array, answer: Array, axes: int, align_corners: bool) -> bool:
    lengths = answer.shape[1 : 1 + axes]
    if (answer.dtype, answer.shape) != (theta.dtype, (len(theta), *lengths, axes)):
        return False
    expected = np.empty_like(answer)
    affine.affine_grid(theta, lengths, align_corners, expected, 1)
    return _equal(answer, expected, np.max(np.abs(theta).sum(-1)), theta.dtype)


def _equal(answer: Array, expected: Array, magnitudes: Array, coarser: np.dtype[Any]) -> bool:
    """Whether two arrays agree up to rounding of values of these ``magnitudes``, in their type or a coarser one."""
    epsilon = max(np.finfo(answer.dtype).eps, np.finfo(coarser).eps)
    return bool((abs(answer - expected) <= np.minimum(TOLERANCE, ROUNDED * epsilon * magnitudes)).all())


def _shapes(values: Sequence[Value], equal: Sequence[tuple[At, At | int]]) -> Iterator[Shapes]:
    """Shapes that ``values`` may have: one of each where all are known, else several.

    Dimensions of one name have one length, and so do those that are ``equal``, to each other or to a number.
    """
    dims: dict[Dim, Dim] = {}
    for number, value in enumerate(values):
        for axis, dim in enumerate(value.shape or ()):
            dims[number, axis] = (number, axis) if dim is None else dim
    for pair in equal:
        found = {dims.get(each, each) for each in pair}
        if sum(isinstance(dim, int) for dim in found) > 1:
            return
        one = min(found, key=lambda dim: not isinstance(dim, int))
        dims = {at: one if dim in found else dim for at, dim in dims.items()}
    free = list(dict.fromkeys(dim for dim in dims.values() if not isinstance(dim, int)))
    for row in SIZES if free else SIZES[:1]:
        chosen = dict(zip(free, chain(row, count(max(row) + 1)), strict=False))
        lengths = {at: dim if isinstance(dim, int) else chosen[dim] for at, dim in dims.items()}
        shapes = [tuple(lengths[n, axis] for axis in range(len(value.shape or ()))) for n, value in enumerate(values)]
        if all(0 < math.prod(shape) <= MOST_ELEMENTS for shape in shapes):
            yield shapes


#: Operator -> whether values may be its output and inputs; and the function that tries a model of them.
_OPERATORS: Mapping[str, tuple[Callable[..., bool], Callable[..., Result | None]]] = {
    "GridSample": (_fits_sample, _try_sample),
    "AffineGrid": (_fits_grid, _try_grid),
}
