"""Run a model on onnxruntime's WebGPU provider, and remark which nodes the CPU runs.

The GPU is SwiftShader, from a Chromium from npm.
"""

import collections
import ctypes
import functools
import io
import json
import os
import sys
import tarfile

import brotli

ENVIRONMENT = os.path.dirname(os.path.dirname(sys.executable))
SWIFTSHADER = os.path.join(ENVIRONMENT, "swiftshader")

if not os.path.exists(SWIFTSHADER):
    packed = os.path.join(
        ENVIRONMENT, "node_modules", "@sparticuz", "chromium", "bin", "swiftshader.tar.br"
    )
    with (
        open(packed, "rb") as file,
        tarfile.open(fileobj=io.BytesIO(brotli.decompress(file.read()))) as archive,
    ):
        archive.extractall(SWIFTSHADER, filter="data")
os.environ["VK_ICD_FILENAMES"] = os.path.join(SWIFTSHADER, "vk_swiftshader_icd.json")
ctypes.CDLL(os.path.join(SWIFTSHADER, "libvulkan.so.1"), ctypes.RTLD_GLOBAL)

import onnxruntime  # noqa: E402


def load(path, inputs, outputs):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = path
    session = onnxruntime.InferenceSession(path, options, providers=["WebGpuExecutionProvider"])
    if "WebGpuExecutionProvider" not in session.get_providers():
        raise RuntimeError("no WebGPU adapter")
    run = functools.partial(session.run, outputs)

    def remark():
        with open(session.end_profiling()) as file:
            events = [event.get("args", {}) for event in json.load(file)]
        nodes = {
            (e["op_name"], e.get("node_index"))
            for e in events
            if e.get("provider") == "CPUExecutionProvider"
        }
        counts = collections.Counter(op for op, _ in nodes if not op.startswith("Memcpy"))
        return (
            "on the CPU: " + ", ".join(f"{n} {op}" for op, n in sorted(counts.items()))
            if counts
            else ""
        )

    run.remark = remark
    return run
