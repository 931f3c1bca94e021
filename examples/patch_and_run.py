"""Patch a model once, save it, and run it in onnxruntime's own session.

Run it: ``python examples/patch_and_run.py``. The model samples bytes (uint8), which onnxruntime by itself refuses.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime

import ort_gridsample as ogs

model = onnx.parser.parse_model(
    """
    <ir_version: 10, opset_import: ["": 20]>
    lookup (uint8[1, C, H, W] image, float[1, h, w, 2] grid) => (uint8[1, C, h, w] looked_up) {
        looked_up = GridSample <mode = "linear", padding_mode = "border"> (image, grid)
    }
    """
)
for record in ogs.inspect_model(model):
    print(f"{record.op_type} runs natively: {record.native} ({record.reason})")

with TemporaryDirectory() as folder:
    path = Path(folder) / "patched.onnx"
    onnx.save(ogs.patch_model(model), path)
    session = onnxruntime.InferenceSession(path, ogs.register())

image = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4) * 16
grid = ogs.affine_grid(np.array([[[0, 1, 0], [1, 0, 0]]], np.float32), (1, 1, 4, 4))  # swaps the axes
print(session.run(None, {"image": image, "grid": grid})[0][0, 0])
