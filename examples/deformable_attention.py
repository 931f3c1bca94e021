"""Where a detector looks: ``python examples/deformable_attention.py`` draws deformable_attention.png.

An exported Deformable DETR (of toy size, with random weights) runs in onnxruntime alone and with its GridSample nodes
replaced; both answer alike. Each query samples a few places of three feature maps in every layer: those places are the
grids of the GridSample nodes, made outputs of the model here.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from matplotlib import cbook
from matplotlib.figure import Figure
from PIL import Image

import ort_gridsample as ogs

model = onnx.load(Path(__file__).parents[1] / "tests/exported/deformable_detr.onnx")
model.ir_version = 9  # of opset 20, which older onnxruntimes read
sampling = [
    node for node in model.graph.node if node.op_type == "GridSample"
]  # by layer, then by feature map
for node in sampling:
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(node.input[1], onnx.TensorProto.FLOAT, None)
    )

with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as opened:
    photo = opened.convert("RGB").crop((0, 60, 512, 572))
pixels = np.asarray(photo.resize((64, 64)), np.float32).transpose(2, 0, 1)[None] / 255

native = onnxruntime.InferenceSession(model.SerializeToString())
patched = ogs.InferenceSession(model, nodes="all")
names = [output.name for output in native.get_outputs()]
answers = [
    dict(zip(names, s.run(names, {"pixel_values": pixels}), strict=True)) for s in (native, patched)
]
for name in ("logits", "pred_boxes"):
    off = np.abs(answers[0][name] - answers[1][name]).max()
    print(f"{name}: at most {off:.0e} between onnxruntime's own kernel and ort_gridsample")
print(f"{len(patched.replaced)} of {len(sampling)} GridSample nodes were replaced")

# A grid is (heads, queries, points, 2): normalized coordinates, the same for every size of feature map. In the encoder
# each pixel of each map is a query; in the decoder, which comes after it, there are five.
decoder = [node for node in sampling if answers[1][node.input[1]].shape[1] == 5]
figure = Figure(figsize=(8, 4.6), layout="constrained")
for layer, axes in enumerate(figure.subplots(1, 2)):
    axes.imshow(photo, extent=(-1, 1, 1, -1), alpha=0.6)
    grids = [answers[1][node.input[1]] for node in decoder[3 * layer : 3 * layer + 3]]
    for query in range(5):
        middle = np.concatenate([grid[:, query].reshape(-1, 2) for grid in grids]).mean(axis=0)
        for level, grid in enumerate(grids):
            for point in grid[:, query].reshape(-1, 2):
                axes.plot(*np.transpose([middle, point]), color=f"C{query}", linewidth=0.7)
                axes.plot(
                    *point,
                    "o",
                    color=f"C{query}",
                    markersize=3 + 2 * level,
                    markeredgecolor="black",
                )
    axes.set(
        xticks=[], yticks=[], xlim=(-1.6, 1.6), ylim=(1.6, -1.6), title=f"decoder layer {layer + 1}"
    )
figure.suptitle(
    "Where each of the five queries looks; the larger the dot, the coarser the feature map"
)
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
