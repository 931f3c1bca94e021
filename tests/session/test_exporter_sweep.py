"""Operations before and after samplers, from PyTorch's exporters through every way of this package.

Each operation of support/torch_operations.py comes before X, before the grid and after the sampler.
The default run has a sample of the combinations, the sweep has all of them.
"""

import re
from collections import Counter
from pathlib import Path

import onnxruntime
import pytest

from ort_gridsample import versions

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.onnx.symbolic_helper", reason="this PyTorch has no older exporter")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")

from support.exporter_sweep import (
    EXPORTERS,
    SAMPLERS,
    SHAPES,
    Case,
    all_cases,
    exported,
    runs_of,
    sampled_cases,
)
from support.fusion_lists import fused_by_provider, fused_by_session
from support.paths import needs_provider
from support.torch_exporters import WAYS, failures, native_problem, without_opset_11
from support.torch_operations import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
SAMPLE = list(sampled_cases())
ALL = list(all_cases())

#: The exporter and the operation that it refuses -> the shapes, and a pattern of its reason.
REFUSALS: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {
    # Tensor.unfold of a tensor whose lengths are unknown.
    ("torchscript", "windows"): (SHAPES, "ONNX export of operator Unfold, input size"),
    # The steps of torch.linspace become constant. With other operations the export is not refused,
    # and the model fails in onnxruntime alone.
    ("dynamo", "linspace"): (("all",), "inferred a static shape of"),
}
MAX_REFUSED_SHARE = 0.04
_MOVED = "onnxruntime's transpose optimizer moves the Transpose of the grid before a node that pads"
_QUOTIENT = (
    "a Div computes the lengths of an image, which are then read from the image: the nodes that "
    "make it stay, and onnxruntime passes a fused node only what its nodes read"
)
#: The case -> why only a session fuses the nodes of its grid or its attention.
NOT_FUSED_BY_PROVIDER = {
    "layer_norm-expand_constant-affine-interpolate_to_half-torchscript-static": (
        "onnxruntime folds the Expand of an operand, which then has no spatial axes"
    ),
    "float64-pad_circular-twice-cumsum-torchscript-all": _MOVED,
    "cat-pad_replicate-volumes-topk_of_positions-dynamo-batch": _MOVED,
    "repeat-pad_circular-images-remainder-dynamo-static": _MOVED,
    "slice_columns_to_the_last-pad_by_negative-affine-normalize-dynamo-static": _MOVED,
    "sort-pad_constant-affine-cat_zeros-dynamo-batch": _MOVED,
    "valid_ratio-pad_reflect-images-clamp_min-dynamo-all": _MOVED,
    "pad_constant-interpolate_linear-attention-slice_with_start_and_step-dynamo-all": _QUOTIENT,
    "flip_columns-avg_pool-attention-pad_replicate-dynamo-all": _QUOTIENT,
    "repeat_interleave-convolution-attention-masked_fill-dynamo-all": _QUOTIENT,
    "transpose-expand_and_flatten-attention-cat-dynamo-all": _QUOTIENT,
}
#: The release of onnxruntime whose optimizations these rows describe.
RELEASE = "1.32"


def refusal_of(case: Case) -> str:
    """Return the pattern of the exporter's reason to refuse a case, or an empty string."""
    for operation in case.operations:
        shapes, pattern = REFUSALS.get((case.exporter, operation), ((), ""))
        if case.shapes in shapes:
            return pattern
    return ""


def assert_runs_in_all_ways(case: Case, folder: Path) -> None:
    """Export a case, and compare the outputs of all ways with PyTorch's."""
    runs = runs_of(case)
    try:
        model = exported(case)
    except Exception as error:
        reason = str(error.__cause__ or error)
        pattern = refusal_of(case)
        if pattern and re.search(pattern, reason):
            pytest.skip(f"the {case.exporter} exporter: {reason.splitlines()[0]}")
        raise
    # A difference in onnxruntime alone is a fault of the exporter, which no way can correct.
    problem = native_problem(model, runs)
    if problem and refusal_of(case):
        pytest.skip(f"the {case.exporter} exporter writes a wrong model: {problem.splitlines()[0]}")
    assert not problem
    assert not without_opset_11(failures(model, runs, folder))


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_exported_sample_has_the_outputs_of_pytorch(case: Case, tmp_path: Path) -> None:
    assert_runs_in_all_ways(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=needs_provider) for case in SAMPLE]
)
@pytest.mark.skipif(
    not versions.is_at_least(onnxruntime.__version__, RELEASE),
    reason=f"releases before {RELEASE} optimize graphs in other ways",
)
def test_session_and_provider_fuse_the_same_nodes_of_an_exported_sample(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        model = exported(case).SerializeToString()
    except Exception:
        if refusal_of(case):
            pytest.skip(f"the {case.exporter} exporter refuses it")
        raise
    session = fused_by_session(model)
    provider = fused_by_provider(model, monkeypatch)
    assert provider <= session
    assert (provider != session) == (str(case) in NOT_FUSED_BY_PROVIDER)


def test_each_row_of_the_provider_is_a_case_of_the_sample() -> None:
    assert {*NOT_FUSED_BY_PROVIDER} <= {*map(str, SAMPLE)}


@pytest.mark.sweep
@pytest.mark.parametrize("case", ALL, ids=str)
def test_exported_combination_has_the_outputs_of_pytorch(case: Case, tmp_path: Path) -> None:
    assert_runs_in_all_ways(case, tmp_path)


@pytest.mark.parametrize("place", range(3), ids=["on_image", "on_grid", "after"])
def test_sample_has_each_operation_once_in_each_place_with_each_exporter(place: int) -> None:
    counts = Counter((case.exporter, case.operations[place]) for case in SAMPLE)
    assert counts == {(exporter, name): 1 for exporter in EXPORTERS for name in OPERATIONS}


def test_sample_has_each_sampler_with_each_exporter_and_shapes() -> None:
    combinations = {(case.sampler, case.exporter, case.shapes) for case in SAMPLE}
    assert len(combinations) == len(SAMPLERS) * len(EXPORTERS) * len(SHAPES)


def test_sweep_has_each_operation_in_each_place_of_all_combinations() -> None:
    names = [
        (place, operation, case.sampler, case.exporter, case.shapes)
        for case in ALL
        for place, operation in enumerate(case.operations)
    ]
    places = 3
    assert len(set(names)) == len(names)
    assert len(names) == places * len(OPERATIONS) * len(SAMPLERS) * len(EXPORTERS) * len(SHAPES)


@pytest.mark.parametrize("cases", [SAMPLE, ALL], ids=["sample", "all"])
def test_few_cases_may_be_refused_by_an_exporter(cases: list[Case]) -> None:
    refused = [case for case in cases if refusal_of(case)]
    assert 0 < len(refused) <= MAX_REFUSED_SHARE * len(cases)


@pytest.mark.parametrize(("exporter", "operation"), REFUSALS)
def test_refused_operation_is_still_refused_by_the_exporter(exporter: str, operation: str) -> None:
    shapes, pattern = REFUSALS[exporter, operation]
    case = Case("nothing", operation, "images", "nothing", exporter, shapes[-1])
    with pytest.raises(Exception, match=pattern):
        exported(case)


def test_ways_include_sessions_files_primitives_and_the_provider() -> None:
    assert {"session", "file", "newest primitives", "oldest primitives"} <= set(WAYS)
