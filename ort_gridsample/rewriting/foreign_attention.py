"""Another package's deformable attention, as a call.

The signatures of the nodes are :data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`.
The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

from ..detection.attention.layouts import OutputLayout
from ..detection.match import Match
from ..errors import GridSampleError
from ..graph.expressions import DimLike, Expressions, Tensor
from ..graph.new_names import Names
from ..graph.runtimes import ANY, Runtime
from ..reference.arrays import Array
from ..spec import Shape, known_lengths
from .attention_call import AttentionCall, AttentionSource, Levels
from .foreign_attention_facts import has_softmax, known_n_levels, n_levels_of, op_record
from .match_facts import input_of, known_type


class ForeignAttention(AttentionSource):
    """Computes the operands of an attention node from its inputs.

    Args:
        names: returns names of new values and nodes.
        check: writes the checks of the inputs that the reader of the operands needs.
        runtime: the runtime that the nodes are for.

    Attributes:
        match: the attention node.
        signature: the signature of the node.
        values: input -> its value; after a check, the checked value.
    """

    def __init__(
        self,
        match: Match,
        names: Names,
        check: Callable[[ForeignAttention], None] | None = None,
        runtime: Runtime = ANY,
    ) -> None:
        assert match.foreign_signature is not None
        self.match = match
        self.signature = match.foreign_signature
        self.e = Expressions(match.record.output, match.opset, runtime, names)
        self.values = {
            argument: input_of(match, self.e, argument) for argument in self.signature.inputs
        }
        self._check = check

    @property
    def output_layout(self) -> OutputLayout:
        return cast(OutputLayout, self.signature.output_layout)

    def call(self) -> AttentionCall:
        if self._check is not None:
            self._check(self)
        if self.signature.has_offsets:
            locations = self._locations()
            weights = self._softmax_weights()
        else:
            locations = self.values["sampling_locations"]
            weights = self._as_value_type(self.values["attention_weights"])
        return AttentionCall(
            record=op_record(self.match),
            value=self.values["value"],
            levels=self.levels,
            locations=locations,
            weights=weights,
            has_level_axis=True,
        )

    @property
    def levels(self) -> Levels:
        """The levels."""
        constants = self.match.record.constants
        number = known_n_levels(self.match)
        points = None
        if number == 0:
            points = list[int]()
        elif number is not None and self.n_points is not None:
            points = [self.n_points] * number
        return Levels(
            lengths=self.values[self.signature.lengths_input],
            known_lengths=constants.get(self.signature.lengths_input),
            number=number,
            points=points,
            starts=self.values.get(self.signature.starts_input),
            known_starts=constants.get(self.signature.starts_input),
        )

    @cached_property
    def n_levels(self) -> int:
        """The number of levels.

        Raises:
            GridSampleError: the model does not state it.
        """
        return n_levels_of(self.match)

    @cached_property
    def n_points(self) -> int | None:
        """The number of points on each level if it is known."""
        shape = self.shape("attention_weights")
        last = shape[-1] if shape is not None else None
        if not isinstance(last, int):
            return None
        return last // max(self.n_levels, 1) if self.signature.has_offsets else last

    def shape(self, argument: str) -> Shape | None:
        """Return the shape of an input if it is the same in all calls."""
        return self.match.record.shape_in_all_calls(argument)

    def has_known_lengths(self, *arguments: str) -> bool:
        """Whether all lengths of inputs are known. They were checked when the model was read."""
        return all(known_lengths(self.shape(argument)) is not None for argument in arguments)

    def lengths(self, argument: str, *axes: int) -> Tensor:
        """Return the lengths of some axes of an input."""
        return self.e.lengths(self.values[argument], *axes)

    def read_through_shape(self, argument: str, checked_shape: Tensor) -> None:
        """Read an input through a Reshape to its own shape, which was checked."""
        self.values[argument] = self.e.op("Reshape", self.values[argument], checked_shape)

    def _as_value_type(self, x: Tensor) -> Tensor:
        """Return weights in the type of ``value``, if both types are known."""
        types = self.match.record.types
        weights_types = types["attention_weights"]
        if not weights_types or not types["value"] or weights_types == types["value"]:
            return x
        return x.astype(known_type(self.match, "value"))

    def _at_least_single(self, argument: str) -> Tensor:
        """Return an input in at least single precision."""
        type_name = known_type(self.match, argument)
        x = self.values[argument]
        return x if type_name in ("float32", "float64") else x.astype("float32")

    def _locations(self) -> Tensor:
        """Return the locations (B, Q, H, L, P, 2) from reference points and offsets in pixels.

        Point p is relative to reference point p modulo G.

        Raises:
            GridSampleError: the offsets and the reference points have different types.
        """
        e = self.e
        references = self._at_least_single("reference_points")
        offsets = self._at_least_single("sampling_offsets")
        if references.type != offsets.type:
            found = f"of type {offsets.type}"
            expected = f"type {references.type}, as reference_points"
            raise GridSampleError(self.match.record.where, "sampling_offsets", found, expected)
        groups = self._groups()
        group_size = self._points_per_level() / groups
        offsets = self._with_axis_before_points(offsets)
        offsets = self._with_axes_of_offsets(offsets, group_size, groups)
        first_axes = self.lengths("reference_points", 0, 1)
        shape = e.shape([first_axes, 1, 1, 1, groups, 2])
        locations = e.op("Reshape", references, shape) + offsets / self._sizes(references.type)
        return self._with_axes_of_offsets(locations, self._points_per_level())

    def _with_axes_of_offsets(self, x: Tensor, *point_axes: DimLike) -> Tensor:
        """Reshape ``x`` to (B, Q, H, L, …, 2), with ``point_axes`` before the last axis."""
        first_axes = self._first_axes("sampling_offsets")
        return self.e.op("Reshape", x, self.e.shape([*first_axes, *point_axes, 2]))

    def _with_axis_before_points(self, x: Tensor) -> Tensor:
        """Return (B, Q, H, 1, …) from (B, Q, H, …) if there may be no points.

        A 0 in the shape of a Reshape copies the length of the same axis. If P is 0, the last axis
        of ``x`` has no elements, and this axis becomes the one of the points. A length 0 needs
        ``allowzero`` otherwise, which old opsets and some runtimes lack.
        """
        return x if self.n_points else self.e.unsqueeze(x, 3)

    def _points_per_level(self) -> Tensor:
        """Return the number P of points on each level, (1,), of a node with offsets."""
        if self.n_points is not None:
            return self.e.row(self.n_points)
        return self.lengths("attention_weights", 3) / self.n_levels

    def _first_axes(self, argument: str) -> list[DimLike]:
        """Return the lengths B, Q, H and L of a Reshape's shape.

        If P is known, zeros copy B, Q and H. Otherwise P is computed, and so B, Q and H are, too:
        onnxruntime replaces a single computed length of a Concat by -1, which fails without
        elements.
        """
        if self.n_points is not None:
            return [0, 0, 0, self.n_levels]
        return [self.lengths(argument, 0, 1, 2), self.n_levels]

    def _groups(self) -> Tensor:
        """Return the number G of groups, (1,)."""
        shape = self.shape("reference_points")
        if shape is not None and isinstance(shape[3], int):
            return self.e.row(shape[3] // 2)
        return self.lengths("reference_points", 3) / 2

    def _sizes(self, type_name: str) -> Tensor:
        """Return the width and the height of each level, (1, 1, 1, L, 1, 1, 2)."""
        e = self.e
        shape = (1, 1, 1, self.n_levels, 1, 1, 2)
        known: Array | None = self.levels.known_lengths
        if known is not None:
            return e.constant(known[:, ::-1].reshape(shape), type_name)
        widths_first = e.gather(self.levels.lengths, [1, 0], axis=1)
        return e.op("Reshape", widths_first.astype(type_name), e.row(*shape))

    def _softmax_weights(self) -> Tensor:
        """Return the weights (B, Q, H, L, P).

        The plugins apply a softmax. Their first releases did not, and a Softmax precedes the node.
        """
        e = self.e
        if has_softmax(self.match.scope, self.match.record.values["attention_weights"]):
            weights = self._as_value_type(self.values["attention_weights"])
        else:
            weights = e.op("Softmax", self._at_least_single("attention_weights"), axis=3)
            weights = weights.astype(known_type(self.match, "value"))
        weights = self._with_axis_before_points(weights)
        first_axes = self._first_axes("attention_weights")
        return e.op("Reshape", weights, e.shape([*first_axes, self._points_per_level()]))
