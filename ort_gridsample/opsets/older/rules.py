"""The table of rules that rewrite nodes in the previous version of their operator."""

from __future__ import annotations

from typing import Final

from . import axes, dtypes, normalization, other_rules, shapes
from .step import ConversionRule

_CAST_LIKE_VERSIONS = (15, 19, 21, 23, 24, 25)

#: Operator and version -> the rule that takes a node of this version to the opset before.
CONVERSION_RULES: Final[dict[tuple[str, int], ConversionRule]] = {
    ("BatchNormalization", 14): other_rules.check_unused_statistics,
    ("Cast", 19): dtypes.drop_float8_attributes,
    ("Cast", 24): dtypes.drop_float8e8m0_attribute,
    **{("CastLike", version): dtypes.replace_by_cast for version in _CAST_LIKE_VERSIONS},
    ("Constant", 12): other_rules.write_value_as_tensor,
    ("DequantizeLinear", 13): dtypes.drop_axis_of_scalar_scale,
    ("DequantizeLinear", 23): dtypes.drop_output_dtype,
    ("DFT", 20): other_rules.write_dft_axis,
    ("Dropout", 12): other_rules.replace_by_identity,
    ("GroupNormalization", 18): normalization.expand_group_normalization,
    ("GroupNormalization", 21): normalization.expand_group_normalization,
    ("Hardmax", 13): axes.move_axis_last,
    ("If", 13): other_rules.check_body_types,
    ("If", 16): other_rules.check_body_types,
    ("LayerNormalization", 17): normalization.expand_layer_normalization,
    ("LogSoftmax", 13): axes.move_axis_last,
    ("Loop", 13): other_rules.check_body_types,
    ("Loop", 16): other_rules.check_body_types,
    ("Mod", 28): dtypes.check_fmod,
    ("Pad", 18): axes.pad_all_axes,
    ("Pow", 12): dtypes.cast_exponent,
    ("QuantizeLinear", 13): dtypes.drop_axis_of_scalar_scale,
    ("QuantizeLinear", 19): dtypes.drop_float8_attributes,
    ("QuantizeLinear", 21): dtypes.drop_output_dtype,
    ("ReduceL1", 18): axes.write_reduced_axes,
    ("ReduceL2", 18): axes.write_reduced_axes,
    ("ReduceLogSum", 18): axes.write_reduced_axes,
    ("ReduceLogSumExp", 18): axes.write_reduced_axes,
    ("ReduceMax", 18): axes.write_reduced_axes,
    ("ReduceMean", 18): axes.write_reduced_axes,
    ("ReduceMin", 18): axes.write_reduced_axes,
    ("ReduceProd", 18): axes.write_reduced_axes,
    ("ReduceSum", 13): axes.write_reduced_axes,
    ("ReduceSumSquare", 18): axes.write_reduced_axes,
    ("Reshape", 14): shapes.drop_allowzero,
    ("Resize", 13): other_rules.write_omitted_inputs,
    ("Resize", 18): axes.resize_all_axes,
    ("RMSNormalization", 23): normalization.expand_rms_normalization,
    ("RoiAlign", 16): other_rules.drop_transformation_mode,
    ("Shape", 15): shapes.slice_whole_shape,
    ("Softmax", 13): axes.move_axis_last,
    ("Split", 13): shapes.write_split_lengths,
    ("Split", 18): shapes.write_equal_lengths,
    ("Squeeze", 13): axes.write_squeezed_axes,
    ("Unsqueeze", 13): axes.write_squeezed_axes,
}
