"""Whether an answer is right."""

import re
from dataclasses import dataclass

import numpy as np

from .trials import Arrays, Task
from .workers import Answer


@dataclass(frozen=True)
class Verdict:
    """A cell of the matrix; where there was an answer, its greatest error as a share of the greatest magnitude."""

    kind: str  # "right", "wrong" or "refused"
    error: float = 0.0
    message: str = ""  # what the runtime said, how its answer is no answer, or what to remark about a right one


def judge(task: Task, answer: Answer, tolerance: float) -> Verdict:
    """What the answer to a task is worth; ``tolerance`` is a share of the output's greatest magnitude."""
    if answer.error:
        return Verdict("refused", message=shortened(answer.error))
    found = [_difference(a, b) for a, b in zip(answer.outputs, task.expected, strict=True)]
    error, why = max(found, key=lambda each: each[0])
    if error <= tolerance:
        return Verdict("right", error, answer.remark)
    if not why and found[0][0] <= tolerance:
        why = "at the second shape only"
    return Verdict("wrong", error, why)


def _difference(actual: Arrays, expected: Arrays) -> tuple[float, str]:
    """The greatest one, infinite where it is no number, and then why."""
    worst = 0.0
    for name, value in expected.items():
        if name not in actual:
            return np.inf, f"no output {name}"
        if actual[name].shape != value.shape:
            return np.inf, f"{name} of shape {actual[name].shape}, not {value.shape}"
        finite = np.isfinite(value)
        a, b = actual[name].astype(np.float64), value.astype(np.float64)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return np.inf, f"{name} is not infinite where it should be"
        if not np.isfinite(a[finite]).all():
            return np.inf, f"{name} is not finite"
        scale = float(np.abs(b[finite]).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale)
    return worst, ""


#: What says nothing in what runtimes print: whole lines, and parts of lines.
NOISE_LINES = re.compile(
    r".*it/s.*"  # progress
    r"|\[\s*(ERROR|WARN|INFO):\d.*|[IWD] .*|INFO:.*"  # logs
    r"|(Start to |inputTensors|outputTensors|The device supports).*|\[\d\d:\d\d:\d\d\] :4[67]:.*"  # MNN
    r"|(Exception from |Check 'false' failed|FrontEnd API|Failed operations|Summary:|Model wasn't fully).*"
    r'|File ".*|[\^~ ]+|>'  # tracebacks
)
NOISE = re.compile(
    r"\x1b\[[\d;]*m"
    r"|OpenCV\([\d.]+\) \S+:\d+: error:|\(-\d+:Unspecified error\)|in function 'handleNode'"
    r"|\[ONNXRuntimeError\] : \d+ :|Non-zero status code returned while "
    r"|/\S+:\d+ (\w+ )*onnxruntime::.*?\) (const )?"
)


def shortened(message: str, length: int = 240) -> str:
    """What matters of a runtime's message: in one line, without places of files."""
    message = NOISE.sub("", re.split("stack backtrace", message, flags=re.IGNORECASE)[0])
    lines = [line.strip() for line in message.splitlines()]
    text = " ".join(line for line in lines if not NOISE_LINES.fullmatch(line))
    text = re.sub(r"(\.{0,2}/[\w.+@-]+){2,}/?(:\d+)*", "…", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "", re.sub(r"\s+", " ", text)).strip()
    return text if len(text) <= length else f"{text[: length - 1]}…"
