"""Show where a detector samples its feature maps.

``python examples/deformable_attention.py`` draws deformable_attention.png. An exported Deformable
DETR (of toy size, with random weights) runs in onnxruntime alone, and with its GridSample nodes
replaced. Both have the same outputs. In each layer, each query samples a few points of three
feature maps. The points are the grids of the GridSample nodes, which are made outputs of the model.
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
model.ir_version = 9  # which older onnxruntimes read
# The nodes of each layer, in the order of the feature maps.
samplers = [node for node in model.graph.node if node.op_type == "GridSample"]
for node in samplers:
    grid_info = onnx.helper.make_tensor_value_info(node.input[1], onnx.TensorProto.FLOAT, None)
    model.graph.output.append(grid_info)

with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as opened:
    photo = opened.convert("RGB").crop((0, 60, 512, 572))
pixels = np.asarray(photo.resize((64, 64)), np.float32).transpose(2, 0, 1)[None] / 255

native = onnxruntime.InferenceSession(model.SerializeToString())
patched = ogs.InferenceSession(model, nodes="all")
names = [output.name for output in native.get_outputs()]
feeds = {"pixel_values": pixels}
expected = dict(zip(names, native.run(names, feeds), strict=True))
outputs = dict(zip(names, patched.run(names, feeds), strict=True))
for name in ("logits", "pred_boxes"):
    difference = np.abs(expected[name] - outputs[name]).max()
    print(f"{name}: at most {difference:.0e} between onnxruntime's own kernel and ort_gridsample")
print(f"{len(patched.placements)} of {len(samplers)} GridSample nodes were replaced")

# A grid has the shape (heads, queries, points, 2). Its coordinates are normalized, and thus do not
# depend on the size of the feature map. In the encoder, each pixel of each map is a query. In the
# decoder, which follows it, there are five queries.
QUERIES = 5
LEVELS = 3
decoder_grids = [outputs[node.input[1]] for node in samplers]
decoder_grids = [grid for grid in decoder_grids if grid.shape[1] == QUERIES]
figure = Figure(figsize=(8, 4.6), layout="constrained")
for layer, axes in enumerate(figure.subplots(1, 2)):
    axes.imshow(photo, extent=(-1, 1, 1, -1), alpha=0.6)
    grids = decoder_grids[LEVELS * layer : LEVELS * (layer + 1)]
    for query in range(QUERIES):
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
