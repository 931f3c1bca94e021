"""The table of rules that rewrite nodes in the previous version of their operator."""

from __future__ import annotations

from typing import Final

from . import axes, dtypes, normalization, shapes, signatures
from .step import ConversionRule

_CAST_LIKE_VERSIONS = (15, 19, 21, 23, 24, 25)

#: Operator and version -> the rule that takes a node of this version to the opset before.
CONVERSION_RULES: Final[dict[tuple[str, int], ConversionRule]] = {
    ("BatchNormalization", 14): signatures.batch_normalization,
    ("Cast", 19): dtypes.saturate,
    ("Cast", 24): dtypes.round_mode,
    **{("CastLike", version): dtypes.cast_like for version in _CAST_LIKE_VERSIONS},
    ("Constant", 12): signatures.constant,
    ("DequantizeLinear", 13): dtypes.scalar_scale,
    ("DequantizeLinear", 23): dtypes.output_dtype,
    ("DFT", 20): signatures.dft,
    ("Dropout", 12): signatures.dropout,
    ("GroupNormalization", 18): normalization.group_normalization,
    ("GroupNormalization", 21): normalization.group_normalization,
    ("Hardmax", 13): axes.softmax,
    ("If", 13): signatures.body_types,
    ("If", 16): signatures.body_types,
    ("LayerNormalization", 17): normalization.layer_normalization,
    ("LogSoftmax", 13): axes.softmax,
    ("Loop", 13): signatures.body_types,
    ("Loop", 16): signatures.body_types,
    ("Mod", 28): dtypes.modulo,
    ("Pad", 18): axes.pad_axes,
    ("Pow", 12): dtypes.power,
    ("QuantizeLinear", 13): dtypes.scalar_scale,
    ("QuantizeLinear", 19): dtypes.saturate,
    ("QuantizeLinear", 21): dtypes.output_dtype,
    ("ReduceL1", 18): axes.reduce,
    ("ReduceL2", 18): axes.reduce,
    ("ReduceLogSum", 18): axes.reduce,
    ("ReduceLogSumExp", 18): axes.reduce,
    ("ReduceMax", 18): axes.reduce,
    ("ReduceMean", 18): axes.reduce,
    ("ReduceMin", 18): axes.reduce,
    ("ReduceProd", 18): axes.reduce,
    ("ReduceSum", 13): axes.reduce,
    ("ReduceSumSquare", 18): axes.reduce,
    ("Reshape", 14): shapes.reshape,
    ("Resize", 13): signatures.resize_inputs,
    ("Resize", 18): axes.resize_axes,
    ("RMSNormalization", 23): normalization.rms_normalization,
    ("RoiAlign", 16): signatures.roi_align,
    ("Shape", 15): shapes.shape,
    ("Softmax", 13): axes.softmax,
    ("Split", 13): shapes.split_attribute,
    ("Split", 18): shapes.split_count,
    ("Squeeze", 13): axes.squeeze,
    ("Unsqueeze", 13): axes.squeeze,
}
