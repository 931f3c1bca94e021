"""Models of one node with test data, by which an execution provider is tested for that node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import helper

from .. import spec
from ..detection.records import NodeRecord, n_spatial_axes
from ..functions.grid_operators import GRID_OPERATORS
from ..functions.operators import function_of
from ..inference.one_node import one_node_feeds, one_node_model
from ..inference.trial import NodeData, Trial, sampling_data
from ..inference.types import TypeAndShape

#: Lengths of axes that are known only in a run: of a batch (of attention heads), of channels, of
#: the axes of X, and of the axes of the output.
_BATCH = 8
_CHANNELS = 4
_X_LENGTHS = (9, 7, 6)
_Y_LENGTHS = (5, 3, 4)
#: If X would have more values, it gets at most _CHANNELS channels.
_MAX_X_SIZE = 1 << 23

#: The release of the test data. Increase it when these change: results with other data are void.
_DATA_RELEASE = 2

#: A :data:`ort_gridsample.spec.Shape` whose lengths can be replaced.
MutableShape: TypeAlias = list[spec.Dim]


class CaseData(NamedTuple):
    """The test data of a node.

    Attributes:
        shapes: the shapes of the inputs in the model.
        make_arrays: returns the arrays.
    """

    shapes: Sequence[MutableShape]
    make_arrays: Callable[[], NodeData]


@dataclass(frozen=True)
class ProbeCase:
    """A model of one node, and its test data.

    Attributes:
        model: a model of the node as it is. It must be copied before it is rewritten.
        data_key: identifies the test data among those of all cases with the same model.
        types: the element types of the node's inputs, by name.
        has_known_lengths: whether the test data have the lengths of the model.
        make_arrays: returns the test data. The values of X and theta are in [0, 1), and the
            positions of a grid are far from any tie.
    """

    model: onnx.ModelProto
    data_key: str
    types: Mapping[str, str]
    has_known_lengths: bool
    make_arrays: Callable[[], NodeData]

    def trial(self, model: bytes) -> Trial:
        """Return the trial of a serialized form of :attr:`model`."""
        first, second, expected = self.make_arrays()
        feeds = one_node_feeds(self.types, [first, second])
        return Trial(model, feeds, expected, "[0, 1]")


def build_case(
    record: NodeRecord,
    case: Sequence[TypeAndShape],
    opsets: Mapping[str, int],
    only_sampling_nodes: bool,
) -> ProbeCase | None:
    """Build the model and the test data of the probe of a node.

    Args:
        record: the node's record.
        case: the types and shapes of the node's inputs, one of ``record.cases``.
        opsets: the versions of the domains that the node is written in.
        only_sampling_nodes: whether the model has no other nodes. If it has, the first input comes
            from a Relu, because some accelerators do not run a single node.

    Returns:
        The case. None if too little is known of the node's inputs, or if the node is not one of
        floats with 1, 2 or 3 spatial axes and at least one value.
    """
    names_and_values = zip(record.values, case, strict=True)
    types = {name: value.type for name, value in names_and_values if value.type}
    n_axes = n_spatial_axes(record.operator, case)
    if n_axes not in (1, 2, 3) or not _is_testable(case, types):
        return None
    if record.operator in GRID_OPERATORS:
        case_data = _grid_operator_data(record, case, n_axes)
    else:
        case_data = _grid_sample_data(record, case, n_axes)

    model = one_node_model(record.node_without_values(), opsets, types, case_data.shapes)
    if not only_sampling_nodes:
        _insert_relu(model)
    return ProbeCase(
        model=model,
        data_key=_data_key(record),
        types=types,
        has_known_lengths=_has_known_lengths(record, case),
        make_arrays=case_data.make_arrays,
    )


def _data_key(record: NodeRecord) -> str:
    """Return what the test data depend on other than the model: a constant size is not in it."""
    size = record.constants.get("size")
    return repr((_DATA_RELEASE, None if size is None else size.tolist()))


def _has_known_lengths(record: NodeRecord, case: Sequence[TypeAndShape]) -> bool:
    """Whether all lengths of the inputs and of the output are known."""
    has_unknown_size = "size" in record.values and "size" not in record.constants
    dims = [dim for value in case for dim in (value.shape or (None,))]
    return not has_unknown_size and all(isinstance(dim, int) for dim in dims)


def _is_testable(case: Sequence[TypeAndShape], types: Mapping[str, str]) -> bool:
    """Whether all types are known, the first one is a float, and no input is known to be empty."""
    if not types or len(types) < len(case):
        return False
    first_type = next(iter(types.values()))
    return first_type in spec.FLOATS and not any(0 in (value.shape or ()) for value in case)


def _insert_relu(model: onnx.ModelProto) -> None:
    """Insert a Relu behind the first input of the model, which has no negative values."""
    source = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["relu" if name == source else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Relu", [source], ["relu"]))


def _grid_operator_data(
    record: NodeRecord,
    case: Sequence[TypeAndShape],
    n_axes: int,
) -> CaseData:
    """Return the test data of an operator that computes a grid: its inputs, and the grid."""
    operator = GRID_OPERATORS[record.operator]
    function = function_of(record.operator)
    align_corners = bool(record.possible_attributes["align_corners"])
    shapes = operator.test_shapes((case[0].shape, case[1].shape), n_axes)

    def make_arrays() -> NodeData:
        size = [_BATCH, _CHANNELS, *_Y_LENGTHS[:n_axes]]
        first, second = operator.test_inputs(shapes, size, record.constants)
        return NodeData(first, second, function(first, second, align_corners))

    return CaseData(shapes, make_arrays)


def _grid_sample_data(
    record: NodeRecord,
    case: Sequence[TypeAndShape],
    n_axes: int,
) -> CaseData:
    """Return the test data of a GridSample: X, grid and Y."""
    attributes = record.possible_attributes
    unknown: MutableShape = [None] * (n_axes + 2)
    X_shape = list(case[0].shape or unknown)
    grid_shape = [*(case[1].shape or unknown)[:-1], n_axes]
    X_lengths, grid_lengths = _case_lengths(X_shape, grid_shape)
    if isinstance(X_shape[1], int):
        X_shape[1] = X_lengths[1]

    def make_arrays() -> NodeData:
        rng = np.random.default_rng(0)
        sides = np.array(X_lengths[:1:-1], np.float64)
        pixels = np.floor(rng.uniform(-1, sides + 1, grid_lengths))
        pixels += rng.uniform(0.1, 0.4, grid_lengths)
        return sampling_data(
            rng.random(X_lengths),
            pixels,
            str(attributes["mode"]),
            str(attributes["padding_mode"]),
            bool(attributes["align_corners"]),
        )

    return CaseData([X_shape, grid_shape], make_arrays)


def _case_lengths(
    X_shape: Sequence[spec.Dim],
    grid_shape: Sequence[spec.Dim],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of X and of the grid in a case; of few channels if X would be large."""
    n_axes = len(X_shape) - 2
    lengths_by_name = dict[str, int]()

    def with_lengths(shape: Sequence[spec.Dim], guesses: Sequence[int]) -> tuple[int, ...]:
        """Replace the lengths that are not known by guesses, equal names by equal lengths."""
        lengths = list[int]()
        for dim, guess in zip(shape, guesses, strict=True):
            if isinstance(dim, int):
                lengths.append(dim)
            elif dim:
                lengths.append(lengths_by_name.setdefault(dim, guess))
            else:
                lengths.append(guess)
        return tuple(lengths)

    batches = [dim for dim in (X_shape[0], grid_shape[0]) if isinstance(dim, int)]
    batch = batches[0] if batches else _BATCH
    X_guesses = [batch, _CHANNELS, *_X_LENGTHS[:n_axes]]
    X_lengths = with_lengths([batch, *X_shape[1:]], X_guesses)
    if prod(X_lengths) > _MAX_X_SIZE and isinstance(X_shape[1], int):
        X_lengths = (batch, min(_CHANNELS, X_shape[1]), *X_lengths[2:])
    grid_guesses = [batch, *_Y_LENGTHS[:n_axes], n_axes]
    return X_lengths, with_lengths([batch, *grid_shape[1:]], grid_guesses)
