"""Straighten digits with a spatial transformer.

``python examples/spatial_transformer.py`` draws spatial_transformer.png. The model computes theta
from the moments of the image: the position, the size and the slant of its ink. AffineGrid and
GridSample then sample the straightened image.
"""

from pathlib import Path

import matplotlib
import numpy as np
import onnx
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

import ort_gridsample as ogs

SIDE = 48
COPIES = 6
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    straighten (float[N, 1, 48, 48] image) => (float[N, 1, 48, 48] straight)
    <int64[2] axes = {2, 3}, int64[3] rows_of_theta = {-1, 2, 3},
     float zero = {0}, float size_wanted = {0.35},
     float start = {-0.979166667}, float stop = {1}, float step = {0.0416666667},
     int64[4] along_x = {1, 1, 1, 48}, int64[4] along_y = {1, 1, 48, 1}>
    {
        centres = Range (start, stop, step)
        x = Reshape (centres, along_x)
        y = Reshape (centres, along_y)
        mass = ReduceSum (image, axes)
        ink = Div (image, mass)
        ink_x = Mul (ink, x)
        ink_y = Mul (ink, y)
        mean_x = ReduceSum (ink_x, axes)
        mean_y = ReduceSum (ink_y, axes)
        dx = Sub (x, mean_x)
        dy = Sub (y, mean_y)
        ink_dy = Mul (ink, dy)
        ink_dxdy = Mul (ink_dy, dx)
        ink_dydy = Mul (ink_dy, dy)
        covariance = ReduceSum (ink_dxdy, axes)
        variance = ReduceSum (ink_dydy, axes)
        deviation = Sqrt (variance)
        scale = Div (deviation, size_wanted)
        lean = Div (covariance, variance)
        leaning = Mul (lean, scale)
        nought = Mul (scale, zero)
        six = Concat <axis = 1> (scale, leaning, mean_x, nought, scale, mean_y)
        theta = Reshape (six, rows_of_theta)
        size = Shape (image)
        grid = AffineGrid (theta, size)
        straight = GridSample <mode = "cubic"> (image, grid)
    }
    """
)


def written(digit: int, random: np.random.Generator) -> np.ndarray:
    """Return the digit with a random slant, size and position, (SIDE, SIDE), from 0 to 1."""
    upright = Image.new("L", (4 * SIDE, 4 * SIDE))
    font_path = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans-Bold.ttf")
    font = ImageFont.truetype(str(font_path), 3 * SIDE)
    ImageDraw.Draw(upright).text((2 * SIDE, 2 * SIDE), str(digit), fill=255, font=font, anchor="mm")
    lean = random.uniform(-0.6, 0.6)
    size = random.uniform(4.2, 6)
    x, y = random.uniform(-4, 4, 2)
    middle = np.array([2 * SIDE, 2 * SIDE])
    to_upright = np.array([[size, lean * size], [0, size]])
    shift = middle - to_upright @ (SIDE / 2 + np.array([x, y]))
    rows = np.column_stack([to_upright, shift]).ravel()
    leaning = upright.transform(
        (SIDE, SIDE), Image.Transform.AFFINE, tuple(rows), Image.Resampling.BICUBIC
    )
    return np.asarray(leaning, np.float32) / 255


random = np.random.default_rng(0)
copies = [written(digit, random) for digit in range(10) for _ in range(COPIES)]
digits = np.array(copies)[:, None]
(straight,) = ogs.InferenceSession(model).run(None, {"image": digits})

for name, images in (("before", digits), ("after", straight)):
    deviation = images.reshape(10, COPIES, -1).std(axis=1).mean()
    print(f"{name}: the copies of a digit differ by {deviation:.3f} in a pixel, which is 0 to 1")

figure = Figure(figsize=(9, 3.2), layout="constrained")
sheets = {"as written": digits, "straightened": straight}
for axes, (title, images) in zip(figure.subplots(1, 2), sheets.items(), strict=True):
    rows = images.reshape(10, COPIES, SIDE, SIDE).transpose(1, 2, 0, 3)
    sheet = rows.reshape(COPIES * SIDE, 10 * SIDE)
    axes.imshow(sheet, cmap="gray_r", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[], title=title)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=100)
