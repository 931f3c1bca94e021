"""Too little memory is an exception, and nothing leaks."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample.system import cgroups, cpus, memory
from support import faults
from support.compare import refusal
from support.parameters import with_slow
from support.paths import needs_provider, needs_python_ops
from support.processes import (
    COMPILED_OPENERS,
    OPENERS,
    run_json_program,
    run_on_openers,
    run_program,
)

Y_SHAPE = [1, 2, 64, 64]
#: onnxruntime's error if it cannot allocate an output.
ALLOCATION_ERROR = "Failed to allocate memory"
#: The free MiB at which one allocation after the other fails, for feeds of run_without_memory.py.
FREE_MIB = {"output": (30, 75, 110, 130), "grid": (75, 110, 140, 160, 190)}


def run_without_memory(opener: str, large_array: str, free_mib: Sequence[int]) -> list[str]:
    """Return the result of each run, after each of which a small run must succeed."""
    arguments = [opener, large_array, *map(str, free_mib)]
    results = run_json_program("run_without_memory.py", *arguments)
    assert [next_result for _, next_result in results] == [Y_SHAPE] * len(free_mib)
    return [str(result) for result, _ in results]


@with_slow("opener", OPENERS, ("open_session", "open_compiled"))
@pytest.mark.parametrize("large_array", ["output", pytest.param("grid", marks=pytest.mark.slow)])
def test_run_without_memory_raises_and_session_runs_on(opener: str, large_array: str) -> None:
    is_compiled = opener in COMPILED_OPENERS
    free_mib = FREE_MIB[large_array]
    if is_compiled:  # compiled ops copy nothing, so less memory is enough
        free_mib = (5, *(size for size in free_mib if size < 64 or not faults.OUTPUT_CRASHES))
    results = run_without_memory(opener, large_array, free_mib)
    errors = [result for result in results if not result.startswith("[1, ")]
    assert errors
    messages = ("MemoryError", "rejected", *([ALLOCATION_ERROR] if is_compiled else []))
    for error in errors:
        assert any(message in error for message in messages)


FIRST_ERRORS = {
    "memory": r"GridSample node 'sample0': memory is exhausted, expected \d{8} free bytes for "
    "scratch memory",
    "shape": "GridSample node 'sample0': grid is of shape .*, expected N = .* in axis 0, "
    "as X is of shape .*",
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize("error", FIRST_ERRORS)
@pytest.mark.parametrize(
    "opener",
    [
        *COMPILED_OPENERS,
        pytest.param("open_provider", marks=needs_provider),
    ],
)
def test_first_error_of_a_process_without_memory_names_the_node(error: str, opener: str) -> None:
    message, standard_error = run_json_program("first_error_without_memory.py", error, opener)
    assert re.search(FIRST_ERRORS[error], message)
    assert message.isprintable()
    assert "Traceback" not in standard_error
    assert "Exception ignored" not in standard_error


@needs_python_ops
@pytest.mark.parametrize(("large_array", "free_mib"), [("X", 30), ("broadcast X", 100)])
def test_python_op_without_memory_for_copy_of_feed_raises(large_array: str, free_mib: int) -> None:
    (error,) = run_without_memory("open_session", large_array, [free_mib])
    assert re.fullmatch(
        r"MemoryError: memory is exhausted, expected \d{8,9} free bytes for copies of the inputs "
        "'X', 'grid'",
        error,
    )


@needs_python_ops
def test_run_async_without_memory_for_copy_of_feed_raises() -> None:
    (error,) = run_program("run_async_without_memory.py")
    assert error.startswith("MemoryError:")


@pytest.mark.parametrize(
    ("array", "size"),
    [(np.zeros((2, 3), np.int16), 12), (np.array(["a", "b"], object), 128)],
    ids=["int16", "strings"],
)
def test_copied_bytes_are_those_of_a_copy(array: np.ndarray, size: int) -> None:
    assert memory.copied_bytes(array) == size


def test_probe_raises_only_if_memory_cannot_be_allocated() -> None:
    memory.check_allocatable(1 << 21)
    with pytest.raises(MemoryError):
        memory.check_allocatable(1 << 60)


@pytest.mark.parametrize("text", ["too little", ""])
@pytest.mark.parametrize(
    ("core_function", "call"),
    [
        (
            "ort_gridsample.functions.sampling.load_core",
            lambda where: ogs.grid_sample(np.ones((1, 1, 2)), np.zeros((1, 2, 1)), where=where),
        ),
        (
            "ort_gridsample.functions.affine.affine.affine_grid",
            lambda where: ogs.affine_grid(np.ones((1, 2, 3)), (1, 1, 2, 2), where=where),
        ),
        (
            "ort_gridsample.functions.attention.load_core",
            lambda where: ogs.deformable_attention(
                np.ones((1, 4, 1, 1)),
                np.array([[2, 2]]),
                np.zeros((1, 1, 1, 1, 1, 2)),
                np.ones((1, 1, 1, 1, 1)),
                where=where,
            ),
        ),
    ],
)
def test_function_without_memory_names_itself(
    core_function: str,
    call: Callable[[str], np.ndarray],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_function, Mock(side_effect=MemoryError(text)))
    with pytest.raises(MemoryError) as raised:
        call("the node")
    assert str(raised.value) == f"the node: {text or 'not enough memory'}"


HUGE_SIZES = [
    [1, 1, 1 << 40, 1],
    [1, 1, 1 << 31, 1 << 31],
    [1, 1, 1 << 62, 1 << 62],
    [1, 1, (1 << 63) - 1, 2],
    [1, 1, -1, 4],
    [],
    [1],
    [1] * 100,
    [1 << 40, 1, 2, 2],
    [1, 1 << 62, 1 << 20, 1 << 20],
]


def test_affine_grid_of_size_beyond_memory_is_refused() -> None:
    node = "AffineGrid node with output 'grid'"
    sizes = json.dumps([*HUGE_SIZES, [1, 1, 2, 3]])
    results = run_on_openers("huge_affine_grids.py", sizes)
    for opener, (*errors, right_shape) in results.items():
        messages = [
            f"rejected the input of {node}" if opener == "open_patched_file" else f"{node}: "
        ]
        if opener in COMPILED_OPENERS:  # onnxruntime allocates the output
            messages.append(ALLOCATION_ERROR)
            assert any(ALLOCATION_ERROR in error for error in errors)
        assert len(errors) == len(HUGE_SIZES)
        for error in errors:
            assert any(message in error for message in messages), (opener, error)
        assert right_shape == [1, 2, 3, 2]


@pytest.mark.parametrize("shape", [(1, 1, 1 << 40), (1, 1 << 40, 3), (1, 1, 1 << 33)])
def test_grid_sample_of_X_beyond_memory_is_refused(shape: tuple[int, ...]) -> None:  # noqa: N802
    X = np.broadcast_to(np.float64(1), shape)
    error = refusal(ogs.grid_sample, X, np.zeros((1, 4096, 1)))
    assert error.argument in ("X", "Y")
    assert re.fullmatch(r"of shape \(.*\) and \d+ bytes", error.found)
    assert error.expected.startswith("at most")


def test_grid_sample_of_Y_beyond_memory_is_refused() -> None:  # noqa: N802
    grid = np.broadcast_to(0.0, (1, 1 << 41, 1))
    assert refusal(ogs.grid_sample, np.ones((1, 1, 4)), grid).argument == "Y"


def test_available_memory_is_plausible() -> None:
    available = memory.available()
    assert available is None or 1 << 24 < available < 1 << 48


def test_results_within_available_memory_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1 << 30)
    assert ogs.affine_grid(np.eye(2, 3)[None], (1, 1, 2, 2)).shape == (1, 2, 2, 2)
    Y = ogs.grid_sample(np.ones((1, 1, 2), np.float32), np.zeros((1, 1 << 10, 1), np.float32))
    assert Y.shape == (1, 1, 1 << 10)


def test_result_beyond_available_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1 << 30)
    grid = np.broadcast_to(0.0, (1, 1 << 28, 1))
    error = refusal(ogs.grid_sample, np.ones((1, 1, 2)), grid)
    assert "at most 1073741824 bytes, the memory that is left" in str(error)


@pytest.mark.parametrize(
    ("argument", "function", "arguments"),
    [
        (
            "Y",
            ogs.grid_sample,
            (np.zeros((1, 0, 4), complex), np.broadcast_to(np.float16(0), (1, 1 << 60, 1))),
        ),
        ("grid", ogs.affine_grid, (np.zeros((0, 2, 3)), (0, 1, 1 << 40, 1 << 40))),
    ],
    ids=["grid_sample", "affine_grid"],
)
def test_empty_result_with_axes_too_long_for_numpy_is_refused(
    argument: str, function: object, arguments: tuple[object, ...]
) -> None:
    """NumPy multiplies all axes of an empty array except the empty ones."""
    error = refusal(function, *arguments)
    assert error.argument == argument
    assert "bytes" in error.found
    assert error.expected.startswith("fewer bytes than an address")


def test_empty_result_with_axes_beyond_memory_is_computed() -> None:
    lengths = (1 << 17,) * 3
    assert ogs.affine_grid(np.zeros((0, 3, 4)), (0, 1, *lengths)).shape == (0, *lengths, 3)


#: The files with the limit, the usage and the statistics, and the memory that is available.
CONTROL_GROUPS = {
    "limit": ("1000\n", "400\n", None, 600),
    "usage over the limit": ("1000\n", "4000\n", None, 0),
    "no limit": ("max\n", "400\n", None, None),
    "no limit file": (None, "400\n", None, None),
    "inactive files": (
        "1000\n",
        "990\n",
        "anon 90\ninactive_file 700\nfile 900\n",
        710,
    ),
    "inactive files of nested groups": (
        "1000\n",
        "990\n",
        "inactive_file 7\ntotal_inactive_file 700\n",
        710,
    ),
    "more inactive files than usage": ("1000\n", "400\n", "inactive_file 700\n", 1000),
    "inactive files without a number": ("1000\n", "400\n", "inactive_file\n", 600),
}


@pytest.mark.parametrize("group", CONTROL_GROUPS)
def test_available_memory_is_limited_by_control_groups(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *texts, available = CONTROL_GROUPS[group]
    inner_group = tmp_path / "inner"
    inner_group.mkdir()
    names = ("memory.max", "memory.current", "memory.stat")
    for name, text in zip(names, texts, strict=True):
        if text is not None:
            (inner_group / name).write_text(text)
    monkeypatch.setattr(memory, "group_folders", lambda controller: [])
    available_without_groups = memory.available()
    monkeypatch.setattr(memory, "group_folders", lambda controller: [inner_group])
    if available is None:
        assert (memory.available() is None) == (available_without_groups is None)
    else:
        assert memory.available() == available
    (tmp_path / "memory.limit_in_bytes").write_text("5000000")
    (tmp_path / "memory.usage_in_bytes").write_text("0")
    monkeypatch.setattr(memory, "group_folders", lambda controller: [tmp_path, inner_group])
    assert memory.available() == (5000000 if available is None else available)


@pytest.mark.parametrize(
    ("text", "available"),
    [
        (None, None),
        ("MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 2 kB\n", 7 << 10),
        ("MemTotal: 9 kB\n", None),
        ("no number\n", None),
    ],
    ids=["no file", "available and swap", "total", "no number"],
)
def test_available_memory_is_that_of_meminfo_with_swap(
    text: str | None, available: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "group_folders", lambda controller: [])
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert memory.available() == available


@pytest.fixture
def group_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the mount of control groups; the process is in /outer/inner of both versions."""
    groups_file = tmp_path / "groups"
    groups_file.write_text("4:memory:/outer/inner\n2:cpu,cpuacct:/outer/inner\n0::/outer/inner\n")
    monkeypatch.setattr(cgroups, "GROUPS_FILE", groups_file)
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    for hierarchy in ("", "memory", "cpu"):
        (tmp_path / hierarchy / "outer" / "inner").mkdir(parents=True)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    cpus._cpu_quota.cache_clear()
    yield tmp_path
    cpus._cpu_quota.cache_clear()


