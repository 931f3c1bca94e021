"""A form in which models have an operator: a model with feeds, and the oracle's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from support.oracle_evaluator import expected_outputs

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Form:
    """A model and its feeds.

    Attributes:
        model: the model, which some ways deliver.
        feeds: its inputs.
        attentions: how many nodes of a session are deformable attention, None if it may compute
            them from GridSamples.
        tolerance: the largest absolute error of an output.
        fused: the numbers of nodes that are fused into each sampling node of a session.
    """

    model: onnx.ModelProto
    feeds: Arrays
    attentions: int | None = 1
    tolerance: float = 1e-5
    fused: tuple[int, ...] = ()

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """The oracle's outputs."""
        return expected_outputs(self.model, self.feeds)

    def assert_outputs(self, outputs: Sequence[np.ndarray]) -> None:
        """Check that outputs are the oracle's."""
        for Y, expected in zip(outputs, self.expected, strict=True):
            assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(
                Y.astype(np.float64), expected.astype(np.float64), rtol=0, atol=self.tolerance
            )
