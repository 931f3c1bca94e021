"""The first opsets of the ONNX domain that have operators and attributes which a patch writes."""

from __future__ import annotations

#: GatherND exists.
FIRST_OPSET_WITH_GATHER_ND = 11
#: Clip has all numeric types.
FIRST_OPSET_WITH_CLIP_OF_ALL_TYPES = 12
#: Cast has bfloat16.
FIRST_OPSET_WITH_BFLOAT16_CAST = 13
#: ReduceSum and Unsqueeze read their axes as an input.
FIRST_OPSET_WITH_AXES_AS_INPUT = 13
#: Split reads the lengths of its outputs as an input.
FIRST_OPSET_WITH_SPLIT_AS_INPUT = 13
#: Reshape has the attribute ``allowzero``.
FIRST_OPSET_WITH_ALLOWZERO = 14
#: CastLike exists.
FIRST_OPSET_WITH_CAST_LIKE = 15
#: GridSample exists.
FIRST_OPSET_WITH_GRID_SAMPLE = 16
#: GridSample's modes are called ``linear`` and ``cubic``.
FIRST_OPSET_WITH_MODE_LINEAR = 20
