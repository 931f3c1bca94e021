"""The questions about a runtime that detection and inference ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx

from ..reference.arrays import Array


class Probe(Protocol):
    """Tests and runs of small models, which detection and inference need of a runtime.

    :class:`ort_gridsample.inference.runtime_probe.RuntimeProbe` implements them.
    """

    def refusal(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        operator: str,
        types: Mapping[str, str],
        n_axes: int,
    ) -> str:
        """Return why the runtime does not run a model of one node.

        A GridSample of floats runs at three coordinates per axis. An output that is off by 0.1 or
        more there counts as a refusal: kernels of older releases are wrong with cubic and border.
        Other outputs are not compared.

        Args:
            node: the node, without inputs and outputs; not changed.
            opsets: the versions of the domains that the node is written in.
            operator: the operator that the node computes.
            types: the element types of the node's inputs, by name.
            n_axes: the number of spatial axes.

        Returns:
            The reason; an empty string if the runtime runs the model.
        """

    def types_of(self, model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto]:
        """Return the types of the outputs of ``model`` as the runtime infers them.

        Only tensors are returned, and nothing if the runtime refuses the model.
        """

    def outputs(
        self,
        model: onnx.ModelProto,
        feeds: Sequence[Sequence[Array]],
    ) -> list[list[Array]] | None:
        """Run ``model`` on each of ``feeds``, which are its inputs in order.

        Returns:
            All outputs for each of ``feeds``. None if the runtime refuses the model.
        """
