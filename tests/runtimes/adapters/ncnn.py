"""ncnn, after pnnx has converted the ONNX model for inputs of the shapes that come first."""

import importlib.util
import os
import subprocess

import ncnn
import numpy as np

PNNX = os.path.join(os.path.dirname(importlib.util.find_spec("pnnx").origin), "pnnx")
TYPES = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32"}


def shapes(feed):
    return ",".join(
        str(list(value.shape)).replace(" ", "") + TYPES[value.dtype.name] for value in feed.values()
    )


def ranks(path):
    """Return the numbers of axes of the outputs, which pnnx states."""
    with open(path) as file:
        values = [line.rsplit("=", 1)[1] for line in file if line.startswith("pnnx.Output")]
    return [value.partition(")")[0].count(",") + 1 for value in values]


def load(path, inputs, outputs):
    command = [PNNX, path, f"inputshape={shapes(inputs)}", "fp16=0"]
    done = subprocess.run(command, cwd=os.path.dirname(path), capture_output=True, text=True)
    base = os.path.splitext(path)[0]
    if done.returncode or not os.path.exists(f"{base}.ncnn.param"):
        raise RuntimeError(
            f"pnnx: exit status {done.returncode} {(done.stdout + done.stderr)[-1000:]}"
        )
    said = [line.split() for line in (done.stdout + done.stderr).splitlines()]
    ignored = ", ".join(
        sorted({words[1] for words in said if len(words) > 1 and words[0] == "ignore"})
    )
    n_axes = ranks(f"{base}.pnnx.param")
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = False
    net.opt.num_threads = int(os.environ.get("OMP_NUM_THREADS", net.opt.num_threads))
    if net.load_param(f"{base}.ncnn.param") or net.load_model(f"{base}.ncnn.bin"):
        raise RuntimeError(f"ncnn has no {ignored}")

    def run(feed):
        with net.create_extractor() as extractor:
            for i, value in enumerate(feed.values()):  # ncnn has no batch axis
                extractor.input(f"in{i}", ncnn.Mat(np.ascontiguousarray(value[0])).clone())
            answers = []
            for i in range(len(outputs)):
                status, answer = extractor.extract(f"out{i}")
                if status:
                    raise RuntimeError(f"ncnn: status {status} at out{i}; it has no {ignored}")
                answer = np.array(answer)
                # Some values keep the first axes that have the length 1, as that of the batch.
                answers.append(answer.reshape(*[1] * (n_axes[i] - answer.ndim), *answer.shape))
        return answers

    return run
