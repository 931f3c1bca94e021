"""Published architectures, from PyTorch's exporters through every way of this package."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.onnx.symbolic_helper", reason="this PyTorch has no older exporter")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs onnxscript")

import torch

from support.architectures import ARCHITECTURES, batched
from support.torch_exporters import (
    EXPORTERS,
    OPSET,
    expected_run,
    export,
    failures,
    native_problem,
    without_opset_11,
)

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
#: The exporter and the architecture that it refuses -> a pattern of its reason.
REFUSALS = {
    ("torchscript", "cond_if"): "torch.jit.trace a dynamo-optimized function",
    ("torchscript", "raft_scan"): "torch.jit.trace a dynamo-optimized function",
    ("torchscript", "liif"): "Exporting the operator 'aten::mT'",
    ("torchscript", "rf_detr"): "Exporting the operator 'aten::_upsample_bicubic2d_aa'",
    ("dynamo", "ic_stn_loop"): "Exporting a ScriptModule is not supported",
    ("dynamo", "grounding_dino"): "aten._is_all_true",
    ("dynamo", "rt_detr_v2"): "aten._is_all_true",
    ("dynamo", "d_fine"): "aten._is_all_true",
    ("dynamo", "raft_scan"): "'SymInt' object has no attribute 'unsqueeze'",  # a dynamic batch
}
NO_KERNEL = "NotImplemented: .* Could not find an implementation"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shapes", ["static", "batch"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_architecture_has_the_outputs_of_pytorch(
    name: str, exporter: str, shapes: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]()
    inputs = [architecture.inputs]
    if shapes == "batch":
        if not architecture.has_batch:
            pytest.skip("the module has a constant batch")
        inputs = [batched(architecture, 2), batched(architecture, 3)]
    runs = [expected_run(architecture.module, [*values.values()]) for values in inputs]
    axes = dict.fromkeys(architecture.inputs, [0] if shapes == "batch" else [])
    opset = architecture.opsets.get(exporter, OPSET)
    arguments = [*inputs[0].values()]
    try:
        model = export(architecture.module, arguments, axes, exporter, opset=opset)
    except Exception as error:
        reason = str(error.__cause__ or error)
        pattern = REFUSALS.get((exporter, name))
        if pattern and re.search(pattern, reason):
            pytest.skip(f"the {exporter} exporter: {reason.splitlines()[0]}")
        raise
    # A difference in onnxruntime alone is a fault of the exporter, which no way can correct. It
    # has no kernels for some types.
    problem = native_problem(model, runs)
    assert not problem or re.match(NO_KERNEL, problem)
    assert not without_opset_11(failures(model, runs, tmp_path, random=False))
