"""The target of a runtime: for each node, the first of several targets whose nodes it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ...detection.match import Match
from ...detection.runtime_verdicts import NodeProperties, is_refused, properties_of
from ...dialects.registry import PRIMITIVES, TWO_AXES
from ...dialects.table import AI_ONNX
from ...graph.runtimes import Runtime
from . import Target, TargetSelector, two_axes
from .float32_target import Float32Target


class RuntimeTarget(TargetSelector):
    """Write each node by the first target that can, and whose nodes the runtime does not refuse.

    Args:
        writers: the name of a target -> the target, in the order in which they are tried.
        composites: the name of the dialect whose composite nodes stay, or "".
    """

    replaces_decomposed = False

    def __init__(
        self, runtime: Runtime, writers: Mapping[str, Target], *, composites: str = ""
    ) -> None:
        self.runtime = runtime
        self._writers = writers
        #: Writes 4-D GridSamples of types that the runtime refuses in float32.
        self._in_float32 = Float32Target(AI_ONNX, first_words=True)
        self.name = composites
        self.has_allowzero = runtime.has_allowzero
        self.replaces_attention = any(writer.replaces_attention for writer in writers.values())

    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        writers = {match: self._writer_of(match) for match in matches}
        for match in matches:
            writer = writers[match]
            is_attention = match.detected_attention is not None
            if is_attention and writer is not None and writer.targets_of([match]):
                writers.update(dict.fromkeys(match.absorbed, writer))
        targets: dict[Match, Target] = {}
        for writer in (*self._writers.values(), self._in_float32):
            targets |= writer.targets_of([match for match in matches if writers[match] is writer])
        return {match: targets[match] for match in matches if match in targets}

    @property
    def names(self) -> dict[int, str]:
        """The id of a target that writes nodes -> its name."""
        names = {id(writer): name for name, writer in self._writers.items()}
        return names | {id(self._in_float32): TWO_AXES}

    def _writer_of(self, match: Match) -> Target | None:
        """Return the first target that is suitable for a node.

        An attention around GridSamples has none if a target that writes only these is suitable for
        all of them.
        """
        is_attention = match.detected_attention is not None
        nodes = match.samples if is_attention else (match,)
        for name, writer in self._writers.items():
            if all(self._is_suitable(name, node) for node in nodes):
                return writer if writer.replaces_attention or not is_attention else None
            if name == TWO_AXES and all(map(self._is_suitable_in_float32, nodes)):
                return None if is_attention else self._in_float32
        return None

    def _is_suitable_in_float32(self, match: Match) -> bool:
        """Whether the runtime runs a 4-D GridSample between Casts to float32 and back."""
        record = match.record
        if record.spatial_axes != (2,) or not self._in_float32.replaces(match):
            return False
        properties = properties_of(record, two_axes.FIRST_OPSET)
        in_float32 = replace(properties, types=("float32",), grid_types=("float32",))
        return not is_refused(self.runtime, in_float32)

    def _is_suitable(self, name: str, match: Match) -> bool:
        """Whether the target can write a node as one that the runtime is not known to refuse.

        A target that leaves the node as it is can write it.
        """
        record = match.record
        if name == PRIMITIVES:
            return True
        properties = properties_of(record, max(match.opset, two_axes.FIRST_OPSET))
        if name == TWO_AXES:
            if record.operator != "GridSample":
                return True  # the target writes basic operators
            if not _can_be_planar(properties):
                return False
            properties = _planar(properties)
        return not is_refused(self.runtime, properties)


def _can_be_planar(properties: NodeProperties) -> bool:
    """Whether a GridSample can be written with two spatial axes, as far as it is known."""
    cases = product(properties.types, properties.modes, properties.padding_modes, properties.axes)
    return not any(two_axes.refusal_of("", *case) for case in cases)


def _planar(properties: NodeProperties) -> NodeProperties:
    """Return the properties of the nodes that a GridSample becomes with two spatial axes."""
    planar = replace(
        properties,
        opset=two_axes.FIRST_OPSET,
        axes=(2,),
        types=_without_bfloat16(properties.types),
        grid_types=_without_bfloat16(properties.grid_types),
    )
    if properties.axes != (3,):
        return planar
    padding_mode, align_corners = two_axes.PADDING_OF_SLICES
    return replace(
        planar,
        padding_modes=(padding_mode,),
        align_corners=(align_corners,),
        types=("float32",),
        grid_types=("float32",),
    )


def _without_bfloat16(types: Iterable[str]) -> tuple[str, ...]:
    """Return the types of the GridSamples for inputs of these types."""
    return tuple("float32" if name == "bfloat16" else name for name in types)
