"""Patch a model that onnxruntime refuses, and run it.

``python examples/patch_and_run.py`` draws patch_and_run.png. The model focuses a light field: bytes
(uint8) with four spatial axes, two for the place on the lens and two for the picture that is seen
from it. The model shifts each picture in proportion to its place, and takes the mean. It is patched
once, saved, and run in onnxruntime's own session.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import numpy as np
import onnx
import onnxruntime
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

import ort_gridsample as ogs

PLACES = 7
HEIGHT = 96
WIDTH = 128
#: The scene from far to near: a word, its colour, its position, and the number of pixels by which
#: it moves from one place on the lens to the next.
SCENE = (("far", 90, (32, 30), -2), ("middle", 160, (64, 50), 0), ("near", 255, (92, 74), 2))
model = onnx.parser.parse_model(
    """
    <ir_version: 9, opset_import: ["": 20]>
    focus (uint8[1, 1, V, U, H, W] light, float[1, V, U, H, W, 4] grid)
        => (uint8[1, 1, H, W] photograph)
    <int64[2] places = {2, 3}>
    {
        shifted = GridSample <mode = "linear", padding_mode = "border"> (light, grid)
        values = Cast <to = 1> (shifted)
        mean = ReduceMean <keepdims = 0> (values, places)
        photograph = Cast <to = 2> (mean)
    }
    """
)


def light_field() -> np.ndarray:
    """Return the scene from every place on the lens, (1, 1, PLACES, PLACES, HEIGHT, WIDTH)."""
    font_path = Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans-Bold.ttf")
    font = ImageFont.truetype(str(font_path), 22)
    light = np.empty((1, 1, PLACES, PLACES, HEIGHT, WIDTH), np.uint8)
    for v, u in np.ndindex(PLACES, PLACES):
        picture = Image.new("L", (WIDTH, HEIGHT), 25)
        for word, colour, (x, y), move in SCENE:
            position = x + move * (u - PLACES // 2), y + move * (v - PLACES // 2)
            ImageDraw.Draw(picture).text(position, word, fill=colour, font=font, anchor="mm")
        light[0, 0, v, u] = picture
    return light


def focusing_grid(move: float) -> np.ndarray:
    """Return the grid that aligns what moves by ``move`` pixels between places on the lens."""
    lengths = np.array([PLACES, PLACES, HEIGHT, WIDTH])
    v, u, y, x = np.indices(lengths).astype(np.float32)
    pixels = [v, u, y + move * (v - PLACES // 2), x + move * (u - PLACES // 2)]
    normalized = [(2 * p + 1) / n - 1 for p, n in zip(pixels, lengths, strict=True)]
    return np.stack(normalized[::-1], -1)[None].astype(np.float32)  # the innermost axis first


for record in ogs.inspect_model(model):
    print(f"{record.op_type} runs natively: {record.native} ({record.reason})")

with TemporaryDirectory() as folder:
    path = Path(folder) / "patched.onnx"
    onnx.save(ogs.patch_model(model), path)
    session = onnxruntime.InferenceSession(path, ogs.register())

light = light_field()
shown = {"seen from one place": light[:, :, PLACES // 2, PLACES // 2]}
for word, _, _, move in SCENE:
    (shown[f"focused: {word}"],) = session.run(None, {"light": light, "grid": focusing_grid(move)})

figure = Figure(figsize=(9, 2), layout="constrained")
for axes, (title, photograph) in zip(figure.subplots(1, 4), shown.items(), strict=True):
    axes.imshow(photograph[0, 0], cmap="gray", vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[], title=title)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=90)
