"""``ort-gridsample verify A B``."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import onnxruntime

from ..errors import GridSampleError
from . import inputs, runners
from .arguments import magnitude
from .failures import AboutFileError, about, sentence
from .output import print_json, table
from .output_comparison import (
    OutputComparison,
    all_agree,
    compare_outputs,
    outputs_text,
)

#: What is printed if the models differ.
_KNOWN_DIFFERENCES = (
    "two differences are no fault of a patch: onnxruntime's own kernels differ at NaN and at pixel "
    "coordinates that no 32-bit integer holds, and 5-D nodes written as 4-D ones have coordinates "
    "that are off by up to 2**-22 of what they span"
)
#: The exit status if B does not run. Those of an error are in the package of the commands.
REFUSED = 3


@dataclass(frozen=True)
class RefusedRun:
    """B, if it does not run.

    Attributes:
        path: the path of the model.
        backend: the one of :data:`.runners.BACKENDS` that does not run it.
        refusal: the error of the backend.
        has_other_lengths: whether the model runs with the first inputs, and fails with others.
    """

    path: str
    backend: str
    refusal: str
    has_other_lengths: bool = False


@dataclass(frozen=True)
class ModelComparison:
    """The result of the command.

    Attributes:
        run_a: the run of A.
        run_b: the run of B, or why B does not run.
        outputs: how far they agree on each output, for each set of inputs.
        note: what could not be compared; else empty.
    """

    run_a: runners.ModelRun
    run_b: runners.ModelRun | RefusedRun
    outputs: Sequence[OutputComparison]
    note: str = ""

    @property
    def agree(self) -> bool | None:
        """Whether the models agree on all outputs. None if that is unknown: B does not run."""
        return None if isinstance(self.run_b, RefusedRun) else all_agree(self.outputs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        "B runs in onnxruntime alone, or with ort_gridsample's ops if it has some: "
        "ort_gridsample's session would also run files that no other program runs. A runs as B "
        "does or, if onnxruntime does not run it, in ort_gridsample's session. Each dimension "
        "without a number is tried with two lengths. The exit status is 0 if the outputs agree, 1 "
        "if an output differs, and 3 if B does not run. It is 2 after a mistake in the command, or "
        "if a file cannot be read or A runs nowhere."
    )
    inputs.add_arguments(parser, metavar="A")
    parser.add_argument("other", metavar="B", help="the model that should give the same outputs")
    parser.add_argument(
        "--tolerance",
        type=magnitude,
        default=1e-5,
        help=(
            "how far floats may differ, relative to the largest magnitude in the output "
            "(default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--session",
        action="store_true",
        help=(
            "run B in ort_gridsample's session (default: in onnxruntime alone, or with "
            "ort_gridsample's ops if B has some)"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare two models.

    Returns:
        0 if all outputs agree, 1 if one does not, :data:`REFUSED` if B does not run.
    """
    comparison = compare(arguments)
    if arguments.json:
        print_json(comparison_json(comparison))
    elif isinstance(comparison.run_b, RefusedRun):
        print(f"ort-gridsample: {_refusal_text(comparison.run_b)}", file=sys.stderr)
    else:
        print(_comparison_text(comparison, comparison.run_b))
    if isinstance(comparison.run_b, RefusedRun):
        return REFUSED
    return 0 if comparison.agree else 1


def compare(arguments: argparse.Namespace) -> ModelComparison:
    """Run two models on the same inputs, and compare the outputs.

    A runs in onnxruntime, or in this package's session if onnxruntime does not run it. B runs in
    onnxruntime only, or with ``--session`` in the session: the session recognizes operators that
    were lowered, and replaces them. It would run a file that no other program runs.

    If the outputs agree, the models also run with other lengths of the dimensions that A leaves
    open. That shows lengths that a patch made constant.
    """
    path_a = arguments.model
    path_b = arguments.other
    tolerance = arguments.tolerance
    make_feeds = partial(inputs.make_feeds, arguments=arguments, random=True)
    with about(path_a):
        run_a = runners.run_in_any(path_a, make_feeds)
        other_feeds = make_feeds(run_a.session, open_lengths=inputs.OTHER_OPEN_LENGTHS)
    try:
        with about(path_b):
            run_b = _run_of_b(path_b, run_a, in_session=arguments.session)
    except runners.RefusedModelError as error:
        return ModelComparison(run_a, RefusedRun(path_b, error.backend, error.refusal), [])
    _check_output_names(run_a, run_b)
    comparisons = compare_outputs(run_a.outputs, run_b.outputs, tolerance)
    note = ""
    if all_agree(comparisons) and _have_other_shapes(run_a.feeds, other_feeds):
        try:
            further_comparisons, note = _compare_again(run_a, run_b, other_feeds, tolerance)
        except runners.RefusedModelError as error:
            refused = RefusedRun(path_b, error.backend, error.refusal, has_other_lengths=True)
            return ModelComparison(run_a, refused, comparisons)
        comparisons += further_comparisons
    return ModelComparison(run_a, run_b, comparisons, note)


