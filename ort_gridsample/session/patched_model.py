"""A model as onnxruntime gets it in a session, and the arguments that it depends on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TypeAlias

from onnxruntime import SessionOptions

from ..custom_ops.compiled_ops.catalog import OpSelection
from ..detection.records import NodeRecord
from ..graph.weights import NO_WEIGHTS, LoadedWeights, Weights
from ..rewriting.passes import Selection
from .accelerators import AcceleratedPolicy, ProvidersPolicy
from .options import has_providers
from .placement import ONNXRUNTIME, PYTHON_OP, Placement
from .plugins import Devices, Providers

#: A model as onnxruntime's session accepts it.
Source: TypeAlias = bytes | str | os.PathLike[str]


@dataclass(frozen=True)
class SessionArguments:
    """The arguments of a session that its model depends on.

    Attributes:
        nodes: which nodes must be replaced.
        options: the caller's options, or None.
        accelerators: the execution providers before the CPU's.
        accelerated: what to do with nodes for them.
        devices: the devices of execution providers that are plugins.
        providers_policy: which of the forms that they run is used.
    """

    nodes: Selection | None = None
    options: SessionOptions | None = None
    accelerators: Providers = ()
    accelerated: AcceleratedPolicy = "lower"
    devices: Devices = field(default_factory=dict)
    providers_policy: ProvidersPolicy = "first"

    @property
    def is_model_saved(self) -> bool:
        """Whether onnxruntime writes the optimized model to a file."""
        return self.options is not None and bool(self.options.optimized_model_filepath)

    @property
    def options_have_providers(self) -> bool:
        """Whether providers were added to the options themselves."""
        return self.options is not None and has_providers(self.options)

    @property
    def num_threads(self) -> int:
        """The number of threads of an op; 0: the process' default."""
        return 0 if self.options is None else int(self.options.intra_op_num_threads)


@dataclass(frozen=True)
class PatchedModel:
    """A model as onnxruntime gets it.

    Attributes:
        opened_model: the bytes of the patched model, or the caller's model if nothing had to be
            changed.
        reopened_model: the model from which the session is opened again, in another process or with
            other providers.
        placements: where the sampling nodes run.
        domains: the domains of the nodes that the model does not define itself. Empty if there are
            no sampling nodes, or if the model is not readable.
        is_readable: whether onnx can read the model.
        folder: the folder of the model's external data, if onnxruntime cannot know it.
        reopened_weights: the values that ``reopened_model`` lacks.
        opened_weights: the values of the initializers that ``opened_model`` lacks.
        reads_weights_in_place: whether onnxruntime uses ``opened_weights`` without a copy.
        compiled_ops: the compiled ops that ``opened_model`` may contain.
    """

    opened_model: Source
    reopened_model: Source
    placements: list[Placement]
    domains: frozenset[str] = frozenset()
    is_readable: bool = True
    folder: str | None = None
    reopened_weights: Weights = NO_WEIGHTS
    opened_weights: LoadedWeights | None = None
    reads_weights_in_place: bool = False
    compiled_ops: OpSelection = None

    @classmethod
    def unreadable(cls, source: Source) -> PatchedModel:
        """Return a model that onnx cannot read: onnxruntime gets it as it was given."""
        return cls(opened_model=source, reopened_model=source, placements=[], is_readable=False)

    @classmethod
    def without_sampling_nodes(cls, source: Source) -> PatchedModel:
        """Return a model without sampling nodes: onnxruntime gets it as it was given."""
        return cls(opened_model=source, reopened_model=source, placements=[])

    @property
    def has_accelerated_nodes(self) -> bool:
        """Whether sampling nodes run on accelerators."""
        return not all(
            placement.is_ours or placement.runs_on == ONNXRUNTIME for placement in self.placements
        )

    @property
    def python_ops(self) -> list[NodeRecord]:
        """The nodes that run on Python ops."""
        return [placement.record for placement in self.placements if placement.runs_on == PYTHON_OP]
