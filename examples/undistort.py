"""Remove a lens's distortion from a photograph.

``python examples/undistort.py`` draws undistort.png. The grid gives the place in the photograph of
each point of the scene. It depends on the lens alone, and is a constant of the model.
"""

from pathlib import Path

import numpy as np
from matplotlib import cbook
from matplotlib.figure import Figure
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import ort_gridsample as ogs

# The coefficients of the lens in the model of Brown and Conrady, with the names of OpenCV.
K1 = -0.22
K2 = 0.03
K3 = 0.0
P1 = 0.004
P2 = -0.006


def lens(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place in the photograph of the point (x, y) of the scene.

    Both are in focal lengths from the middle of the picture.
    """
    r2 = x * x + y * y
    radial = 1 + r2 * (K1 + r2 * (K2 + r2 * K3))
    distorted_x = x * radial + 2 * P1 * x * y + P2 * (r2 + 2 * x * x)
    distorted_y = y * radial + P1 * (r2 + 2 * y * y) + 2 * P2 * x * y
    return distorted_x, distorted_y


def as_grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the grid (1, H, W, 2) of points in focal lengths, which are half the height."""
    return np.stack([x * height / width, y], -1)[None].astype(np.float32)


with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
    scene = np.array(photo.convert("RGB"))[:480, 16:496]
# Straight lines, 3 pixels wide, show the distortion.
for first in (38, 39, 40):
    scene[first::40] = 255
    scene[:, first::40] = 255
scene = scene.transpose(2, 0, 1)[None]
height, width = scene.shape[2:]
y, x = (np.indices((height, width)) * 2 + 1) / height - np.array([1, width / height])[:, None, None]

# Simulate the photograph: invert the lens by iteration, to find the point that a pixel shows.
seen_x = x
seen_y = y
for _ in range(50):
    photo_x, photo_y = lens(seen_x, seen_y)
    seen_x = seen_x - (photo_x - x)
    seen_y = seen_y - (photo_y - y)
taken = ogs.grid_sample(scene, as_grid(seen_x, seen_y), "cubic", "zeros")

# The input and the output of the model are bytes.
image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 3, height, width])
straight = helper.make_tensor_value_info("straight", TensorProto.UINT8, ["N", 3, height, width])
node = helper.make_node("GridSample", ["image", "grid"], ["straight"], mode="cubic")
grid = numpy_helper.from_array(as_grid(*lens(x, y)), "grid")
graph = helper.make_graph([node], "undistort", [image], [straight], [grid])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
(undistorted,) = ogs.InferenceSession(model).run(None, {"image": taken})

inside = (slice(None), slice(None), slice(60, -60), slice(60, -60))
for name, picture in (("as taken", taken), ("undistorted", undistorted)):
    error = np.abs(picture[inside].astype(int) - scene[inside]).mean()
    print(f"{name}: {error:.1f} of 255 from the scene")

figure = Figure(figsize=(9, 3.3), layout="constrained")
pictures = {
    "the scene": scene,
    "as the lens takes it": taken,
    "undistorted by the model": undistorted,
}
for axes, (title, picture) in zip(figure.subplots(1, 3), pictures.items(), strict=True):
    axes.imshow(picture[0].transpose(1, 2, 0))
    axes.set(xticks=[], yticks=[], title=title)
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
