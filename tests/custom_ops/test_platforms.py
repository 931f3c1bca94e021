"""The package where Python lacks what it lacks on Windows and macOS."""

from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from support.paths import needs_python_ops
from support.processes import run_json_program


@needs_python_ops
def test_windows_without_linker_runs_python_ops_and_defers_interrupts() -> None:
    """SIGINT is one of six signals there."""
    reason = (
        "compiled ops cannot be registered: this system needs a linker for it: install cc, or "
        "the package ziglang, which links for every machine: pip install ziglang"
    )
    if unavailable_reason().startswith("Numba"):
        reason = unavailable_reason()
    results = run_json_program("windows_without_linker.py")
    assert results["default ops"] == "python"
    assert results["reason"] == reason
    assert results["placement"] == ["Python op", reason]
    assert results["shape"] == [1, 2, 64, 64]
    assert results["set_ops"] == f"ImportError: compiled ops are unavailable: {reason}"
    assert results["interrupted run"] == ["KeyboardInterrupt", True]


def test_macos_uses_threads() -> None:
    """Without a list of the process' processors, and without files about memory."""
    results = run_json_program("macos_threads.py")
    assert results["uses all processors"]
    assert results["available memory"] is None
    assert results["function"] == [2, 8, 64, 64]
    assert results["session"] == [1, 2, 64, 64]
