"""``ort-gridsample demo``: a spatial transformer on a photograph, in numbers and in a picture.

Without matplotlib and pillow it prints the numbers for a synthetic image, so that every
installation can be tried.
"""

import argparse
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx.parser
import onnxruntime

from .. import spec
from ..errors import GridSampleError
from ..functions.affine import affine_grid
from ..graph.files import atomic_write
from ..reference.arrays import Array
from ..session.session import InferenceSession
from . import runners
from .output import table

#: The default file of the picture.
PICTURE = "ort-gridsample-demo.png"
#: Height and width of the synthetic image, in pixels: those of the photograph in matplotlib.
SYNTHETIC_LENGTHS = (600, 512)
#: Height and width of the warped images, and of the detail, in pixels.
OUTPUT_LENGTHS = (300, 256)
DETAIL_LENGTHS = (300, 300)
#: The warp: a rotation, and a scale at which it also samples outside of the photograph.
ANGLE = math.radians(25)
SCALE = 1.25
#: Half the side of the detail in which the modes differ visibly, and its center, in normalized
#: coordinates.
DETAIL = 0.06
DETAIL_AT = (0.2, -0.28)
#: Smaller differences are black in the picture. It is a tenth of the last bit of 1.
MIN_SHOWN_DIFFERENCE = 1e-8
#: Images by mode and padding mode.
Images: TypeAlias = Mapping[tuple[str, str], Array]


@dataclass(frozen=True)
class Warps:
    """A photograph, and what was computed from it.

    Attributes:
        photo: the photograph, (H, W, 3), uint8.
        theta: the affine map of the warp, (1, 2, 3).
        warped: the warped images by mode and padding mode, (1, 3, H_out, W_out), in [0, 1].
        differences: the magnitudes of their differences to those of onnxruntime's kernels.
        details: by mode, the detail in which the modes differ visibly, (1, 3, H, W).
    """

    photo: Array
    theta: Array
    warped: Images
    differences: Images
    details: Mapping[str, Array]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "image",
        nargs="?",
        help="a photograph (default: one that matplotlib ships)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE.png",
        help=f"the picture (default: {PICTURE})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Warp a photograph in every mode and padding; print the differences and draw the results."""
    is_default = arguments.image is None and arguments.output is None
    if is_default and not _can_draw():
        _print_numbers(_warp(_synthetic_image()), "a synthetic image")
        print(
            "\nno picture, and no photograph: both need matplotlib and pillow "
            "(pip install matplotlib pillow)"
        )
        return
    output = arguments.output or PICTURE
    suffix = _picture_format(output, arguments.image)
    warps = _warp(_read_photo(arguments.image))
    _print_numbers(warps, "a photograph")
    _draw(output, suffix, warps)
    print(f"\n{output}: what each mode and padding did")


def _can_draw() -> bool:
    """Whether matplotlib and pillow are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("matplotlib", "PIL"))


def _synthetic_image() -> Array:
    """Return waves of three lengths and a little noise as uint8, (H, W, 3)."""
    height, width = SYNTHETIC_LENGTHS
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / length) * np.cos(y / (2 * length)) for length in (3, 11, 40)]
    noise = np.random.default_rng(0).uniform(-8, 8, (height, width, 3))
    return (127.5 + 110 * np.stack(waves, axis=-1) + noise).astype(np.uint8)


def _print_numbers(warps: Warps, subject: str) -> None:
    """Print the differences to onnxruntime's kernels. ``subject`` is the kind of the image."""
    height, width = warps.photo.shape[:2]
    _print_differences(warps.differences, f"{subject} of {width}×{height} pixels")
    grid = affine_grid(warps.theta, (1, 3, *OUTPUT_LENGTHS), align_corners=False)
    _print_ties(warps.differences, grid, (height, width))
    _print_bytes(warps, subject.partition(" ")[2])


def _warp(photo: Array) -> Warps:
    """Warp a photograph (H, W, 3) in every mode and padding."""
    height, width = photo.shape[:2]
    image = _image_of(photo).astype(np.float32) / 255
    theta = _warp_theta(height, width)
    feeds = {"image": image, "theta": theta, "size": np.array([1, 3, *OUTPUT_LENGTHS])}
    models = {key: _spatial_transformer(*key) for key in product(spec.MODES, spec.PADDING_MODES)}
    warped = {key: _run_with_ops(model, feeds) for key, model in models.items()}
    baseline = {key: _native_session(model).run(None, feeds)[0] for key, model in models.items()}
    detail_feeds = {
        "image": image,
        "theta": _detail_theta(height, width),
        "size": np.array([1, 3, *DETAIL_LENGTHS]),
    }
    detail_models = {mode: _spatial_transformer(mode, "zeros") for mode in spec.MODES}
    return Warps(
        photo=photo,
        theta=theta,
        warped=warped,
        differences={key: np.abs(warped[key] - baseline[key]) for key in models},
        details={mode: _run_with_ops(model, detail_feeds) for mode, model in detail_models.items()},
    )


