"""Frames between two frames, by optical flow: ``python examples/interpolate_frames.py`` draws interpolate_frames.png.

The flow is estimated from the two frames alone (Lucas and Kanade, from coarse to fine). The model follows it part of
the way from either frame, and blends what it finds.
"""

from pathlib import Path

import numpy as np
import onnx
from matplotlib import cbook
from matplotlib.figure import Figure
from PIL import Image

import ort_gridsample as ogs

SIDE, LEVELS, STEPS = 192, 4, 8
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    between (float[1, 1, H, W] first, float[1, 1, H, W] second, float[1, H, W, 2] flow, float t)
    => (float[1, 1, H, W] frame)
    <float one = {1}, float[1, 2, 3] identity = {1, 0, 0, 0, 1, 0}>
    {
        size = Shape (first)
        here = AffineGrid (identity, size)
        rest = Sub (one, t)
        back = Mul (flow, t)
        on = Mul (flow, rest)
        in_first = Sub (here, back)
        in_second = Add (here, on)
        a = GridSample <padding_mode = "border"> (first, in_first)
        b = GridSample <padding_mode = "border"> (second, in_second)
        weighted_a = Mul (a, rest)
        weighted_b = Mul (b, t)
        frame = Add (weighted_a, weighted_b)
    }
    """
)


def here(size: int) -> np.ndarray:
    """The grid that looks at every pixel itself."""
    return ogs.affine_grid(np.eye(2, 3, dtype=np.float32)[None], (1, 1, size, size))


def resized(array: np.ndarray, size: int) -> np.ndarray:
    """An array (1, C, H, W), smaller by averages or larger by cubic interpolation."""
    if size < array.shape[-1]:
        factor = array.shape[-1] // size
        return array.reshape(1, array.shape[1], size, factor, size, factor).mean((3, 5))
    return ogs.grid_sample(array, here(size), "cubic", "border")


def blurred(array: np.ndarray, radius: int = 7) -> np.ndarray:
    """The mean of the window around each pixel, of an array (…, H, W)."""
    for axis in (-2, -1):
        width = [(0, 0)] * array.ndim
        width[axis] = (radius + 1, radius)
        total = np.pad(array, width, "edge").cumsum(axis, dtype=np.float64)
        ends = (
            np.take(total, range(start, start + array.shape[axis]), axis)
            for start in (2 * radius + 1, 0)
        )
        array = np.subtract(*ends) / (2 * radius + 1)
    return array


def optical_flow(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How far what is seen half-way moves from ``first`` to ``second``, (1, H, W, 2), in normalized coordinates."""
    flow = np.zeros((1, 2, SIDE >> LEVELS, SIDE >> LEVELS), np.float32)
    for level in reversed(range(LEVELS)):
        size = SIDE >> level
        frames = resized(first, size), resized(second, size)
        flow = resized(flow, size)
        for _ in range(STEPS):
            half = flow.transpose(0, 2, 3, 1) / 2
            grids = here(size) - half, here(size) + half
            a, b = (
                ogs.grid_sample(*pair, "cubic", "border")[0, 0]
                for pair in zip(frames, grids, strict=True)
            )
            dy, dx = np.gradient((a + b) / 2)
            dt = b - a
            xx, xy, yy, xt, yt = blurred(np.stack([dx * dx, dx * dy, dy * dy, dx * dt, dy * dt]))
            xx, yy = xx + 1e-4, yy + 1e-4
            step = np.stack([xy * yt - yy * xt, xy * xt - xx * yt]) / (xx * yy - xy * xy) * 2 / size
            flow = blurred(flow + step[None].clip(-4 / size, 4 / size), 3).astype(np.float32)
    return flow.transpose(0, 2, 3, 1)


def turned(t: float) -> np.ndarray:
    """The scene as the camera sees it at the time t, while it turns and comes nearer."""
    angle, scale = np.radians(4 - 8 * t), 0.9 - 0.1 * t
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    theta = np.array([[[cos, -sin, 0.03 * t], [sin, cos, 0]]], np.float32)
    return ogs.grid_sample(scene, ogs.affine_grid(theta, (1, 1, SIDE, SIDE)), "cubic", "reflection")


with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as photo:
    scene = (
        np.asarray(photo.convert("L").crop((16, 0, 496, 480)).resize((240, 240)), np.float32)[
            None, None
        ]
        / 255
    )
first, second = turned(0), turned(1)
flow = optical_flow(first, second)
session = ogs.InferenceSession(model)


def interpolated(t: float) -> np.ndarray:
    """The frame at the time t, which is 0 at the first and 1 at the second."""
    feeds = {"first": first, "second": second, "flow": flow, "t": np.array(t, np.float32)}
    return session.run(None, feeds)[0]


for t in (0.25, 0.5, 0.75):
    faded, true = (1 - t) * first + t * second, turned(t)
    off, off_faded = (np.abs(frame - true).mean() * 255 for frame in (interpolated(t), faded))
    print(
        f"t = {t}: {off:.1f} of 255 from the frame that the camera saw; the two frames blended {off_faded:.1f}"
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
