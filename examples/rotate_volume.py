"""A volume is turned about three axes: ``python examples/rotate_volume.py`` draws rotate_volume.png.

Shepp and Logan's phantom of a head (after Kak and Slaney, with the contrast of Toft), with cubic interpolation, which
onnxruntime has for two axes alone. theta has three rows of four numbers, for x, y and z; slices show what became of it.
"""

from pathlib import Path

import numpy as np
import onnx
from matplotlib.figure import Figure

import ort_gridsample as ogs

SIDE = 96
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    turn (float[N, C, D, H, W] volume, float[N, 3, 4] theta) => (float[N, C, D, H, W] turned)
    {
        size = Shape (volume)
        grid = AffineGrid (theta, size)
        turned = GridSample <mode = "cubic"> (volume, grid)
    }
    """
)

#: Density, half axes (x, y, z), centre (x, y, z), and angle about z in degrees, of each ellipsoid.
PHANTOM = (
    (1.0, (0.69, 0.92, 0.81), (0, 0, 0), 0),
    (-0.8, (0.6624, 0.874, 0.78), (0, -0.0184, 0), 0),
    (-0.2, (0.11, 0.31, 0.22), (0.22, 0, 0), -18),
    (-0.2, (0.16, 0.41, 0.28), (-0.22, 0, 0), 18),
    (0.1, (0.21, 0.25, 0.41), (0, 0.35, -0.15), 0),
    (0.1, (0.046, 0.046, 0.05), (0, 0.1, 0.25), 0),
    (0.1, (0.046, 0.046, 0.05), (0, -0.1, 0.25), 0),
    (0.1, (0.046, 0.023, 0.05), (-0.08, -0.605, 0), 0),
    (0.1, (0.023, 0.023, 0.02), (0, -0.606, 0), 0),
    (0.1, (0.023, 0.046, 0.02), (0.06, -0.605, 0), 0),
)


def phantom() -> np.ndarray:
    """The head, (1, 1, D, H, W); its axes are z, y and x."""
    z, y, x = (np.indices((SIDE,) * 3) * 2 + 1) / SIDE - 1
    volume = np.zeros((SIDE,) * 3, np.float32)
    for density, half_axes, centre, degrees in PHANTOM:
        cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        dx, dy, dz = (position - c for position, c in zip((x, -y, z), centre, strict=True))
        inside = [dx * cos + dy * sin, dy * cos - dx * sin, dz]
        volume[sum((d / a) ** 2 for d, a in zip(inside, half_axes, strict=True)) <= 1] += density
    return volume[None, None]


def rotation(*degrees: float) -> np.ndarray:
    """About x, then y, then z, as a theta (1, 3, 4)."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        about = np.eye(3)
        about[i, i] = about[j, j] = np.cos(angle)
        about[i, j], about[j, i] = -np.sin(angle), np.sin(angle)
        matrix = about @ matrix
    return np.column_stack([matrix, np.zeros(3)])[None].astype(np.float32)


volume = phantom()
session = ogs.InferenceSession(model)
theta = rotation(20, -15, 30)
(turned,) = session.run(None, {"volume": volume, "theta": theta})
back = np.zeros_like(theta)
back[0, :, :3] = theta[0, :, :3].T  # a rotation's inverse
(again,) = session.run(None, {"volume": turned, "theta": back})
print(
    f"turned there and back, {np.abs(again - volume).mean():.3f} from the volume, whose densities are 0 to 1"
)

figure = Figure(figsize=(8, 5.8), layout="constrained")
rows = zip(figure.subplots(2, 3), (volume, turned), ("as it is", "turned"), strict=True)
for axes, (data, name) in ((axes, (data, name)) for axes, data, name in rows):
    middle = data[0, 0, SIDE // 2], data[0, 0, :, SIDE // 2], data[0, 0, ::-1, :, SIDE // 2]
    for ax, slice_, where in zip(axes, middle, ("z = 0", "y = 0", "x = 0"), strict=True):
        ax.imshow(slice_, cmap="gray", vmin=0, vmax=0.5)
        ax.set(xticks=[], yticks=[], title=f"{name}, {where}")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=80)
