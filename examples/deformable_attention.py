"""Where a detector looks: ``python examples/deformable_attention.py`` draws deformable_attention.png.

An exported RT-DETRv2 (of toy size, with random weights) runs in onnxruntime alone and with its GridSample nodes
replaced; both answer alike. Each of its queries samples a few places of three feature maps in every decoder layer:
those places are the grids of its GridSample nodes, made outputs of the model here.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from matplotlib import cbook
from matplotlib.figure import Figure
from PIL import Image

import ort_gridsample as ogs

model = onnx.load(Path(__file__).parents[1] / "tests/exported/rt_detr_v2.onnx")
sampling = [node for node in model.graph.node if node.op_type == "GridSample"]  # by layer, then by feature map
for node in sampling:
    model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[1], onnx.TensorProto.FLOAT, None))

with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as opened:
    photo = opened.convert("RGB").crop((0, 60, 512, 572))
pixels = np.asarray(photo.resize((64, 64)), np.float32).transpose(2, 0, 1)[None] / 255

native = onnxruntime.InferenceSession(model.SerializeToString())
patched = ogs.InferenceSession(model, nodes="all")
names = [output.name for output in native.get_outputs()]
answers = [dict(zip(names, s.run(names, {"pixel_values": pixels}), strict=True)) for s in (native, patched)]
for name in ("logits", "pred_boxes"):
    off = np.abs(answers[0][name] - answers[1][name]).max()
    print(f"{name}: at most {off:.0e} between onnxruntime's own kernel and ort_gridsample")
print(f"{len(patched.replaced)} of {len(sampling)} GridSample nodes were replaced")

# A grid is (heads, queries, points, 2): normalized coordinates, the same for every size of feature map.
layers = 2
maps = len(sampling) // layers
figure = Figure(figsize=(8, 4.6), layout="constrained")
for layer, axes in enumerate(figure.subplots(1, layers)):
    axes.imshow(photo, extent=(-1, 1, 1, -1), alpha=0.6)
    for level, node in enumerate(sampling[layer * maps : (layer + 1) * maps]):
        grid = answers[1][node.input[1]]
        for query in range(grid.shape[1]):
            points = grid[:, query].reshape(-1, 2)
            axes.scatter(*points.T, s=8 * 2**level, color=f"C{query}", edgecolors="black", linewidths=0.5)
    for query, (x, y, w, h) in enumerate(answers[1]["pred_boxes"][0] * 2):  # centre and size, 0 to 1
        box = np.array([[-w, -h], [w, -h], [w, h], [-w, h], [-w, -h]]) / 2 + (x - 1, y - 1)
        axes.plot(*box.T, color=f"C{query}")
    axes.set(xticks=[], yticks=[], xlim=(-1.1, 1.1), ylim=(1.1, -1.1), title=f"decoder layer {layer + 1}")
figure.suptitle("Places that the five queries sample (larger: coarser feature map), and their boxes")
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
