"""What a feed claims is checked before it is taken, what cannot be taken is an exception, and nothing is kept."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import ort_gridsample as ogs
from conftest import with_slow
from ort_gridsample.reference import memory
from support import faults
from support.compare import refusal
from support.paths import needs_python_ops
from support.processes import COMPILED, WAYS, python, run, run_each

#: Lets the process address so many bytes more than it does, or any number.
LIMIT = """
import resource
def limit(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    soft = resource.RLIM_INFINITY if more is None else pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
"""
NO_ROOM = "Failed to allocate memory"
#: Feeds of 64 MiB into the core, and out of it; and the free bytes at which one step after the other fails.
LARGE = {
    "answer": (
        "np.ones((1, 64, 8, 8), np.float32), np.zeros((1, 512, 512, 2), np.float32)",
        (30, 75, 110, 130),
    ),
    "grid": ("X, np.zeros((1, 4096, 2048, 2), np.float32)", (75, 110, 140, 160, 190)),
}


@with_slow("open_model", WAYS, ("open_session", "open_compiled"))
@pytest.mark.parametrize("feeds", ["answer", pytest.param("grid", marks=pytest.mark.slow)])
def test_no_memory_is_an_exception_and_the_session_goes_on(open_model: str, feeds: str) -> None:
    large, megabytes = LARGE[feeds]
    if open_model in COMPILED:  # which copy nothing
        megabytes = (5, *(size for size in megabytes if size < 64 or not faults.OUTPUT_CRASHES))
    script = f"""{LIMIT}
for megabytes in {megabytes}:
    session, large = make(open_model), ({large})
    attempt(session, X, grid)
    limit(megabytes << 20)
    print(attempt(session, *large))
    limit(None)
    print(attempt(session, X, grid))
"""
    answers = run(script, open_model)
    first, again = answers[::2], answers[1::2]
    words = ("MemoryError", "rejected", NO_ROOM if open_model in COMPILED else "rejected", "(1, ")
    assert all(any(word in each for word in words) for each in first), first
    assert any("(1, " not in each for each in first)
    assert again == ["(1, 2, 64, 64)"] * len(megabytes)


@needs_python_ops
def test_no_memory_for_an_ops_copy_of_a_feed_is_an_exception() -> None:
    """A feed of 64 MiB that is copied once, and one that onnxruntime makes contiguous first."""
    script = f"""{LIMIT}
session = make(open_model)
attempt(session, X, grid)
once, twice = np.ones((1, 4, 2048, 2048), np.float32), np.broadcast_to(np.float32(1), (1, 4, 2048, 2048))
for large, megabytes in ((once, 30), (twice, 100)):
    limit(megabytes << 20)
    print(attempt(session, large, grid).partition(":")[0], attempt(session, X, grid))
    limit(None)
"""
    assert run(script, "open_session") == ["MemoryError (1, 2, 64, 64)"] * 2
    # What a copy takes is what is asked for.
    copied = [
        memory.copied_bytes(each)
        for each in (np.zeros((2, 3), np.int16), np.array(["a", "b"], object))
    ]
    assert copied == [12, 128]
    memory.probe(1 << 21)
    with pytest.raises(MemoryError):
        memory.probe(1 << 60)


HUGE_SIZES = [
    *(
        [1, 1, 1 << 40, 1],
        [1, 1, 1 << 31, 1 << 31],
        [1, 1, 1 << 62, 1 << 62],
        [1, 1, (1 << 63) - 1, 2],
        [1, 1, -1, 4],
    ),
    *([], [1], [1] * 100, [1 << 40, 1, 2, 2], [1, 1 << 62, 1 << 20, 1 << 20]),
]


def test_sizes_that_no_machine_has_are_refused() -> None:
    script = f"""
from support.models import affine_grid_model
model = affine_grid_model("float32", 2, False)
model.graph.input[1].type.tensor_type.ClearField("shape")
session = open_model(model)
theta = np.ones((1, 2, 3), np.float32)
for size in {[*HUGE_SIZES, [1, 1, 2, 3]]}:
    print(told(lambda: session.run(None, {{"theta": theta, "size": np.array(size, np.int64)}})[0].shape))
"""
    node = "AffineGrid node '(grid)'"
    for way, (*answers, right) in run_each(script).items():
        word = f"rejected the input of {node}" if way == "open_patched_file" else f"{node}: "
        assert len(answers) == len(HUGE_SIZES)
        if way in COMPILED:  # whose output onnxruntime makes
            assert any(NO_ROOM in answer for answer in answers)
            answers = [answer.replace(NO_ROOM, word) for answer in answers]
        assert all(word in answer for answer in answers), (way, answers)
        assert right == "(1, 2, 3, 2)"


@pytest.mark.parametrize("shape", [(1, 1, 1 << 40), (1, 1 << 40, 3), (1, 1, 1 << 33)])
def test_claims_of_a_function_are_checked(shape: tuple[int, ...]) -> None:
    said = str(
        refusal(ogs.grid_sample, np.broadcast_to(np.float64(1), shape), np.zeros((1, 4096, 1)))
    )
    assert re.search(r"(X|Y) is of shape \(.*\) and \d+ bytes, expected at most", said)
    assert "Y is of" in str(
        refusal(ogs.grid_sample, np.ones((1, 1, 4)), np.broadcast_to(0.0, (1, 1 << 41, 1)))
    )


def test_what_is_available_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    room = memory.available()
    assert room is None or 1 << 24 < room < 1 << 48
    monkeypatch.setattr(memory, "available", lambda: 1 << 30)
    assert ogs.affine_grid(np.eye(2, 3)[None], (1, 1, 2, 2)).shape == (1, 2, 2, 2)
    said = str(refusal(ogs.grid_sample, np.ones((1, 1, 2)), np.broadcast_to(0.0, (1, 1 << 28, 1))))
    assert "at most 1073741824 bytes, the memory that is left" in said
    assert ogs.grid_sample(np.ones((1, 1, 2), "f"), np.zeros((1, 1 << 10, 1), "f")).shape == (
        1,
        1,
        1 << 10,
    )


def test_an_empty_answer_is_refused_where_its_other_axes_are_too_long_for_numpy() -> None:
    """NumPy multiplies all axes of an empty array but the empty ones."""
    X, endless = np.zeros((1, 0, 4), complex), np.broadcast_to(np.float16(0), (1, 1 << 60, 1))
    of_affine = refusal(ogs.affine_grid, np.zeros((0, 2, 3)), (0, 1, 1 << 40, 1 << 40))
    for name, error in (("Y", refusal(ogs.grid_sample, X, endless)), ("grid", of_affine)):
        assert re.search(
            f"{name} is of shape .* bytes, expected fewer bytes than an address", str(error)
        )
    # What only claims more than there is, is as good as any other empty answer.
    assert ogs.affine_grid(np.zeros((0, 3, 4)), (0, 1, *(1 << 17,) * 3)).shape == (
        0,
        *(1 << 17,) * 3,
        3,
    )


#: The limit, what is used, what of that is kept of files (None: not said), and what is left.
GROUPS = {
    "limit": ("1000\n", "400\n", None, 600),
    "more is used than allowed": ("1000\n", "4000\n", None, 0),
    "no limit": ("max\n", "400\n", None, None),
    "no such file": (None, "400\n", None, None),
    "files that nobody has asked for of late": (
        "1000\n",
        "990\n",
        "anon 90\ninactive_file 700\nfile 900\n",
        710,
    ),
    "those of the groups within": (
        "1000\n",
        "990\n",
        "inactive_file 7\ntotal_inactive_file 700\n",
        710,
    ),
    "more of them than is used": ("1000\n", "400\n", "inactive_file 700\n", 1000),
    "no number of them": ("1000\n", "400\n", "inactive_file\n", 600),
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_control_group_s_room_counts(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *texts, room = GROUPS[group]
    files = tmp_path / "limit", tmp_path / "usage"
    for file, text in zip((*files, tmp_path / "memory.stat"), texts, strict=True):
        if text is not None:
            file.write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", ())
    of_the_system = memory.available()
    monkeypatch.setattr(memory, "_GROUPS", (files,))
    assert (
        memory.available() == room
        if room is not None
        else (memory.available() is None) == (of_the_system is None)
    )
    roomier = tmp_path / "roomier", tmp_path / "empty"
    for file, text in zip(roomier, ("5000000", "0"), strict=True):
        file.write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", (roomier, files))
    assert memory.available() == (5000000 if room is None else room)


def test_meminfo_counts_what_can_be_freed_and_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_GROUPS", ())
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    assert memory.available() is None  # there is no such file
    free = "MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 2 kB\n"
    for text, room in ((free, 7 << 10), ("MemTotal: 9 kB\n", None), ("no number\n", None)):
        (tmp_path / "meminfo").write_text(text)
        assert memory.available() == room


@pytest.mark.slow
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_no_memory_to_compile_or_load_a_kernel_is_an_exception(
    is_on_disk: bool, tmp_path: Path
) -> None:
    """Where LLVM has none, it ends the process."""
    pytest.importorskip("numba")
    script = f"""{LIMIT}
import numpy as np, ort_gridsample as ogs
ogs.set_core("jit")
X, grid = np.ones((1, 20, 8, 8), np.float32), np.zeros((1, 4, 4, 2), np.float32)
def sample(kind, mode):
    return str(told(lambda: ogs.grid_sample(X.astype(kind), grid, mode).shape)).partition(":")[0]
sample("float32", "linear")
if True:
    limit(1 << 20)
    hog = []  # what C keeps of memory that was given back
    try:
        while True:
            hog.append(bytearray(4 << 20))
    except MemoryError:
        pass
    print(sample("int16", "cubic"))
    limit(None)
print(sample("int16", "cubic"))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    if is_on_disk:
        assert python(script.replace("if True:", "if False:"), environment) == ["(1, 20, 4, 4)"]
    assert python(script, environment) == ["MemoryError", "(1, 20, 4, 4)"]


@with_slow(
    "open_model,count",
    [("open_session", 1500), *((way, 10_000) for way in WAYS)],
    [("open_session", 1500)],
)
def test_ten_thousand_runs_keep_nothing(open_model: str, count: int) -> None:
    script = f"""
import gc
session = make(open_model)
small, wrong = dict(X=X, grid=grid[:, :8, :8]), dict(X=X[:, :, :8], grid=grid[[0] * 2])
def after(count):
    for i in range(count):
        attempt(session, **(wrong if i % 10 == 0 else small))
    gc.collect()
    return resident()
print(-after({count // 5}) + after({count}))
"""
    (grown,) = run(script, open_model)
    # One byte a run would be an array of nothing; the allocator's own ups and downs are larger.
    assert float(grown) < 4
