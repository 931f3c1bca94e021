"""Calls of a user, for type checkers. Lines that end in "refused" are mistakes."""

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs

mine: ogs.Dialect = ogs.Dialect(
    "mine",
    "GridSample",
    "Warp",
    ("my.domain",),
    attributes={
        "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
        "padding_mode": ogs.Spelling(
            "outside", {"zeros": "constant", "border": "edge"}, default="zeros"
        ),
        "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
    },
)
name: str = input()
X: npt.NDArray[np.float32] = np.zeros((1, 3, 4, 5), np.float32)


def cubic(record: ogs.NodeRecord) -> bool:
    return record.mode == "cubic" and not record.native


ogs.add_dialect(mine)
patched: onnx.ModelProto = ogs.patch_model(
    "model.onnx", nodes="unsupported", target="primitives", functions=True
)
ogs.patch_model("model.onnx", target="primitives", for_runtime="mnn")
ogs.patch_model(b"", nodes=cubic, target="com.microsoft")
ogs.patch_model(model=onnx.ModelProto(), target=mine)
print(ogs.inspect_model(model="model.onnx")[0].native)
for record in ogs.inspect_model(Path("model.onnx")):
    print(record.operator.upper(), record.types["X"], record.where)
ogs.patch_model("model.onnx", nodes="bogus")  # refused
ogs.patch_model("model.onnx", nodes=len)  # refused
ogs.patch_model("model.onnx", target="bogus")  # refused
ogs.patch_model("model.onnx", target=name)  # refused
ogs.patch_model("model.onnx", target="primitives", for_runtime="bogus")  # refused
ogs.inspect_model(7)  # refused

grid = ogs.affine_grid(np.zeros((1, 2, 3), np.float32), size=(1, 3, 480, 640))
Y: npt.NDArray[np.float32] = ogs.grid_sample(
    X, grid, mode="cubic", padding_mode="reflection", align_corners=True
)
print(ogs.grid_sample([[[1, 2, 4]]], [[[0.0], [1.0]]], "nearest").sum())
ogs.grid_sample(X, grid, "spline")  # refused
ogs.grid_sample(X)  # refused
ogs.grid_sample(X, grid, padding_mode="bogus")  # refused
ogs.grid_sample(X, grid, num_threads=1.5)  # refused
ogs.affine_grid([[[1, 0, 0], [0, 1, 0]]], "1122")  # refused
Y = ogs.grid_sample(X, grid, "bicubic", "reflection", True, num_threads=np.int64(2))
listed: npt.NDArray[np.uint8] = ogs.grid_sample([[[1, 2]]], [[[0.0]]])
halves: npt.NDArray[np.float16] = ogs.affine_grid(np.zeros((1, 2, 3), np.float16), X.shape)
sampled = ogs.grid_sample(halves, grid)
Y = sampled  # refused
wide = ogs.affine_grid(np.zeros((1, 2, 3)), np.array([1, 1, 2, 2], np.int32))
halves = wide  # refused

session = ogs.InferenceSession("model.onnx", providers=["CPUExecutionProvider"], nodes=cubic)
print(
    session.run(None, {"X": X})[0].shape,
    [placement.runs_on.upper() for placement in session.placements],
)
session.run(None, [X])  # refused
plain = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
ogs.set_ops("compiled")
ogs.set_ops("bogus")  # refused
ogs.set_core(None)
ogs.set_core("bogus")  # refused
core: Literal["numpy", "jit"] = ogs.get_core()
ogs.set_num_threads(2)
ogs.set_num_threads(1.5)  # refused

evaluator = ReferenceEvaluator(patched, new_ops=ogs.reference_ops())
print(len(ogs.openvino_extensions()), len(ogs.torch_translation_table()))
with ogs.torch_symbolics():
    pass
try:
    ogs.grid_sample(X, grid)
except ogs.GridSampleError as error:
    print(error.argument.upper(), error.found, error.expected)