def _image_of(photo: Array) -> Array:
    """Return a photograph (H, W, 3) as an image (1, 3, H, W)."""
    return np.ascontiguousarray(photo.transpose(2, 0, 1)[None])


def _native_session(model: bytes) -> onnxruntime.InferenceSession:
    """Return a session of onnxruntime's own kernels, which logs no refusals."""
    return runners.BACKENDS["onnxruntime"](model)


def _print_differences(differences: Images, subject: str) -> None:
    """Print the largest difference to onnxruntime's kernels for each mode and padding.

    Args:
        subject: the warped image, in words.
    """
    print(
        f"AffineGrid → GridSample (opset 20) on {subject}: ort_gridsample against\n"
        f"onnxruntime {onnxruntime.__version__}'s own kernels, "
        "the largest difference of values in [0, 1]\n"
    )
    rows = [["", *spec.PADDING_MODES]]
    for mode in spec.MODES:
        cells = [f"{differences[mode, padding].max():.1e}" for padding in spec.PADDING_MODES]
        rows.append([mode, *cells])
    print(table(rows))


def _print_bytes(warps: Warps, subject: str) -> None:
    """Warp the bytes of the image, and print the difference to the warp of floats."""
    print(f"\nThe same on the {subject}'s own bytes (uint8):")
    model = _spatial_transformer("cubic", "reflection", "uint8")
    feeds = {
        "image": _image_of(warps.photo),
        "theta": warps.theta,
        "size": np.array([1, 3, *OUTPUT_LENGTHS]),
    }
    try:
        _native_session(model).run(None, feeds)
        print("  onnxruntime    runs it too")
    except Exception as error:
        print(f"  onnxruntime    {str(error).splitlines()[0]}")
    bytes_output = _run_with_ops(model, feeds)
    warped = warps.warped["cubic", "reflection"]
    difference = np.abs(bytes_output / 255 - warped.clip(0, 1)).max() * 255
    print(
        f"  ort_gridsample runs it; at most {difference:.2f} of 255 from the result above "
        "(bytes are truncated)"
    )


def _picture_format(path: str, image: str | None) -> str:
    """Return the format of the picture at ``path``, by its suffix.

    Raises:
        GridSampleError: matplotlib has no such format, or ``path`` is that of the photograph.
        OSError: the folder does not exist.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in formats:
        expected = f"a name that ends in one of .{', .'.join(sorted(formats))}"
        raise GridSampleError("demo", "--output", repr(path), expected)
    if image is not None and Path(path).exists() and Path(path).samefile(image):
        found = f"{path!r}, which is the photograph"
        raise GridSampleError("demo", "--output", found, "another file")
    Path(path).resolve().parent.stat()
    return suffix


def _print_ties(differences: Images, grid: Array, lengths: tuple[int, ...]) -> None:
    """Print how near to a tie the pixels lie at which nearest differs; nothing if it does not.

    Args:
        differences: the differences, (1, 3, H, W).
        grid: the normalized coordinates, (1, H, W, 2).
    """
    of_nearest = [images for (mode, _), images in differences.items() if mode == "nearest"]
    differs = np.any(of_nearest, axis=(0, 1, 2))
    if not differs.any():
        return
    pixels = ((grid[0, differs].astype(np.float64) + 1) * lengths[::-1] - 1) / 2
    from_tie = np.abs(pixels - np.floor(pixels) - 0.5).min(axis=-1).max()
    print(
        f"\nnearest takes another pixel at {differs.mean():.2%} of the positions. "
        f"They lie at most {from_tie:.0e}\n"
        "pixels from the middle between two, where the last bits of float32 coordinates decide "
        "which is nearer"
    )


def _read_photo(path: str | None) -> Array:
    """Return the image at ``path`` as uint8, (H, W, 3).

    None is the portrait of Grace Hopper that comes with matplotlib.

    Raises:
        GridSampleError: pillow refuses the image.
        OSError: the file cannot be read, or is not an image.
    """
    from PIL import Image

    if path is None:
        from matplotlib import cbook

        path = str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    try:
        with Image.open(path) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, MemoryError):
        raise
    except Exception as error:  # pillow has errors of several types for damaged and huge images
        found = f"{path!r}, which pillow refuses ({error})"
        raise GridSampleError("demo", "the image", found, "a photograph") from error


def _spatial_transformer(mode: str, padding_mode: str, image_type: str = "float") -> bytes:
    """Return a model that warps ``image`` by ``theta`` into an output of ``size``."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]> spatial_transformer
        ({image_type}[1, 3, H, W] image, float[1, 2, 3] theta, int64[4] size)
        => ({image_type}[1, 3, h, w] warped) {{
            grid = AffineGrid (theta, size)
            warped = GridSample <mode = "{mode}", padding_mode = "{padding_mode}"> (image, grid)
        }}""")
    return model.SerializeToString()


def _run_with_ops(model: bytes, feeds: Mapping[str, Array]) -> Array:
    """Return the one output of ``model`` on this package's ops."""
    return InferenceSession(model, nodes="all").run(None, feeds)[0]