def _run_of_b(path: str, run_a: runners.ModelRun, *, in_session: bool) -> runners.ModelRun:
    """Run B on the inputs of A.

    Args:
        in_session: whether to run B in this package's session.

    Raises:
        RefusedModelError: the backend does not run B.
    """

    def make_feeds(session: onnxruntime.InferenceSession) -> runners.Arrays:
        return _feeds_of_b(session, path, run_a)

    if not in_session:
        return runners.run_in_onnxruntime(path, make_feeds)
    refusal = ""
    try:
        runners.run_in_onnxruntime(path, make_feeds)
    except runners.RefusedModelError as error:
        refusal = error.refusal
    return runners.run_in_session(path, make_feeds, refusal)


def _compare_again(
    run_a: runners.ModelRun,
    run_b: runners.ModelRun,
    feeds: runners.Arrays,
    tolerance: float,
) -> tuple[list[OutputComparison], str]:
    """Compare the outputs of two sessions on other inputs.

    Returns:
        How far they agree, or a note on why A does not run on these inputs.

    Raises:
        RefusedModelError: B does not run on them.
    """
    try:
        outputs_a = runners.run_session(run_a.session, feeds)
    except Exception as error:
        reason = sentence(error)
        return [], f"{run_a.path} does not run with other lengths of what it leaves open: {reason}"
    with about(run_b.path):
        outputs_b = runners.run_again(run_b, {name: feeds[name] for name in run_b.feeds})
    return compare_outputs(outputs_a, outputs_b, tolerance), ""


def _have_other_shapes(feeds: runners.Arrays, other_feeds: runners.Arrays) -> bool:
    """Whether an array of ``feeds`` has another shape than that of ``other_feeds``."""
    return any(array.shape != other_feeds[name].shape for name, array in feeds.items())


def _check_output_names(run_a: runners.ModelRun, run_b: runners.ModelRun) -> None:
    """Raise GridSampleError if the outputs of the models have other names, or another order."""
    names_a = list(run_a.outputs)
    names_b = list(run_b.outputs)
    if names_a != names_b:
        expected = f"those of {run_a.path}: {names_a}"
        raise GridSampleError(run_b.path, "outputs", str(names_b), expected, verb="are")


def _feeds_of_b(
    session: onnxruntime.InferenceSession,
    path: str,
    run_a: runners.ModelRun,
) -> runners.Arrays:
    """Return those of the inputs of A that B has too.

    Raises:
        AboutFileError: B has inputs that A lacks.
    """
    names = [value.name for value in session.get_inputs()]
    missing = [name for name in names if name not in run_a.feeds]
    if missing:
        raise AboutFileError(f"{path} has inputs that {run_a.path} lacks: {missing}")
    return {name: run_a.feeds[name] for name in names}


def comparison_json(comparison: ModelComparison) -> dict[str, object]:
    """Return the result of the command as an object of JSON."""
    content = dict[str, object]()
    run_b = comparison.run_b
    is_refused = isinstance(run_b, RefusedRun)
    for letter, model_run in (("A", comparison.run_a), ("B", run_b)):
        content[letter] = {
            "model": model_run.path,
            "way": None if is_refused and letter == "B" else model_run.backend,
            "refusal": model_run.refusal,
        }
    content["outputs"] = list(map(vars, comparison.outputs))
    content["note"] = comparison.note
    content["agree"] = comparison.agree
    return content


def _refusal_text(run_b: RefusedRun) -> str:
    """Return why B was not compared, and what else can run it."""
    lengths = " with other lengths of what A leaves open" if run_b.has_other_lengths else ""
    remedy = ""
    if run_b.backend != runners.SESSION:
        remedy = f"; with --session, B runs in {runners.SESSION}"
    return f"{run_b.path}: {run_b.backend} does not run it{lengths}: {run_b.refusal}{remedy}"


def _comparison_text(comparison: ModelComparison, run_b: runners.ModelRun) -> str:
    """Return the result of the command as text for people."""
    run_a = comparison.run_a
    models = [("A", run_a.path, run_a.backend), ("B", run_b.path, run_b.backend)]
    lines = [table([("", "model", "run by"), *models])]
    lines += [_session_text("A", run_a), _session_text("B", run_b)]
    lines += [outputs_text(comparison.outputs), comparison.note]
    if not comparison.agree:
        lines.append(_KNOWN_DIFFERENCES)
    return "\n".join(filter(None, lines))


def _session_text(letter: str, model_run: runners.ModelRun) -> str:
    """Return a line if onnxruntime does not run a model that ran in this package's session."""
    if not model_run.refusal:
        return ""
    return (
        f"{letter} ran in {runners.SESSION}, because onnxruntime does not run {model_run.path}: "
        f"{model_run.refusal}"
    )
