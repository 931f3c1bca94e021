"""What a model's reader asks of the installed onnxruntime; :mod:`ort_gridsample.runtime.native` answers.

Nothing in this package's models runs one, so that the questions are handed down from where they can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from ..core.arrays import Array


class OnnxruntimeProbe(Protocol):
    """What can be asked of onnxruntime."""

    def refusal(
        self, node: onnx.NodeProto, opsets: Mapping[str, int], operator: str, types: Mapping[str, str], axes: int
    ) -> str:
        """Why onnxruntime does not run a model of this one node, in its own words; empty where it does."""

    def types_of(self, model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
        """The types of the outputs of ``model``, those that onnxruntime finds; none where it refuses the model."""

    def answers(self, model: onnx.ModelProto, feeds: Sequence[Sequence[Array]]) -> list[Array] | None:
        """What ``model``, of one output, answers to each of ``feeds``, its inputs; None where onnxruntime refuses."""
