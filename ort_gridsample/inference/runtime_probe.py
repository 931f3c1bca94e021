"""Find out what a runtime runs by itself and correctly, by running it.

A :class:`RuntimeProbe` makes the models and the inputs, and compares the outputs. A
:class:`Runtime` runs the models: the installed onnxruntime
(:mod:`ort_gridsample.session.installed_runtime`), or another build of it, such as onnxruntime-web.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper

from .. import spec
from ..errors import one_line
from ..reference import sampler
from ..reference.arrays import Array
from ..reference.plan import plan_for
from .one_node import one_node_feeds, one_node_model

logger = logging.getLogger("ort_gridsample")

#: Why it is unknown whether onnxruntime runs a node, where onnxruntime is not installed.
NOT_INSTALLED = "unknown, because onnxruntime is not installed"
#: The smallest difference that rounding does not explain, for values in [-1, 1] of float16.
MIN_WRONG_DIFFERENCE = 0.1
#: The element types of tensors by the names that runtimes use, in upper case. onnxruntime has
#: ONNX's names; onnxruntime-web has NumPy's.
_ELEM_TYPES = {
    **dict(TensorProto.DataType.items()),
    "FLOAT32": TensorProto.FLOAT,
    "FLOAT64": TensorProto.DOUBLE,
}
#: How an error of onnxruntime or onnxruntime-web starts before the sentence of the kernel.
_ERROR_CODE = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |.*?ERROR_CODE: \d+, ERROR_MESSAGE: )"
)


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


class Runtime(Protocol):
    """What a probe needs of a runtime. Both functions raise any exception for a refused model."""

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, Array]],
        *,
        optimized: bool,
    ) -> list[list[Array]]:
        """Run a serialized model on the CPU.

        Args:
            model: the bytes of a ModelProto, without external data.
            feeds: for each run, the arrays of all inputs by name.
            optimized: whether the runtime optimizes the graph as it does by default.

        Returns:
            All outputs of each run.
        """

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
        """See :meth:`Runtime.run`.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(NOT_INSTALLED)

    def output_types(self, model: bytes) -> list[OutputType]:
        """See :meth:`Runtime.output_types`.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(NOT_INSTALLED)


class RuntimeProbe:
    """A :class:`ort_gridsample.inference.probe.Probe` that runs the models on a runtime.

    Args:
        runtime: runs the models. Whether it runs a node is tested once.

    Attributes:
        was_asked_about_model: whether it was called for more than whether the runtime runs a node.
            If the runtime is missing, properties of the model are then unknown.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.was_asked_about_model = False
        self._refusals: dict[object, str] = {}

    @property
    def has_runtime(self) -> bool:
        """Whether a runtime is installed."""
        return not isinstance(self.runtime, MissingRuntime)

    def refusal(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        operator: str,
        types: Mapping[str, str],
        n_axes: int,
    ) -> str:
        """See :meth:`.Probe.refusal`."""
        domains = dict.fromkeys(("", node.domain))
        imports = tuple((domain, opsets.get(domain, 1)) for domain in domains)
        key = node.SerializeToString(), imports, operator, tuple(types.items()), n_axes
        if key not in self._refusals:
            self._refusals[key] = self._tested_refusal(node, imports, operator, types, n_axes)
        return self._refusals[key]

    def _tested_refusal(
        self,
        node: onnx.NodeProto,
        imports: Sequence[tuple[str, int]],
        operator: str,
        types: Mapping[str, str],
        n_axes: int,
    ) -> str:
        """Run the node, and return the reason of :meth:`refusal`."""
        case = _grid_sample_case(node, n_axes) if operator == "GridSample" else None
        if case is not None:
            arrays = [case.X, case.grid]
        else:
            arrays = [np.zeros((1, n_axes, n_axes + 1)), np.array([1, 1, *[2] * n_axes])]
        try:
            output = self._run_node(node, imports, types, arrays)
        except Exception as error:
            return _ERROR_CODE.sub("", one_line(error))
        first_type = next(iter(types.values()))
        if case is None or first_type not in spec.FLOATS:
            return ""
        difference = float(np.max(np.abs(output - case.Y)))
        if difference < MIN_WRONG_DIFFERENCE:
            return ""
        return f"its own kernel is off by {difference:.2g} where values are in [-1, 1]"

    def _run_node(
        self,
        node: onnx.NodeProto,
        imports: Sequence[tuple[str, int]],
        types: Mapping[str, str],
        arrays: Sequence[Array],
    ) -> Array:
        """Return the output of a model of one node.

        Args:
            node: the node.
            imports: the versions of domains.
            types: the element types of the node's inputs, by name.
            arrays: the values of the inputs.

        Raises:
            Exception: the runtime refuses the model.
        """
        copy = onnx.NodeProto()  # one_node_model() changes its node
        copy.CopyFrom(node)
        shapes = [[None] * array.ndim for array in arrays]
        model = one_node_model(copy, imports, types.items(), shapes)
        feeds = one_node_feeds(types, arrays)
        [[output]] = self.runtime.run(model.SerializeToString(), [feeds], optimized=True)
        return output

    def types_of(self, model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
        """See :meth:`.Probe.types_of`."""
        self.was_asked_about_model = True
        try:
            outputs = self.runtime.output_types(model.SerializeToString())
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

    def first_outputs(
        self,
        model: onnx.ModelProto,
        feeds: Sequence[Sequence[Array]],
    ) -> list[Array] | None:
        """See :meth:`.Probe.first_outputs`."""
        runs = self.outputs(model, feeds)
        return None if runs is None else [run_outputs[0] for run_outputs in runs]

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
            return self.runtime.run(model.SerializeToString(), named_feeds, optimized=False)
        except Exception as error:
            logger.debug("onnxruntime does not run a probe: %s", error)
            return None


class SamplingCase(NamedTuple):
    """The inputs of a GridSample and its output, in float64."""

    X: Array
    grid: Array
    Y: Array


def _grid_sample_case(node: onnx.NodeProto, n_axes: int) -> SamplingCase:
    """Return a case for the attributes of a GridSample node."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    # Dialects that onnxruntime does not know have integers as modes.
    has_mode_names = isinstance(attributes.get("mode"), bytes)
    return sampling_case(n_axes, **attributes) if has_mode_names else sampling_case(n_axes)


def sampling_case(
    n_axes: int,
    mode: bytes = b"linear",
    padding_mode: bytes = b"zeros",
    align_corners: int = 0,
    **_: object,
) -> SamplingCase:
    """Return a case of a GridSample with these attributes.

    X has 5 pixels on each axis. The positions of the grid are inside and around X, far from ties.
    """
    pixels = np.array([-0.7, 1.3, 4.4])
    normalized = pixels / 2 - 1 if align_corners else (2 * pixels + 1) / 5 - 1
    X = np.sin(np.arange(5**n_axes, dtype=np.float64)).reshape(1, 1, *[5] * n_axes)
    coordinates = np.meshgrid(*[normalized] * n_axes, indexing="ij")
    grid = np.stack(coordinates[::-1], -1)[None]
    Y = sampled(X, grid, mode.decode(), padding_mode.decode(), bool(align_corners))
    return SamplingCase(X, grid, Y)


def sampled(X: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """Sample on the NumPy core, whichever core is chosen.

    The arguments are those of :func:`ort_gridsample.grid_sample`, and so is the result.
    """
    n_batches, *output_lengths, n_axes = grid.shape
    Y = np.empty((*X.shape[:2], prod(output_lengths)))
    plan = plan_for(X.dtype, mode, padding_mode, align_corners)
    sampler.grid_sample(X, grid.reshape(n_batches, -1, n_axes), Y, plan, 1)
    return Y.reshape(*X.shape[:2], *output_lengths)
