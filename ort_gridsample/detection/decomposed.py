"""Find GridSamples and AffineGrids that are decomposed to basic operators.

Exporters, people and this package's lowering write them in this form.

A subgraph is a candidate because of its structure. A candidate for GridSample gathers values at
indices that come from a rounding, and sums them. A candidate for AffineGrid multiplies by the
constant base of a grid. :mod:`.trials` then runs the candidate to find out which operator it
computes, if any.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice, product
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..functions.validation import may_match
from ..graph.element_types import elem_type
from ..graph.scope import Scope
from ..inference.probe import Probe
from ..inference.types import Inference, TypeAndShape
from .subgraphs import GATHERS, MAX_CANDIDATES, ROUNDINGS, Subgraph, SubgraphSearch
from .trials import TrialResult, is_flat, try_affine_grid, try_sample

#: The types in which rounding is precise enough to distinguish all attributes.
TYPES = ("float32", "float64")

_FLOATS = tuple(map(elem_type, TYPES))


@dataclass(frozen=True)
class DecomposedOperator:
    """A subgraph that computes an operator.

    Attributes:
        name: the name of the operator.
        subgraph: the subgraph.
        result: the operator's attributes, and the lengths of its image or its size.
    """

    name: str
    subgraph: Subgraph
    result: TrialResult


@dataclass(frozen=True)
class _Candidate:
    """A subgraph that may compute an operator, with several possible borders.

    Attributes:
        operator: the operator.
        outputs: the values that may be its output, in reverse order of computation.
        inputs: for each input of the operator, the values that may be this input, those that are
            nearest to the output first.
    """

    operator: str
    outputs: Sequence[str]
    inputs: Sequence[Sequence[str]]


class _ScopeCandidates(NamedTuple):
    """The candidates of a scope.

    Attributes:
        search: the search for subgraphs in the scope.
        candidates: the candidates.
    """

    search: SubgraphSearch
    candidates: Sequence[_Candidate]


class _TrialKey(NamedTuple):
    """What the result of a trial depends on.

    Attributes:
        digest: the hash of the model.
        values: the types and shapes of its inputs.
        probe: what runs the model.
    """

    digest: bytes
    values: tuple[TypeAndShape, ...]
    probe: Probe


#: The maximum number of results of trials that a process keeps.
MAX_RESULTS = 1 << 10
#: The results of the trials of this process: a trial takes milliseconds.
_trial_results: dict[_TrialKey, TrialResult | None] = {}


class DecomposedSearch:
    """The search for decomposed operators.

    Args:
        all_scopes: the scopes to search.
        probe: runs candidates. Without a probe, the search finds nothing.

    Attributes:
        values_to_infer: the id of a scope -> the values of which :meth:`operators` needs types and
            shapes.
    """

    def __init__(self, all_scopes: Sequence[Scope], probe: Probe | None) -> None:
        self.values_to_infer: dict[int, list[str]] = {}
        self._probe = probe
        self._candidates: dict[int, _ScopeCandidates] = {}
        for scope in all_scopes if probe is not None else ():
            op_types = scope.indices_by_type.keys()
            may_sample = not op_types.isdisjoint(GATHERS) and not op_types.isdisjoint(ROUNDINGS)
            may_multiply = "MatMul" in op_types or {"Mul", "ReduceSum"} <= op_types
            if not may_sample and not may_multiply:
                continue  # SubgraphSearch takes longer than this check, which excludes most scopes
            search = SubgraphSearch(scope)
            candidates = list(_sample_candidates(search)) if may_sample else []
            candidates += _affine_grid_candidates(search)
            if candidates:
                self._candidates[id(scope)] = _ScopeCandidates(search, candidates)
                self.values_to_infer[id(scope)] = _values_of(candidates)

    def operators(self, scope: Scope, inference: Inference) -> list[DecomposedOperator]:
        """Return the decomposed operators in ``scope``."""
        if id(scope) not in self._candidates:
            return []
        search, candidates = self._candidates[id(scope)]
        by_output: dict[str, DecomposedOperator] = {}
        for candidate in candidates:
            decomposed = self._resolve(candidate, search, inference)
            if decomposed is not None:
                by_output[decomposed.subgraph.output] = decomposed
        # Drop the operators that are inside another one.
        n_operators_with_node = Counter(
            node for decomposed in by_output.values() for node in decomposed.subgraph.nodes
        )
        operators = []
        for output, decomposed in by_output.items():
            if n_operators_with_node[search.makers[output]] == 1:
                operators.append(decomposed)
        return _without_other_readers(operators, search)

    def _resolve(
        self,
        candidate: _Candidate,
        search: SubgraphSearch,
        inference: Inference,
    ) -> DecomposedOperator | None:
        """Return the operator that a candidate computes, or None if it computes something else."""
        value_of = partial(inference.value_in_all_calls, search.scope)
        test = _CANDIDATE_TESTS[candidate.operator]
        possible_borders = []
        for names in product(candidate.outputs, *candidate.inputs):
            if test.fits(*map(value_of, names)):
                possible_borders.append(names)
        if candidate.operator == "GridSample":
            # Images with an axis for each length come before those with all pixels on one axis.
            possible_borders.sort(key=lambda names: is_flat(*map(value_of, names[1:])))
        for output, *inputs in possible_borders:
            subgraph = search.subgraph(output, inputs)
            if subgraph is None:
                continue
            values = [value_of(name) for name in (*inputs, *subgraph.shape_sources)]
            if any(value.shape is None or value.type not in spec.TYPES for value in values):
                continue
            result = self._run(test, _model_of(search, subgraph, values), values)
            if result is not None:
                return DecomposedOperator(candidate.operator, subgraph, result)
        return None

    def _run(
        self, test: _CandidateTest, model: onnx.ModelProto, values: Sequence[TypeAndShape]
    ) -> TrialResult | None:
        """Return the result of a trial. Equal models, such as the layers of a network, run once."""
        assert self._probe is not None  # there are candidates
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).digest()
        key = _TrialKey(digest, tuple(values), self._probe)
        # One look-up, because another thread may clear the results at any time.
        with suppress(KeyError):
            return _trial_results[key]
        result = test.run(model, values, self._probe)
        if len(_trial_results) >= MAX_RESULTS:
            _trial_results.clear()
        _trial_results[key] = result
        return result


def _values_of(candidates: Sequence[_Candidate]) -> list[str]:
    inputs: dict[str, None] = {}
    outputs: list[str] = []
    for candidate in candidates:
        inputs |= dict.fromkeys(chain.from_iterable(candidate.inputs))
        outputs += candidate.outputs
    return [*inputs, *outputs]


def _without_other_readers(
    operators: list[DecomposedOperator],
    search: SubgraphSearch,
) -> list[DecomposedOperator]:
    """Return the operators whose inner values are read by no node outside of all operators."""
    while True:
        nodes = {node for decomposed in operators for node in decomposed.subgraph.nodes}
        private = []
        for decomposed in operators:
            if not search.is_read_outside(decomposed.subgraph, nodes):
                private.append(decomposed)
        if len(private) == len(operators):
            return operators
        operators = private


def _sample_candidates(search: SubgraphSearch) -> Iterator[_Candidate]:
    """Yield candidates for GridSample.

    Their Gathers read one value, at indices that come from the same roundings.
    """
    groups: dict[tuple[frozenset[int], str], list[int]] = {}
    for index in search.scope.indices_of(GATHERS):
        inputs = search.scope.inputs[index]
        if not search.is_op(index, GATHERS) or len(inputs) != 2:
            continue
        if inputs[1] not in search.makers:
            continue
        roundings = search.roundings_of_indices(search.nodes[index])
        if roundings:
            image = search.trace_layout(inputs[0])[-1]
            groups.setdefault((roundings, image), []).append(index)
    for (roundings, _), gathers in groups.items():
        layouts = [search.trace_layout(search.nodes[index].input[0]) for index in gathers]
        images = [name for name in layouts[0] if all(name in layout for layout in layouts)]
        outputs = list(islice(search.post_dominators(gathers), MAX_CANDIDATES))
        if not images or not outputs:
            continue
        grids = list(islice(search.dominators(outputs[0], gathers, roundings), MAX_CANDIDATES))
        if grids:
            yield _Candidate("GridSample", outputs[::-1], (images, grids))


def _affine_grid_candidates(search: SubgraphSearch) -> Iterator[_Candidate]:
    """Yield candidates for AffineGrid: products with the constant base of a grid."""
    scope = search.scope
    may_be_base = cache(partial(_may_be_base, search))
    for index in scope.indices_of(("Mul", "MatMul")):
        if len(scope.inputs[index]) != 2:
            continue
        first, second = scope.inputs[index]
        pairs = [(first, second), (second, first)]
        # If one input is an initializer, only that one may be the base. This excludes most
        # products, because they have trained weights.
        constant_pairs = [(base, theta) for base, theta in pairs if _is_initializer(search, base)]
        for base, theta in constant_pairs or pairs:
            if scope.find_constant(theta) is not None:
                continue  # many products scale data by a constant, and theta is data
            if not may_be_base(base) or not search.is_op(index, ("Mul", "MatMul")):
                continue
            if search.dependency(theta) != "data":
                continue
            outputs = list(islice(search.post_dominators([index]), MAX_CANDIDATES))
            if outputs:
                yield _Candidate("AffineGrid", outputs[::-1], (search.trace_layout(theta),))


def _is_initializer(search: SubgraphSearch, name: str) -> bool:
    return name not in search.makers and search.scope.find_constant(name) is not None


def _may_be_base(search: SubgraphSearch, name: str) -> bool:
    """Whether ``name`` may be the base of a grid.

    A base depends only on constants and shapes, and is no single number. A constant base has at
    least two axes with several elements, and its last row or column consists of ones.
    """
    tensor = search.scope.find_constant(name)
    if name in search.makers:
        if tensor is not None and math.prod(tensor.dims) == 1:
            return False
        if search.dependency(name) == "data":
            return False
        name = search.trace_layout(name)[-1]
        if name in search.makers:
            return True
        tensor = search.scope.find_constant(name)
    if tensor is None or tensor.data_type not in _FLOATS:
        return False
    lengths = [length for length in tensor.dims if length != 1]
    if 0 in lengths:
        return False
    if len(lengths) < 2 or not {3, 4}.intersection(lengths[-2:]):
        return False
    value = np.array(search.scope.constant_value(name)).reshape(lengths)
    has_ones = {axis: bool((value.take(-1, axis) == 1).all()) for axis in (-1, -2)}
    return any(lengths[axis] in (3, 4) and has_ones[axis] for axis in has_ones)


def _fits_sample(Y: TypeAndShape, X: TypeAndShape, grid: TypeAndShape) -> bool:
    """Whether values of these types and shapes may be those of a GridSample."""
    if X.type not in TYPES or grid.type not in TYPES:
        return False
    if X.shape is None or grid.shape is None or len(X.shape) < 3:
        return False
    n_axes = len(grid.shape) - 2
    if len(X.shape) != n_axes + 2:
        has_flat_pixels = is_flat(X, grid) and isinstance(X.shape[2], int)
        if not has_flat_pixels:
            return False
    if not may_match(grid.shape, (X.shape[0], *[None] * n_axes, n_axes)):
        return False
    return may_match(Y.shape, (*X.shape[:2], *grid.shape[1:-1]))


def _fits_affine_grid(grid: TypeAndShape, theta: TypeAndShape) -> bool:
    """Whether values of these types and shapes may be those of an AffineGrid."""
    if theta.type not in TYPES or not theta.shape:
        return False
    for r in (2, 3):
        grid_shape = (theta.shape[0], *[None] * r, r)
        if may_match(theta.shape, (None, r, r + 1)) and may_match(grid.shape, grid_shape):
            return True
    return False


class _CandidateTest(NamedTuple):
    """The test of candidates for an operator.

    Attributes:
        fits: return whether values of these types and shapes may be the operator's output and
            inputs.
        run: return the result of a model that has these inputs.
    """

    fits: Callable[..., bool]
    run: Callable[[onnx.ModelProto, Sequence[TypeAndShape], Probe], TrialResult | None]


_CANDIDATE_TESTS: Mapping[str, _CandidateTest] = {
    "GridSample": _CandidateTest(_fits_sample, try_sample),
    "AffineGrid": _CandidateTest(_fits_affine_grid, try_affine_grid),
}


def _model_of(
    search: SubgraphSearch, subgraph: Subgraph, values: Sequence[TypeAndShape]
) -> onnx.ModelProto:
    """Return a model of the subgraph.

    The names of its values depend only on the structure, so that equal subgraphs are equal models.
    """
    new_names: dict[str, str] = {"": ""}

    def renamed(name: str) -> str:
        return new_names.setdefault(name, f"v{len(new_names)}")

    graph = onnx.GraphProto(name="part")
    for name, value in zip((*subgraph.inputs, *subgraph.shape_sources), values, strict=True):
        shape = [None] * len(value.shape or ())
        number = elem_type(str(value.type))
        graph.input.append(helper.make_tensor_value_info(renamed(name), number, shape))
    for name in subgraph.constants:
        constant = search.scope.load_constant(name)
        assert constant is not None  # a subgraph's constants have values
        graph.initializer.append(constant)
        graph.initializer[-1].name = renamed(name)
    for index in subgraph.nodes:
        node = search.nodes[index]
        graph.node.append(
            onnx.NodeProto(
                op_type=node.op_type,
                attribute=node.attribute,
                input=[renamed(name) for name in node.input],
                output=[renamed(name) for name in node.output],
            )
        )
    graph.output.append(onnx.ValueInfoProto(name=renamed(subgraph.output)))
    opset = helper.make_opsetid("", search.scope.opsets.get("", 1))
    return onnx.ModelProto(ir_version=8, graph=graph, opset_import=[opset])
