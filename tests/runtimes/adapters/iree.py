"""IREE, compiled for the CPU it runs on."""

import os
import subprocess
import sys

import iree.runtime

BIN = os.path.dirname(sys.executable)


def program(name, *arguments):
    done = subprocess.run([os.path.join(BIN, name), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr}")


def load(path, inputs, outputs):
    program("iree-import-onnx", path, "-o", f"{path}.mlir", "--opset-version", "17")
    flags = ["--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
    program("iree-compile", f"{path}.mlir", "-o", f"{path}.vmfb", *flags)
    config = iree.runtime.Config("local-sync")
    module = iree.runtime.VmModule.mmap(config.vm_instance, f"{path}.vmfb")
    context = iree.runtime.SystemContext(vm_modules=[module], config=config)
    (name,) = (
        name
        for name in module.function_names
        if not name.endswith("$async") and "__init" not in name
    )
    function = context.modules[module.name][name]

    def run(feed):
        answer = function(*feed.values())
        return [
            value.to_host() for value in (answer if isinstance(answer, (tuple, list)) else [answer])
        ]

    return run
