"""Whether an answer is right."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .trials import Arrays, Task
from .workers import Answer


@dataclass(frozen=True)
class Verdict:
    """A cell of the matrix.

    Attributes:
        kind: ``"right"``, ``"wrong"`` or ``"refused"``.
        error: the greatest difference as a share of the output's greatest magnitude, where there was an answer.
        message: what the runtime said, how its answer is no answer, or what is to be remarked about a right one.
    """

    kind: str
    error: float = 0.0
    message: str = ""

    def __str__(self) -> str:
        return {"right": "✓", "wrong": f"wrong by {self.error:.2g}", "refused": "✗"}[self.kind]


def judge(task: Task, answer: Answer, tolerance: float) -> Verdict:
    """What the answer to a task is worth; ``tolerance`` is a share of the output's greatest magnitude."""
    if answer.error:
        return Verdict("refused", message=shortened(answer.error))
    found = [_difference(a, b) for a, b in zip(answer.outputs, task.expected, strict=True)]
    messages = [each for each in found if isinstance(each, str)]
    if messages:
        return Verdict("wrong", np.inf, messages[0])
    error = max(each for each in found if not isinstance(each, str))
    if error <= tolerance:
        return Verdict("right", error, answer.remark)
    return Verdict("wrong", error, "" if len(found) == 1 or found[0] > tolerance else "at the second shape only")


def _difference(actual: Arrays, expected: Arrays) -> float | str:
    worst = 0.0
    for name, value in expected.items():
        if name not in actual:
            return f"no output {name}"
        if actual[name].shape != value.shape:
            return f"{name} of shape {actual[name].shape}, not {value.shape}"
        finite = np.isfinite(value)
        a, b = actual[name].astype(np.float64), value.astype(np.float64)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return f"{name} is not infinite where it should be"
        if not np.isfinite(a[finite]).all():
            return f"{name} is not finite"
        scale = float(np.abs(b[finite]).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale)
    return worst


#: What says nothing in what runtimes print: backtraces, progress, where in their own sources they were.
NOISE = re.compile(
    r"""(?:"""
    r"""stack\ backtrace:.*"""
    r"""|\x1b\[[\d;]*m"""
    r"""|^.*\d+(?:\.\d+)?it/s.*$|^.*\?it/s.*$"""
    r"""|^(?:Start\ to\ |inputTensors|outputTensors|The\ device\ supports|\[\d\d:\d\d:\d\d\]\ :4[67]:).*$"""
    r"""|^\[\s*(?:ERROR|WARN|INFO):\d.*$|^[IWD]\ .*$|^INFO:.*$"""
    r"""|^(?:Exception\ from\ |Check\ 'false'\ failed|FrontEnd\ API\ failed|Failed\ operations\ detailed|Summary:).*$"""
    r"""|^Model\ wasn't\ fully.*$|^\s+File\ ".*$|^\s+[\^~]+\s*$"""
    r"""|OpenCV\([\d.]+\)\ \S+:\d+:\ error:|\(-\d+:Unspecified\ error\)|in\ function\ 'handleNode'|error:\s+(?=error:)"""
    r"""|\[ONNXRuntimeError\]\ :\ \d+\ :|Non-zero\ status\ code\ returned\ while\ |(?<=Status\ Message:)\ \S+:\d+\ .*?\)(?:\ const)?(?:\ \[[^]]*\])?"""
    r""")""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)


def shortened(message: str, length: int = 240) -> str:
    """What matters of a runtime's message: in one line, without places of files."""
    message = message.split("Stack backtrace")[0].split("stack backtrace")[0]
    lines = [line.strip() for line in NOISE.sub("", message).splitlines()]
    text = " ".join(line for line in lines if line.strip(" >:"))
    text = re.sub(r"(\.{0,2}/[\w.+@-]+){2,}/?(:\d+)*", "…", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "", re.sub(r"\s+", " ", text))
    return text if len(text) <= length else f"{text[: length - 1]}…"
