"""Compare the outputs of a runtime with the expected ones."""

import re
from dataclasses import dataclass

import numpy as np

from .trials import Arrays, Task
from .workers import Answer


@dataclass(frozen=True)
class Verdict:
    """The result of one cell.

    Attributes:
        kind: "right", "wrong" or "refused".
        error: the largest error, relative to the largest magnitude of the output.
        message: the runtime's message, what is wrong with its output, or a remark.
    """

    kind: str
    error: float = 0.0
    message: str = ""


def judge(task: Task, answer: Answer, tolerance: float) -> Verdict:
    """Compare an answer with the task, within a ``tolerance`` relative to the largest magnitude."""
    if answer.error:
        return Verdict("refused", message=shortened(answer.error))
    differences = [
        _difference(outputs, expected)
        for outputs, expected in zip(answer.outputs, task.expected, strict=True)
    ]
    error, reason = max(differences, key=lambda difference: difference[0])
    if error <= tolerance:
        return Verdict("right", error, answer.remark)
    first_error, _ = differences[0]
    if not reason and first_error <= tolerance:
        reason = "at the second shape only"
    return Verdict("wrong", error, reason)


def _difference(actual: Arrays, expected: Arrays) -> tuple[float, str]:
    """Return the largest relative error, and a reason if it is infinite."""
    worst = 0.0
    for name, value in expected.items():
        if name not in actual:
            return np.inf, f"no output {name}"
        if actual[name].shape != value.shape:
            return np.inf, f"{name} of shape {actual[name].shape}, not {value.shape}"
        finite = np.isfinite(value)
        a = actual[name].astype(np.float64)
        b = value.astype(np.float64)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return np.inf, f"{name} is not infinite where it should be"
        if not np.isfinite(a[finite]).all():
            return np.inf, f"{name} is not finite"
        scale = float(np.abs(b[finite]).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale)
    return worst, ""


#: Lines, and parts of lines, of runtimes' messages that have no information.
NOISE_LINES = re.compile(
    r".*it/s.*"  # progress
    r"|\[\s*(ERROR|WARN|INFO):\d.*|[IWD] .*|INFO:.*"  # logs
    r"|(Start to |inputTensors|outputTensors|The device supports).*"  # MNN
    r"|\[\d\d:\d\d:\d\d\] :4[67]:.*"  # MNN
    r"|(Exception from |Check 'false' failed|FrontEnd API|Failed operations).*"  # OpenVINO
    r"|(Summary:|Model wasn't fully).*"  # OpenVINO
    r'|File ".*|[\^~ ]+|>'  # tracebacks
)
NOISE = re.compile(
    r"\x1b\[[\d;]*m"
    r"|OpenCV\([\d.]+\) \S+:\d+: error:|\(-\d+:Unspecified error\)|in function 'handleNode'"
    r"|\[ONNXRuntimeError\] : \d+ :|Non-zero status code returned while "
    r"|/\S+:\d+ (\w+ )*onnxruntime::.*?\) (const )?"
)


def shortened(message: str, length: int = 240) -> str:
    """Return a message in one line, without uninformative parts and paths."""
    message = NOISE.sub("", re.split("stack backtrace", message, flags=re.IGNORECASE)[0])
    lines = [line.strip() for line in message.splitlines()]
    text = " ".join(line for line in lines if not NOISE_LINES.fullmatch(line))
    text = re.sub(r"(\.{0,2}/[\w.+@-]+){2,}/?(:\d+)*", "…", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "", re.sub(r"\s+", " ", text)).strip()
    return text if len(text) <= length else f"{text[: length - 1]}…"
