"""``ort-gridsample demo``: a spatial transformer on a photograph, in numbers and in a picture."""

import argparse
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

from .. import spec
from ..errors import GridSampleError
from ..functions.operators import affine_grid
from ..graph.files import atomic_write
from ..reference.arrays import Array
from ..session.session import InferenceSession
from . import runners
from .output import table

#: Height and width of the warped images, in pixels.
OUTPUT = (300, 256)
#: The warp: turned, and scaled up so that it also samples outside the photograph.
ANGLE, SCALE = math.radians(25), 1.25
#: Half the side of the detail that shows the modes apart, and its centre, in normalized coordinates.
DETAIL, DETAIL_AT = 0.06, (0.2, -0.28)
#: Differences below are black in the picture: a tenth of the last bit of 1.
LEAST = 1e-8
#: By mode and padding mode.
Images = Mapping[tuple[str, str], Array]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("image", nargs="?", help="a photograph (default: one that matplotlib ships)")
    add("--output", default="ort-gridsample-demo.png", metavar="FILE.png", help="the picture (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    suffix = picture_format(arguments.output, arguments.image)
    photo = read_photo(arguments.image)  # (H, W, 3), uint8
    image = np.ascontiguousarray(photo.transpose(2, 0, 1)[None]).astype(np.float32) / 255
    height, width = photo.shape[:2]
    warp = theta(height, width)
    feeds = {"image": image, "theta": warp, "size": np.array([1, 3, *OUTPUT])}
    models = {key: spatial_transformer(*key) for key in product(spec.MODES, spec.PADDING_MODES)}
    warped = {key: answer(model, feeds) for key, model in models.items()}
    plain = runners.WAYS["onnxruntime"]  # which logs nothing: what it refuses is part of the demonstration
    differences = {key: np.abs(warped[key] - plain(model).run(None, feeds)[0]) for key, model in models.items()}
    print(f"AffineGrid → GridSample (opset 20) on a photograph of {width}×{height} pixels: ort_gridsample against")
    print(f"onnxruntime {onnxruntime.__version__}'s own kernels, the largest difference of values in [0, 1]\n")
    rows = [[mode, *(f"{differences[mode, p].max():.1e}" for p in spec.PADDING_MODES)] for mode in spec.MODES]
    print(table([["", *spec.PADDING_MODES], *rows]))
    print_ties(differences, affine_grid(warp, (1, 3, *OUTPUT), align_corners=False), photo.shape[:2])

    print("\nThe same on the photograph's own bytes (uint8):")
    model = spatial_transformer("cubic", "reflection", "uint8")
    feeds["image"] = (image * 255).round().astype(np.uint8)
    try:
        plain(model).run(None, feeds)
        print("  onnxruntime    runs it too")
    except Exception as error:
        print(f"  onnxruntime    {str(error).splitlines()[0]}")
    off = np.abs(answer(model, feeds) / 255 - warped["cubic", "reflection"].clip(0, 1)).max() * 255
    print(f"  ort_gridsample runs it; at most {off:.2f} of 255 from the result above (bytes are truncated)")

    detail = {"image": image, "theta": detail_theta(height, width), "size": np.array([1, 3, 300, 300])}
    details = {mode: answer(spatial_transformer(mode, "zeros"), detail) for mode in spec.MODES}
    draw(arguments.output, suffix, photo, warp, warped, differences, details)
    print(f"\n{arguments.output}: what each mode and padding did")


def picture_format(path: str, image: str | None) -> str:
    """The format of the picture at ``path``, by its ending, checked to be one that matplotlib can write there."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in known:
        expected = f"a name that ends in one of .{', .'.join(sorted(known))}"
        raise GridSampleError("demo", "--output", repr(path), expected)
    if image is not None and Path(path).exists() and Path(path).samefile(image):
        raise GridSampleError("demo", "--output", f"{path!r}, which is the photograph", "another file")
    Path(path).resolve().parent.stat()
    return suffix


def print_ties(differences: Images, grid: Array, lengths: tuple[int, ...]) -> None:
    """Print how near to a tie the pixels lie at which nearest differs; nothing where it does not."""
    differs = np.any([np.any(each, axis=(0, 1)) for key, each in differences.items() if key[0] == "nearest"], axis=0)
    if not differs.any():
        return
    pixels = ((grid[0, differs].astype(np.float64) + 1) * lengths[::-1] - 1) / 2
    from_tie = np.abs(pixels - np.floor(pixels) - 0.5).min(axis=-1).max()
    print(f"\nnearest takes another pixel at {differs.mean():.2%} of the positions. They lie at most {from_tie:.0e}")
    print("pixels from the middle between two, where the last bits of float32 coordinates decide which is nearer")


def read_photo(path: str | None) -> Array:
    """The image at ``path``, or the portrait of Grace Hopper that comes with matplotlib: (H, W, 3), uint8."""
    from PIL import Image

    if path is None:
        from matplotlib import cbook

        path = str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def spatial_transformer(mode: str, padding_mode: str, image_type: str = "float") -> bytes:
    """A model that warps ``image`` (1, 3, H, W) by ``theta`` (1, 2, 3) into an output of ``size``."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]> spatial_transformer
        ({image_type}[1, 3, H, W] image, float[1, 2, 3] theta, int64[4] size) => ({image_type}[1, 3, h, w] warped) {{
            grid = AffineGrid (theta, size)
            warped = GridSample <mode = "{mode}", padding_mode = "{padding_mode}"> (image, grid)
        }}""")
    return model.SerializeToString()


def answer(model: bytes, feeds: Mapping[str, Array]) -> Array:
    """The one output of ``model`` on this package's ops."""
    return InferenceSession(model, nodes="all").run(None, feeds)[0]


def theta(height: int, width: int) -> Array:
    """From normalized output to normalized input coordinates: turned by ANGLE in pixels, scaled by SCALE."""
    cos, sin = SCALE * math.cos(ANGLE), SCALE * math.sin(ANGLE)
    return np.array([[[cos, -sin * height / width, 0], [sin * width / height, cos, 0]]], np.float32)


def detail_theta(height: int, width: int) -> Array:
    """A small square of the photograph, not turned."""
    x, y = DETAIL_AT
    return np.array([[[DETAIL * height / width, 0, x], [0, DETAIL, y]]], np.float32)


def draw(
    path: str, suffix: str, photo: Array, warp: Array, warped: Images, differences: Images, details: Mapping[str, Array]
) -> None:
    """The picture: the photograph with the grid on it, every mode and padding, a detail, the difference to native."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    def show(axes: Any, image: Array, title: str = "", **how: Any) -> None:
        axes.imshow(image if image.ndim == 2 else image[0].transpose(1, 2, 0).clip(0, 1), **how)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=10)

    figure: Any = Figure(figsize=(17, 9.6), layout="constrained")
    figure.suptitle("GridSample: every pixel of the output looks up a place in the input")
    source, results, right = figure.subfigures(1, 3, width_ratios=[1.25, 2.35, 1.2])

    top, bottom = source.subfigures(2, 1, height_ratios=[2.1, 1])
    top.suptitle("The input, and the places that are looked up")
    axes = top.subplots()
    axes.imshow(photo)
    draw_grid(axes, warp, photo.shape[0], photo.shape[1])
    bottom.suptitle("The modes, on the small white square enlarged")
    for axes, mode in zip(bottom.subplots(1, 3), spec.MODES, strict=True):
        show(axes, details[mode], mode)

    results.suptitle("The output: rows are modes, columns say what lies outside the input")
    right.suptitle("Difference to onnxruntime's kernels")
    outputs, errors = results.subplots(3, 3), right.subplots(3, 3)
    most = max(each.max() for each in differences.values())
    colours = LogNorm(LEAST, max(most, 10 * LEAST), clip=True)  # rounding errors and whole pixels
    for (key, error), output, beside in zip(differences.items(), outputs.flat, errors.flat, strict=True):
        show(output, warped[key], key[1] if key[0] == spec.MODES[0] else "")
        title = f"at most {error.max():.1e}" if error.max() else "none"
        show(beside, error[0].max(axis=0), title, cmap="magma", norm=colours)
    for axes, mode in zip((*outputs[:, 0], *errors[:, 0]), spec.MODES * 2, strict=True):
        axes.set_ylabel(mode)
    right.colorbar(errors[0, 0].images[0], ax=errors, location="bottom", label="values are in [0, 1]")
    with atomic_write(path) as file:
        figure.savefig(file, dpi=75, format=suffix)


def draw_grid(axes: Any, warp: Array, height: int, width: int) -> None:
    """Lines of the output's pixels, where they lie in the photograph, and the outline of the detail."""
    lines = affine_grid(warp, (1, 1, 13, 11), align_corners=True)[0]
    x, y = ((lines[..., i] + 1) * n / 2 - 0.5 for i, n in enumerate((width, height)))
    for across, down in ((x, y), (x.T, y.T)):
        for i in range(len(across)):
            axes.plot(across[i], down[i], color="yellow", linewidth=2 if i in (0, len(across) - 1) else 0.7)
    axes.annotate("output's top left", (x[0, 0], y[0, 0]), backgroundcolor="yellow")
    corners = affine_grid(detail_theta(height, width), (1, 1, 2, 2), align_corners=True)[0]
    (left, top), (right, bottom) = (corners[[0, 1], [0, 1]] + 1) * (width, height) / 2 - 0.5
    axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color="white")
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_facecolor("0.85")
