"""Interpolate frames between two frames along the optical flow.

``python examples/interpolate_frames.py`` draws interpolate_frames.png. The flow is estimated from
the two frames alone (Lucas and Kanade, from coarse to fine). The model moves each frame a part of
the way along the flow, and blends the results.
"""

from pathlib import Path

import numpy as np
import onnx
from matplotlib import cbook
from matplotlib.figure import Figure
from PIL import Image

import ort_gridsample as ogs

SIDE = 192
LEVELS = 4
STEPS = 8
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    between (float[1, 1, H, W] first, float[1, 1, H, W] second, float[1, H, W, 2] flow, float t)
    => (float[1, 1, H, W] frame)
    <float one = {1}, float[1, 2, 3] identity = {1, 0, 0, 0, 1, 0}>
    {
        size = Shape (first)
        grid = AffineGrid (identity, size)
        rest = Sub (one, t)
        back = Mul (flow, t)
        forward = Mul (flow, rest)
        in_first = Sub (grid, back)
        in_second = Add (grid, forward)
        a = GridSample <padding_mode = "border"> (first, in_first)
        b = GridSample <padding_mode = "border"> (second, in_second)
        weighted_a = Mul (a, rest)
        weighted_b = Mul (b, t)
        frame = Add (weighted_a, weighted_b)
    }
    """
)


def identity_grid(size: int) -> np.ndarray:
    """Return the grid that samples every pixel at its centre."""
    return ogs.affine_grid(np.eye(2, 3, dtype=np.float32)[None], (1, 1, size, size))


def resized(array: np.ndarray, size: int) -> np.ndarray:
    """Resize an array (1, C, H, W), to less by averages, or to more by cubic interpolation."""
    if size < array.shape[-1]:
        factor = array.shape[-1] // size
        return array.reshape(1, array.shape[1], size, factor, size, factor).mean((3, 5))
    return ogs.grid_sample(array, identity_grid(size), "cubic", "border")


def blurred(array: np.ndarray, radius: int = 7) -> np.ndarray:
    """Return the mean of the window around each pixel of an array (…, H, W)."""
    window = 2 * radius + 1
    for axis in (-2, -1):
        length = array.shape[axis]
        width = [(0, 0)] * array.ndim
        width[axis] = (radius + 1, radius)
        total = np.pad(array, width, "edge").cumsum(axis, dtype=np.float64)
        up_to_end = np.take(total, range(window, window + length), axis)
        up_to_start = np.take(total, range(length), axis)
        array = (up_to_end - up_to_start) / window
    return array


def optical_flow(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the motion from ``first`` to ``second`` of each pixel of the frame between them.

    It has the shape (1, H, W, 2), in normalized coordinates.
    """
    flow = np.zeros((1, 2, SIDE >> LEVELS, SIDE >> LEVELS), np.float32)
    for level in reversed(range(LEVELS)):
        size = SIDE >> level
        small_first = resized(first, size)
        small_second = resized(second, size)
        flow = resized(flow, size)
        for _ in range(STEPS):
            half = flow.transpose(0, 2, 3, 1) / 2
            grid = identity_grid(size)
            a = ogs.grid_sample(small_first, grid - half, "cubic", "border")[0, 0]
            b = ogs.grid_sample(small_second, grid + half, "cubic", "border")[0, 0]
            dy, dx = np.gradient((a + b) / 2)
            dt = b - a
            xx, xy, yy, xt, yt = blurred(np.stack([dx * dx, dx * dy, dy * dy, dx * dt, dy * dt]))
            xx = xx + 1e-4
            yy = yy + 1e-4
            step = np.stack([xy * yt - yy * xt, xy * xt - xx * yt]) / (xx * yy - xy * xy) * 2 / size
            flow = blurred(flow + step[None].clip(-4 / size, 4 / size), 3).astype(np.float32)
    return flow.transpose(0, 2, 3, 1)


def turned(t: float) -> np.ndarray:
    """Return the scene at the time t, from a camera that turns and approaches."""
    angle = np.radians(4 - 8 * t)
    scale = 0.9 - 0.1 * t
    cos = scale * np.cos(angle)
    sin = scale * np.sin(angle)
    theta = np.array([[[cos, -sin, 0.03 * t], [sin, cos, 0]]], np.float32)
    return ogs.grid_sample(scene, ogs.affine_grid(theta, (1, 1, SIDE, SIDE)), "cubic", "reflection")


with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
    grey = photo.convert("L").crop((16, 0, 496, 480)).resize((240, 240))
scene = np.asarray(grey, np.float32)[None, None] / 255
first = turned(0)
second = turned(1)
flow = optical_flow(first, second)
session = ogs.InferenceSession(model)


def interpolated(t: float) -> np.ndarray:
    """Return the frame at the time t, which is 0 for the first frame and 1 for the second."""
    feeds = {"first": first, "second": second, "flow": flow, "t": np.array(t, np.float32)}
    return session.run(None, feeds)[0]


for t in (0.25, 0.5, 0.75):
    blended = (1 - t) * first + t * second
    error = np.abs(interpolated(t) - turned(t)).mean() * 255
    blended_error = np.abs(blended - turned(t)).mean() * 255
    print(
        f"t = {t}: {error:.1f} of 255 from the frame that the camera saw; "
        f"the two frames blended {blended_error:.1f}"
    )

figure = Figure(figsize=(8, 5.6), layout="constrained")
shown = {
    "first frame": first,
    "between them": interpolated(0.5),
    "second frame": second,
    "the flow": first,
    "the two frames blended": (first + second) / 2,
    "what the camera saw": turned(0.5),
}
for axes, (title, frame) in zip(figure.subplots(2, 3).flat, shown.items(), strict=True):
    axes.imshow(frame[0, 0], cmap="gray", vmin=0, vmax=1, alpha=0.4 if title == "the flow" else 1)
    axes.set(xticks=[], yticks=[], title=title)
    if title == "the flow":
        pixels = np.arange(8, SIDE, 16)
        arrows = flow[0, 8::16, 8::16].transpose(2, 0, 1) * SIDE / 2
        axes.quiver(
            pixels, pixels, *arrows, color="tab:red", angles="xy", scale_units="xy", scale=1
        )
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=80)
Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
