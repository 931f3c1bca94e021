"""Find out what a runtime runs by itself and correctly, by running it.

A :class:`RuntimeProbe` makes trials of nodes (:mod:`.trial`), and runs models of several nodes. A
:class:`CpuRunner` runs the models, on the installed onnxruntime
(:mod:`ort_gridsample.session.installed_runtime`) or another build of it, such as onnxruntime-web.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from .. import spec
from ..graph.run_errors import without_error_code
from ..reference.arrays import Array
from .one_node import one_node_feeds, one_node_model
from .trial import NodeData, Runner, Trial, sampling_data

logger = logging.getLogger("ort_gridsample")

#: Why it is unknown whether onnxruntime runs a node, where onnxruntime is not installed.
NOT_INSTALLED = "unknown, because onnxruntime is not installed"
#: The element types of tensors by the names that runtimes use, in upper case. onnxruntime has
#: ONNX's names; onnxruntime-web has NumPy's.
_ELEM_TYPES = {
    **dict(TensorProto.DataType.items()),
    "FLOAT32": TensorProto.FLOAT,
    "FLOAT64": TensorProto.DOUBLE,
}


@dataclass(frozen=True)
class OutputType:
    """The type of a model's output, as a runtime states it.

    Attributes:
        name: the name of the output.
        element_type: the element type by ONNX's or NumPy's name; any other text if the output is
            not a tensor.
        lengths: the lengths of its axes. Lengths that are not numbers are unknown. Empty both for a
            scalar and for an unknown rank.
    """

    name: str
    element_type: str
    lengths: Sequence[spec.Dim]


class CpuRunner(Runner, Protocol):
    """A runner on the CPU that also infers types. It raises any exception for a refused model."""

    def output_types(self, model: bytes) -> list[OutputType]:
        """Load a serialized model, and return the types that the runtime infers for its outputs.

        The model need not be initialized for runs: operators need schemas, and no kernels.
        """


class MissingRuntime:
    """A runtime that refuses every model, where onnxruntime is not installed."""

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, Array]],
        *,
        optimized: bool,
    ) -> list[list[Array]]:
        """See :meth:`.Runner.run`.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(NOT_INSTALLED)

    def output_types(self, model: bytes) -> list[OutputType]:
        """See :meth:`CpuRunner.output_types`.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(NOT_INSTALLED)


class RuntimeProbe:
    """A :class:`ort_gridsample.inference.probe.Probe` that runs the models on a runtime.

    Args:
        runner: runs the models. Whether it runs a node is tested once.

    Attributes:
        was_asked_about_model: whether it was called for more than whether the runtime runs a node.
            If the runtime is missing, properties of the model are then unknown.
    """

    def __init__(self, runner: CpuRunner) -> None:
        self.runner = runner
        self.was_asked_about_model = False
        self._refusals: dict[object, str] = {}

    @property
    def has_runtime(self) -> bool:
        """Whether a runtime is installed."""
        return not isinstance(self.runner, MissingRuntime)

    def refusal(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        operator: str,
        types: Mapping[str, str],
        n_axes: int,
    ) -> str:
        """See :meth:`.Probe.refusal`."""
        versions = opsets.get("", 1), opsets.get(node.domain, 1)
        key = node.SerializeToString(), versions, operator, tuple(types.items()), n_axes
        if key not in self._refusals:
            refusal = _trial(node, opsets, operator, types, n_axes).refusal(
                self.runner, "its own kernel"
            )
            self._refusals[key] = without_error_code(refusal)
        return self._refusals[key]

    def types_of(self, model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
        """See :meth:`.Probe.types_of`."""
        self.was_asked_about_model = True
        try:
            outputs = self.runner.output_types(model.SerializeToString())
        except Exception as error:
            logger.debug("onnxruntime infers no types: %s", error)
            return {}
        types = dict[str, onnx.TypeProto]()
        for output in outputs:
            element_type = _ELEM_TYPES.get(output.element_type.upper())
            if element_type is not None:
                # onnxruntime invents names for unknown lengths.
                lengths = [n if isinstance(n, int) else None for n in output.lengths]
                types[output.name] = helper.make_tensor_type_proto(element_type, lengths or None)
        return types

    def outputs(
        self,
        model: onnx.ModelProto,
        feeds: Sequence[Sequence[Array]],
    ) -> list[list[Array]] | None:
        """See :meth:`.Probe.outputs`."""
        self.was_asked_about_model = True
        names = [value.name for value in model.graph.input]
        try:
            named_feeds = [dict(zip(names, arrays, strict=True)) for arrays in feeds]
            return self.runner.run(model.SerializeToString(), named_feeds, optimized=False)
        except Exception as error:
            logger.debug("onnxruntime does not run a probe: %s", error)
            return None


def _trial(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    operator: str,
    types: Mapping[str, str],
    n_axes: int,
) -> Trial:
    """Return the trial of :meth:`.Probe.refusal`.

    Only the output of a GridSample of floats is compared.
    """
    expected: Array | None = None
    if operator == "GridSample":
        *arrays, expected = _sampling_data(node, n_axes)
    else:
        arrays = [np.zeros((1, n_axes, n_axes + 1)), np.array([1, 1, *[2] * n_axes])]
    if next(iter(types.values())) not in spec.FLOATS:
        expected = None
    model = one_node_model(node, opsets, types, [[None] * array.ndim for array in arrays])
    feeds = one_node_feeds(types, arrays)
    return Trial(model.SerializeToString(), feeds, expected, "[-1, 1]")


def _sampling_data(node: onnx.NodeProto, n_axes: int) -> NodeData:
    """Return the data of a trial of a GridSample node.

    X has 5 pixels on each axis. The positions of the grid are inside and around X, far from ties.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    # Dialects that onnxruntime does not know have integers as modes.
    if not isinstance(attributes.get("mode"), bytes):
        attributes = {}
    X = np.sin(np.arange(5**n_axes, dtype=np.float64)).reshape(1, 1, *[5] * n_axes)
    coordinates = np.meshgrid(*[[-0.7, 1.3, 4.4]] * n_axes, indexing="ij")
    return sampling_data(
        X,
        np.stack(coordinates[::-1], -1)[None],
        attributes.get("mode", b"linear").decode(),
        attributes.get("padding_mode", b"zeros").decode(),
        bool(attributes.get("align_corners", 0)),
    )
