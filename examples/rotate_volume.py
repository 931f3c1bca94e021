"""Rotate a volume about three axes.

``python examples/rotate_volume.py`` draws rotate_volume.png. The volume is the head phantom of
Shepp and Logan (after Kak and Slaney, with Toft's contrast). It is rotated with cubic
interpolation, which onnxruntime has for two axes only. theta has three rows of four numbers, for x,
y and z. The picture shows slices before and after the rotation.
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
    """Return the head phantom, (1, 1, D, H, W). Its spatial axes are z, y and x."""
    z, y, x = (np.indices((SIDE,) * 3) * 2 + 1) / SIDE - 1
    volume = np.zeros((SIDE,) * 3, np.float32)
    for density, half_axes, centre, degrees in PHANTOM:
        cos = np.cos(np.radians(degrees))
        sin = np.sin(np.radians(degrees))
        dx, dy, dz = (position - c for position, c in zip((x, -y, z), centre, strict=True))
        rotated = [dx * cos + dy * sin, dy * cos - dx * sin, dz]
        squares = [(d / half_axis) ** 2 for d, half_axis in zip(rotated, half_axes, strict=True)]
        volume[sum(squares) <= 1] += density
    return volume[None, None]


def rotation(*degrees: float) -> np.ndarray:
    """Return the theta (1, 3, 4) of rotations about x, then y, then z."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        i = (axis + 1) % 3
        j = (axis + 2) % 3
        about_axis = np.eye(3)
        about_axis[i, i] = np.cos(angle)
        about_axis[j, j] = np.cos(angle)
        about_axis[i, j] = -np.sin(angle)
        about_axis[j, i] = np.sin(angle)
        matrix = about_axis @ matrix
    return np.column_stack([matrix, np.zeros(3)])[None].astype(np.float32)


volume = phantom()
session = ogs.InferenceSession(model)
theta = rotation(20, -15, 30)
(turned,) = session.run(None, {"volume": volume, "theta": theta})
inverse = np.zeros_like(theta)
inverse[0, :, :3] = theta[0, :, :3].T
(restored,) = session.run(None, {"volume": turned, "theta": inverse})
difference = np.abs(restored - volume).mean()
print(f"turned there and back, {difference:.3f} from the volume, whose densities are 0 to 1")

figure = Figure(figsize=(8, 5.8), layout="constrained")
middle = SIDE // 2
rows = zip(figure.subplots(2, 3), ("as it is", "turned"), (volume, turned), strict=True)
for row, name, data in rows:
    slices = {
        "z = 0": data[0, 0, middle],
        "y = 0": data[0, 0, :, middle],
        "x = 0": data[0, 0, ::-1, :, middle],
    }
    for axes, (plane, pixels) in zip(row, slices.items(), strict=True):
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=0.5)
        axes.set(xticks=[], yticks=[], title=f"{name}, {plane}")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=80)