def _warp_theta(height: int, width: int) -> Array:
    """Return the affine map from normalized output to normalized input coordinates.

    In pixels it rotates by ANGLE and scales by SCALE.
    """
    cos = SCALE * math.cos(ANGLE)
    sin = SCALE * math.sin(ANGLE)
    rows = [[cos, -sin * height / width, 0], [sin * width / height, cos, 0]]
    return np.array([rows], np.float32)


def _detail_theta(height: int, width: int) -> Array:
    """Return the affine map to a small square of the photograph, without rotation."""
    x, y = DETAIL_AT
    return np.array([[[DETAIL * height / width, 0, x], [0, DETAIL, y]]], np.float32)


def _draw(path: str, suffix: str, warps: Warps) -> None:
    """Draw the picture to the file ``path``, in the format ``suffix``."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(17, 9.6), layout="constrained")
    figure.suptitle("GridSample: every pixel of the output looks up a place in the input")
    source, results, errors = figure.subfigures(1, 3, width_ratios=[1.25, 2.35, 1.2])
    _draw_source(source, warps)
    _draw_results(results, warps.warped)
    _draw_errors(errors, warps.differences)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=75, format=suffix)


def _draw_source(figure: Any, warps: Warps) -> None:
    """Draw the photograph with the grid on it, and the detail in every mode."""
    top, bottom = figure.subfigures(2, 1, height_ratios=[2.1, 1])
    top.suptitle("The input, and the places that are looked up")
    axes = top.subplots()
    axes.imshow(warps.photo)
    height, width = warps.photo.shape[:2]
    _draw_grid(axes, warps.theta, height, width)
    bottom.suptitle("The modes, on the small white square enlarged")
    for detail_axes, mode in zip(bottom.subplots(1, 3), spec.MODES, strict=True):
        _show(detail_axes, _pixels(warps.details[mode]), mode)


def _draw_results(figure: Any, warped: Images) -> None:
    """Draw the warped images: rows are modes, columns are paddings."""
    figure.suptitle("The output: rows are modes, columns say what lies outside the input")
    subplots = figure.subplots(3, 3)
    for axes, ((mode, padding_mode), image) in zip(subplots.flat, warped.items(), strict=True):
        _show(axes, _pixels(image), padding_mode if mode == spec.MODES[0] else "")
    _label_rows(subplots)


def _draw_errors(figure: Any, differences: Images) -> None:
    """Draw the differences of the warped images, and the scale of their colors."""
    from matplotlib.colors import LogNorm

    figure.suptitle("Difference to onnxruntime's kernels")
    subplots = figure.subplots(3, 3)
    max_difference = max(difference.max() for difference in differences.values())
    # From rounding errors to whole pixels.
    shown_max = max(max_difference, 10 * MIN_SHOWN_DIFFERENCE)
    colors = LogNorm(MIN_SHOWN_DIFFERENCE, shown_max, clip=True)
    for axes, difference in zip(subplots.flat, differences.values(), strict=True):
        title = f"at most {difference.max():.1e}" if difference.max() else "none"
        _show(axes, difference[0].max(axis=0), title, cmap="magma", norm=colors)
    _label_rows(subplots)
    first_image = subplots[0, 0].images[0]
    figure.colorbar(first_image, ax=subplots, location="bottom", label="values are in [0, 1]")


def _show(axes: Any, image: Array, title: str = "", **options: Any) -> None:
    """Draw an image without ticks. ``options`` are those of matplotlib's imshow."""
    axes.imshow(image, **options)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=10)


def _pixels(image: Array) -> Array:
    """Return an image (1, 3, H, W) as matplotlib draws it: (H, W, 3), in [0, 1]."""
    return image[0].transpose(1, 2, 0).clip(0, 1)


def _label_rows(subplots: Array) -> None:
    """Write the modes next to the rows of subplots."""
    for axes, mode in zip(subplots[:, 0], spec.MODES, strict=True):
        axes.set_ylabel(mode)


def _draw_grid(axes: Any, theta: Array, height: int, width: int) -> None:
    """Draw lines of the output's pixels on the photograph, and the outline of the detail."""
    lines = affine_grid(theta, (1, 1, 13, 11), align_corners=True)[0]
    x = (lines[..., 0] + 1) * width / 2 - 0.5
    y = (lines[..., 1] + 1) * height / 2 - 0.5
    for across, down in ((x, y), (x.T, y.T)):
        last = len(across) - 1
        for index in range(len(across)):
            linewidth = 2 if index in (0, last) else 0.7
            axes.plot(across[index], down[index], color="yellow", linewidth=linewidth)
    axes.annotate("output's top left", (x[0, 0], y[0, 0]), backgroundcolor="yellow")
    corners = affine_grid(_detail_theta(height, width), (1, 1, 2, 2), align_corners=True)[0]
    (left, top), (right, bottom) = (corners[[0, 1], [0, 1]] + 1) * (width, height) / 2 - 0.5
    outline_x = [left, right, right, left, left]
    outline_y = [top, top, bottom, bottom, top]
    axes.plot(outline_x, outline_y, color="white")
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_facecolor("0.85")
