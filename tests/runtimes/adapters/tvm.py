"""TVM: the Relax importer and virtual machine, on the CPU."""

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def load(path, inputs, outputs):
    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    module = relax.transform.LegalizeOps()(module)
    machine = relax.VirtualMachine(relax.build(module, target="llvm"), tvm.cpu())

    def run(feed):
        answer = machine["main"](*(tvm.runtime.tensor(value, tvm.cpu()) for value in feed.values()))
        return [value.numpy() for value in ([answer] if hasattr(answer, "numpy") else answer)]

    return run
