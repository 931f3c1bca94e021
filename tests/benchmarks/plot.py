"""A picture of the ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ort_gridsample.model.files import written_whole

from .contestants import CONTESTANTS, NATIVE
from .run import Result
from .suite import name_of

#: Contestant -> marker and colour; those of this package are filled.
_STYLES = {
    "compiled op": ("o", "tab:green"),
    "Python op": ("o", "tab:red"),
    "function jit": (".", "tab:red"),
    "function numpy": (".", "tab:blue"),
    "PyTorch": ("x", "tab:orange"),
    "OpenVINO": ("+", "tab:purple"),
}


def draw(path: str, results: Sequence[Result]) -> None:
    """One line a case: how many times as fast as onnxruntime each contestant is, on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    shown = [result for result in results if NATIVE in result.timings]
    figure: Any = Figure(figsize=(11, 2 + 0.19 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for contestant in CONTESTANTS:
        points = [(r.median, y) for y, result in enumerate(shown) if (r := result.ratio(contestant.name)) is not None]
        if contestant.name in _STYLES and points:
            marker, colour = _STYLES[contestant.name]
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, marker=marker, color=colour, label=contestant.name, s=28, alpha=0.85)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_yticks(range(len(shown)), [name_of(result.case) for result in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="x", which="both", top=True, labeltop=True)
    axes.grid(which="both", axis="x", alpha=0.25)
    axes.grid(which="major", axis="y", alpha=0.15)
    axes.set_xlabel(f"times as fast as {NATIVE}: right of the black line is faster")
    figure.legend(loc="outside upper center", ncols=6, frameon=False)
    with written_whole(path) as file:
        figure.savefig(file, dpi=110, format="png")
