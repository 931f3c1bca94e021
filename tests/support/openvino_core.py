"""OpenVINO's core for all tests of a process."""

from functools import cache
from typing import Any

import pytest


@cache
def openvino_core() -> Any:
    """Return OpenVINO's core, which is never freed; skip the test without OpenVINO.

    A core sets an alternate stack for signals, and restores the previous one when it is freed
    (OpenVINO 2026.4). If another core was created in the meantime, the process is left with the
    stack of a core that was freed before. The next signal with a handler in Python, such as Ctrl-C
    or an alarm, then ends the process with SIGSEGV.
    """
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not a dependency of the tests")
    return openvino.Core()
