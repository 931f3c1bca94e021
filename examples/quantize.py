"""Quantize a model that onnxruntime itself does not run.

``python examples/quantize.py`` quantizes a convolution of a volume. A flow then moves the voxels by
a cubic GridSample, for which onnxruntime has no kernel. Calibration runs the model in this
package's session, and the nodes that compute with coordinates are excluded. The quantized model is
patched last, to basic operators that onnxruntime has.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ort_gridsample as ogs

model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    warp (float[1, 2, 8, 8, 8] volume, float[1, 8, 8, 8, 3] flow) => (float[1, 4, 8, 8, 8] warped)
    <float[4, 2, 3, 3, 3] weights, float[1, 8, 8, 8, 3] identity>
    {
        [convolve] features = Conv <pads = [1, 1, 1, 1, 1, 1]> (volume, weights)
        [move] grid = Add (identity, flow)
        [sample] warped = GridSample <mode = "cubic"> (features, grid)
    }
    """
)
generator = np.random.default_rng(0)
weights = generator.normal(size=(4, 2, 3, 3, 3)).astype(np.float32)
identity = ogs.affine_grid(np.eye(3, 4, dtype=np.float32)[None], size=(1, 4, 8, 8, 8))
for name, values in (("weights", weights), ("identity", identity)):
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))


def random_inputs() -> dict[str, np.ndarray]:
    """Return random inputs of the model."""
    return {
        "volume": generator.uniform(size=(1, 2, 8, 8, 8)).astype(np.float32),
        "flow": generator.uniform(-0.2, 0.2, (1, 8, 8, 8, 3)).astype(np.float32),
    }


class RandomInputs(CalibrationDataReader):
    """Eight random inputs for the calibration."""

    def __init__(self) -> None:
        self.inputs = [random_inputs() for _ in range(8)]

    def get_next(self) -> dict[str, np.ndarray]:
        return self.inputs.pop() if self.inputs else {}


with tempfile.TemporaryDirectory() as folder:
    source, prepared, quantized = (
        Path(folder) / f"{name}.onnx" for name in ("source", "prepared", "quantized")
    )
    onnx.save(model, source)
    with ogs.quantization_sessions():
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        excluded = ogs.coordinate_nodes(prepared)
        quantize_static(prepared, quantized, RandomInputs(), nodes_to_exclude=excluded)
    patched = ogs.patch_model(quantized, target="primitives")
print(f"nodes that compute with coordinates, and are not quantized: {len(excluded)}")
operators = Counter(node.op_type for node in patched.graph.node)
print(f"the model has {operators['QuantizeLinear']} QuantizeLinear and no GridSample")
assert "GridSample" not in operators

# The patched model needs no op of this package.
plain = onnxruntime.InferenceSession(
    patched.SerializeToString(), providers=["CPUExecutionProvider"]
)
feeds = random_inputs()
(expected,) = ogs.InferenceSession(model).run(None, feeds)
(warped,) = plain.run(None, feeds)
difference = np.abs(warped - expected).max() / np.abs(expected).max()
print(f"its output differs from that of the float model by at most {difference:.1%}")
assert difference < 0.05
