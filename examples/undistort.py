"""A lens's distortion is taken out of a photograph: ``python examples/undistort.py`` draws undistort.png.

The grid says where the lens put each point of the scene. It depends on the lens alone: it is a constant of the model.
"""

from pathlib import Path

import numpy as np
from matplotlib import cbook
from matplotlib.figure import Figure
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import ort_gridsample as ogs

#: Brown and Conrady's coefficients of the lens, as OpenCV lists them: k1, k2, p1, p2, k3.
K1, K2, P1, P2, K3 = -0.22, 0.03, 0.004, -0.006, 0.0


def lens(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the lens puts the point (x, y) of the scene, in focal lengths from the middle of the picture."""
    r2 = x * x + y * y
    radial = 1 + r2 * (K1 + r2 * (K2 + r2 * K3))
    return (
        x * radial + 2 * P1 * x * y + P2 * (r2 + 2 * x * x),
        y * radial + P1 * (r2 + 2 * y * y) + 2 * P2 * x * y,
    )


def as_grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Points in focal lengths as a grid, (1, H, W, 2): the focal length is half the picture's height."""
    return np.stack([x * height / width, y], -1)[None].astype(np.float32)


with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
    scene = np.array(photo.convert("RGB"))[:480, 16:496]
for line in (0, 1, 2):  # straight lines, for the eye
    scene[line + 38 :: 40], scene[:, line + 38 :: 40] = 255, 255
scene = scene.transpose(2, 0, 1)[None]
height, width = scene.shape[2:]
y, x = (np.indices((height, width)) * 2 + 1) / height - np.array([1, width / height])[:, None, None]

# The photograph, as that lens would take it: a pixel shows the point that the lens puts there, found step by step.
seen_x, seen_y = x, y
for _ in range(50):
    error_x, error_y = (
        put - wanted for put, wanted in zip(lens(seen_x, seen_y), (x, y), strict=True)
    )
    seen_x, seen_y = seen_x - error_x, seen_y - error_y
taken = ogs.grid_sample(scene, as_grid(seen_x, seen_y), "cubic", "zeros")

# The model: bytes in, bytes out.
image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 3, height, width])
straight = helper.make_tensor_value_info("straight", TensorProto.UINT8, ["N", 3, height, width])
node = helper.make_node("GridSample", ["image", "grid"], ["straight"], mode="cubic")
grid = numpy_helper.from_array(as_grid(*lens(x, y)), "grid")
graph = helper.make_graph([node], "undistort", [image], [straight], [grid])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
(undistorted,) = ogs.InferenceSession(model).run(None, {"image": taken})

inside = (slice(None), slice(None), slice(60, -60), slice(60, -60))
for name, picture in (("as taken", taken), ("undistorted", undistorted)):
    off = np.abs(picture[inside].astype(int) - scene[inside]).mean()
    print(f"{name}: {off:.1f} of 255 from the scene")

figure = Figure(figsize=(9, 3.3), layout="constrained")
titles = ("the scene", "as the lens takes it", "undistorted by the model")
for axes, picture, title in zip(
    figure.subplots(1, 3), (scene, taken, undistorted), titles, strict=True
):
    axes.imshow(picture[0].transpose(1, 2, 0))
    axes.set(xticks=[], yticks=[], title=title)
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
