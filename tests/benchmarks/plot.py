"""Draw the ratios of the backends."""

from collections.abc import Mapping, Sequence
from typing import Any

from ort_gridsample.graph.files import atomic_write

from .backends import BACKENDS, NATIVE
from .run import Result, means

#: Backend -> marker and colour. The markers of this package are filled.
_STYLES = {
    "compiled op": ("o", "tab:green"),
    "Python op": ("o", "tab:red"),
    "function jit": (".", "tab:red"),
    "function numpy": (".", "tab:blue"),
    "PyTorch": ("x", "tab:orange"),
    "OpenVINO": ("+", "tab:purple"),
}


def draw_cases(path: str, results: Sequence[Result]) -> None:
    """Draw a line for each case, with the ratio of each backend."""
    lines = []
    for result in results:
        if NATIVE not in result.timings:
            continue
        ratios = {name: result.ratio(name) for name in _STYLES}
        medians = {name: ratio.median for name, ratio in ratios.items() if ratio is not None}
        lines.append((result.case.name, medians))
    _draw(path, lines, 7)


def draw_means(path: str, results: Sequence[Result]) -> None:
    """Draw a line for each group of cases, with the geometric mean of each backend."""
    groups: dict[str, dict[str, float]] = {}
    for name in _STYLES:
        for group, mean in means(results, name).items():
            groups.setdefault(group, {})[name] = mean.mean
    groups["all"] = groups.pop("all", {})
    _draw(path, list(groups.items()), 9)


def _draw(path: str, lines: Sequence[tuple[str, Mapping[str, float]]], font: int) -> None:
    """Draw lines from top to bottom, each a label and ratios by backend, on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure: Any = Figure(figsize=(11, 1.7 + 0.027 * font * len(lines)), layout="constrained")
    axes = figure.subplots()
    for backend in BACKENDS:
        points = [
            (ratios[backend.name], y)
            for y, (_, ratios) in enumerate(lines)
            if backend.name in ratios
        ]
        if backend.name in _STYLES and points:
            marker, colour = _STYLES[backend.name]
            x, y = zip(*points, strict=True)
            axes.scatter(
                x, y, marker=marker, color=colour, label=backend.name, s=4 * font, alpha=0.85
            )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_yticks(range(len(lines)), [label for label, _ in lines], fontsize=font)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(axis="x", which="both", top=True, labeltop=True)
    axes.grid(which="both", axis="x", alpha=0.25)
    axes.grid(which="major", axis="y", alpha=0.15)
    axes.set_xlabel(f"times as fast as {NATIVE}: right of the black line is faster")
    figure.legend(loc="outside upper center", ncols=6, frameon=False)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=110, format="png")