@pytest.mark.parametrize("folder", ["", "outer", "outer/inner"])
def test_available_memory_is_limited_by_every_group_around_the_process(
    folder: str, group_tree: Path
) -> None:
    assert memory.available() is None
    (group_tree / folder / "memory.max").write_text("5000")
    (group_tree / folder / "memory.current").write_text("1000")
    assert memory.available() == 4000
    (group_tree / "memory" / folder / "memory.limit_in_bytes").write_text("3000")
    (group_tree / "memory" / folder / "memory.usage_in_bytes").write_text("1000")
    assert memory.available() == 2000


@pytest.mark.parametrize("folder", ["", "outer", "outer/inner"])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu.max": "9000000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_available_cpus_are_limited_by_every_group_around_the_process(
    folder: str,
    files: dict[str, str],
    expected: int,
    group_tree: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        path = group_tree / name
        (path.parent / folder / path.name).write_text(text)
    assert cpus.available_cpus() == expected


def test_groups_outside_of_the_container_are_not_read(group_tree: Path) -> None:
    cgroups.GROUPS_FILE.write_text("0::/../other\n")
    assert cgroups.group_folders("memory") == [group_tree, group_tree / "memory"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has file names of any bytes")
def test_group_whose_name_is_not_utf_8_is_listed(group_tree: Path) -> None:
    cgroups.GROUPS_FILE.write_bytes(b"0::/\xff\n")
    assert cgroups.group_folders("memory")[-1] == group_tree / os.fsdecode(b"\xff")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has control groups")
@pytest.mark.parametrize("name", ["a\rb", "a\x0bb", "a\x1cb", "a\x85b", "a\u2028b"])
def test_group_whose_name_has_a_line_separator_of_unicode_is_listed(
    name: str, group_tree: Path
) -> None:
    cgroups.GROUPS_FILE.write_bytes(f"0::/{name}\n".encode())
    assert cgroups.group_folders("memory")[-1] == group_tree / name


@pytest.mark.slow
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_no_memory_to_compile_or_load_a_kernel_raises(is_on_disk: bool, tmp_path: Path) -> None:
    """LLVM would end the process."""
    pytest.importorskip("numba")
    env = {"NUMBA_CACHE_DIR": str(tmp_path)}
    if is_on_disk:
        assert run_program("compile_without_memory.py", "unlimited", env=env) == ["(1, 20, 4, 4)"]
    lines = run_program("compile_without_memory.py", "limited", env=env)
    assert lines == ["MemoryError", "(1, 20, 4, 4)"]


QUICK_RUNS = [("open_session", 1500)]


@with_slow("opener,count", [*QUICK_RUNS, *((opener, 10_000) for opener in OPENERS)], QUICK_RUNS)
def test_many_runs_leak_no_memory(opener: str, count: int) -> None:
    (gained_mib,) = run_program("memory_of_runs.py", opener, str(count))
    # The allocator's own variation is below 4 MiB; each run has an output of 512 bytes.
    assert float(gained_mib) < 4
