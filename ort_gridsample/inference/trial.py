"""Trials of one node: a model, the feeds of a run, and the right output.

Whether a runtime or an execution provider runs a node is found by a trial of that node. A
:class:`Trial` is data. A :class:`Runner` runs its model in this process
(:mod:`ort_gridsample.session.installed_runtime`), or in one that an execution provider may crash
(:mod:`ort_gridsample.session.provider_process`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import one_line
from ..reference import sampler
from ..reference.arrays import Array
from ..reference.coordinates import Axis, normalize
from ..reference.plan import plan_for

#: The smallest difference that rounding does not explain, for values in [-1, 1] of float16.
MIN_WRONG_DIFFERENCE = 0.1


class Runner(Protocol):
    """Runs models."""

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, Array]],
        *,
        optimized: bool,
    ) -> list[list[Array]]:
        """Run a serialized model.

        Args:
            model: the bytes of a ModelProto, without external data.
            feeds: for each run, the arrays of all inputs by name.
            optimized: whether the graph is optimized as it is by default.

        Returns:
            All outputs of each run.

        Raises:
            Exception: the model is refused.
        """


@dataclass(frozen=True)
class Trial:
    """A model of one output, the feeds of a run, and the right output.

    Attributes:
        model: the serialized model.
        feeds: the arrays of all inputs by name.
        expected: the right output. None if any output counts as right.
        bounds: the interval of the values that the node samples, for the error message.
    """

    model: bytes
    feeds: Mapping[str, Array]
    expected: Array | None
    bounds: str

    def refusal(self, runner: Runner, output_name: str) -> str:
        """Return why ``runner`` does not run the model with the right output.

        Args:
            output_name: what the reason calls the output.

        Returns:
            The error of the runner, or how the output differs; an empty string if it is right.
        """
        try:
            [[output]] = runner.run(self.model, [self.feeds], optimized=True)
        except Exception as error:
            return one_line(error) or type(error).__name__
        if self.expected is None:
            return ""
        if output.shape != self.expected.shape:
            return f"{output_name} is of shape {output.shape}, expected {self.expected.shape}"
        differences = np.nan_to_num(np.abs(output - self.expected), nan=np.inf, posinf=np.inf)
        difference = float(differences.max(initial=0))
        if difference < MIN_WRONG_DIFFERENCE:
            return ""
        return f"{output_name} is off by {difference:.2g} where values are in {self.bounds}"


class NodeData(NamedTuple):
    """The two inputs of a node and the right output. All are float64, but a size is int64."""

    first: Array
    second: Array
    expected: Array


def sampling_data(
    X: Array,
    pixels: Array,
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> NodeData:
    """Return the data of a trial of a GridSample: X, grid and Y.

    Args:
        X: the image (N, C, D1, …, Dr).
        pixels: the pixel coordinates (N, …, r) of the positions, the innermost axis first.
        mode: the node's attribute, in the words of opset 20.
    """
    lengths = np.array(X.shape[:1:-1], np.float64)
    axis = Axis.of(lengths, align_corners, may_be_single=True, maximum=np.maximum)
    grid = normalize(pixels, axis.last, axis.span)
    n_batches, *output_lengths, n_axes = grid.shape
    Y = np.empty((*X.shape[:2], prod(output_lengths)))
    # The NumPy core, whichever core is chosen.
    plan = plan_for(X.dtype, mode, padding_mode, align_corners)
    sampler.grid_sample(X, grid.reshape(n_batches, -1, n_axes), Y, plan, 1)
    return NodeData(X, grid, Y.reshape(*X.shape[:2], *output_lengths))
