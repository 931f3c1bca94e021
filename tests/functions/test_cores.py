"""The cores: agreement, selection, memory and bounds."""

import itertools
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import ort_gridsample as ogs
from ort_gridsample import settings, spec
from ort_gridsample.functions import cores
from ort_gridsample.reference import blocks, sampler
from ort_gridsample.reference.coordinates import PADDING_RULES
from ort_gridsample.reference.plan import plan_for
from ort_gridsample.reference.taps import MODE_RULES, Mode
from support.cases import dtype_of, image
from support.compare import about, finfo, refusal
from support.parameters import with_slow
from support.processes import run_script

pytest.importorskip("numba", reason="the compiled core needs Numba")
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ort_gridsample.kernels import (
    halves,
    jit_core,
    kernel_factories,
    llvm_helpers,
    structs,
    tap_table,
    target,
    workers,
)
from ort_gridsample.kernels.structs import LAUNCH, ctypes_type

pytestmark = pytest.mark.usefixtures("default_core")

#: Coordinates that are huge, not finite, or at an edge.
SPECIAL = np.array([1e10, -1e10, 1e30, -1e30, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf, 1, -1, 0])
#: Types of X that the default run compiles kernels for.
QUICK = ["float32", "float16", "uint8"]


def random_grid(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return a random grid; a tenth of its coordinates are :data:`SPECIAL`."""
    grid = rng.uniform(-2.5, 2.5, shape)
    return np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), grid)


def assert_same(a: np.ndarray, b: np.ndarray) -> None:
    """Compare outputs up to the order of sums, which changes the last bits."""
    assert a.dtype == b.dtype
    if a.dtype.kind in "iu":
        assert (
            np.abs(a.astype(object) - b.astype(object)) <= max(1, np.iinfo(a.dtype).max >> 48)
        ).all()
    else:
        eps = float(finfo(a.dtype).eps)
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a = a.astype(wide)
        b = b.astype(wide)
        a = np.where(np.isnan(a) & np.isinf(b), b, a)  # a tap of weight 0 may be left out
        tolerance = 2 * eps if eps > 1e-4 else 100 * eps
        scale = np.abs(np.where(np.isfinite(a), a, 1)).max(
            (0, *range(2, a.ndim)), keepdims=True
        )  # of each channel
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(a / scale, b / scale, rtol=tolerance, atol=tolerance)


def sample_on_both_cores(
    *arguments: object, num_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    ogs.set_core("numpy")
    expected = ogs.grid_sample(*arguments, num_threads=num_threads)
    ogs.set_core("jit")
    return expected, ogs.grid_sample(*arguments, num_threads=num_threads)


@pytest.mark.parametrize("count", [1, 3, 40, tap_table.MAX_TILE_POSITIONS + 76])
@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("lengths", [(7,), (8, 9), (7, 8, 9)], ids=str)
@pytest.mark.parametrize("mode", spec.MODES)
@with_slow(
    "name", ["float32", "float64", "float16", "bfloat16", "uint8", "int64", "complex64"], QUICK
)
def test_cores_agree_on_block_inside_the_image(
    name: str, mode: str, lengths: tuple[int, ...], channels: int, count: int
) -> None:
    """No tap is outside, so the compiled core uses a shorter loop."""
    r = len(lengths)
    X = image(name, (2, channels, *lengths))
    grid = np.random.default_rng(8).uniform(-0.3, 0.3, (2, *[1] * (r - 1), count, r))
    assert_same(*sample_on_both_cores(X, grid.astype(np.float32), mode))


@pytest.fixture
def phases(monkeypatch):
    """Return the phases of the compiled core's launches, on a machine of many CPUs."""
    recorded = []
    # The cached results are for the real number of CPUs.
    original = jit_core._sampling_functions.__wrapped__
    monkeypatch.setattr(jit_core, "available_cpus", lambda: 64)

    def recording_functions(*arguments):
        functions = original(*arguments)

        def proceed(launch):
            count = functions.proceed(launch)
            if count:
                recorded.append(ctypes_type(LAUNCH).from_address(launch).progress.phase)
            return count

        return functions._replace(proceed=proceed)

    monkeypatch.setattr(jit_core, "_sampling_functions", recording_functions)
    # Bypass the cache, whose entries have the original functions.
    monkeypatch.setattr(jit_core, "_prepared_call", jit_core._prepared_call.__wrapped__)
    return recorded


def test_worker_that_packs_a_large_batch_returns_for_pauses(
    phases: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python handles signals between the calls of a worker, so that Ctrl-C ends a large launch."""
    original = jit_core._sampling_functions
    n_calls = 0

    def counting_functions(*arguments: Any) -> Any:
        functions = original(*arguments)

        def worker(*worker_arguments: int) -> int:
            nonlocal n_calls
            n_calls += 1
            return int(functions.process_items(*worker_arguments))

        return functions._replace(process_items=worker)

    monkeypatch.setattr(jit_core, "_sampling_functions", counting_functions)
    rng = np.random.default_rng(3)
    X = image("float32", (1, 16, 64, 64))
    grid = random_grid((1, 1, 100_000, 2), rng).astype(np.float32)
    assert_same(*sample_on_both_cores(X, grid, "cubic", num_threads=1))
    assert phases == [structs.PACKING_AND_READING]
    taps = 16 * 100_000 * 4**2
    assert n_calls >= taps // workers.TAPS_PER_PAUSE


#: Channels, pixels of an axis and positions. The first ones fit a thread's share of the cache. Of
#: the last ones, not even one chunk does.
SIZES = [(2, 6, 400), (5, 6, 400), (16, 6, 400), (37, 6, 400), (37, 60, 4000), (37, 130, 9000)]
SIZES += [(48, 42, 4000), (48, 60, 4000), (48, 130, 9000)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uint8", "float16", "float32", "float64", "complex128"])
def test_cores_agree_on_output_larger_than_the_caches(name: str) -> None:
    """Y is written in whole cache lines, and the ends of each block separately."""
    for channels in (1, 3, 5):  # the loops take three channels at once, then two or one
        rng = np.random.default_rng(0)
        X = image(name, (1, channels, 20, 30))
        count = kernel_factories.MIN_BYTES_PAST_CACHES // (channels * X.itemsize) + 7
        a, b = sample_on_both_cores(
            X, rng.uniform(-1.2, 1.2, (1, count, 1, 2)).astype(np.float32), "nearest"
        )
        assert a.nbytes >= kernel_factories.MIN_BYTES_PAST_CACHES
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@with_slow("name", spec.FLOATS, ["float32"])
def test_cores_agree_on_channels_last_copies(
    name: str, phases: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small X that is read often is copied to channels-last rows, by several threads if large."""
    monkeypatch.setattr(jit_core, "_work_per_helper", lambda: 1)
    rng = np.random.default_rng(11)
    phase_sequences = set()
    for (channels, side, count), n in itertools.product(SIZES, (1, 3)):
        X = image(name, (n, channels, side, side))
        grid = random_grid((n, 1, count, 2), rng).astype(np.float32)
        attributes = [("linear", "zeros")]
        if side == 6:
            attributes = [("linear", "reflection"), ("cubic", "zeros")]
        for num_threads, (mode, padding_mode) in itertools.product((1, 8), attributes):
            phases.clear()
            assert_same(*sample_on_both_cores(X, grid, mode, padding_mode, num_threads=num_threads))
            phase_sequences.add(tuple(phases))
    shared = (structs.PACKING, structs.READING)
    assert {(structs.PACKING_AND_READING,), shared, 3 * shared} <= phase_sequences


@with_slow("name", ["uint8", "float16", "float32", "complex64"], ["float32"])
@pytest.mark.parametrize("channels", [16, 37])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_nearest_of_a_rough_grid_in_channels_last_copies_is_exact(
    name: str, channels: int, num_threads: int, phases: list[int]
) -> None:
    """Every byte agrees, with any padding, although blocks end between two cache lines."""
    rng = np.random.default_rng(13)
    X = image(name, (2, channels, 129, 131))
    grid = rng.uniform(-1.1, 1.1, (2, 1, 4111, 2)).astype(np.float32)
    grid[:, :, 300::50] = SPECIAL[:2]
    grid[:, :, 301::50] = np.nan
    for padding_mode in spec.PADDING_MODES:
        phases.clear()
        a, b = sample_on_both_cores(X, grid, "nearest", padding_mode, num_threads=num_threads)
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
        assert {structs.PACKING, structs.PACKING_AND_READING} & set(phases)


@pytest.mark.parametrize(
    ("name", "num_threads"), [("float16", 1), ("float32", 2), ("complex64", 2)]
)
def test_numpy_core_of_many_channels_agrees_with_single_channels(name, num_threads, monkeypatch):
    """Many channels are sampled from a channels-last copy of X, and one channel from X itself."""
    monkeypatch.setattr(blocks, "TAPS_PER_THREAD", 1)
    channels_of_calls = []
    original = sampler._sample_channels_last

    def sample_channels_last(*arguments):
        channels_of_calls.append(len(arguments[0]))
        return original(*arguments)

    monkeypatch.setattr(sampler, "_sample_channels_last", sample_channels_last)
    ogs.set_core("numpy")
    rng = np.random.default_rng(12)
    channels = sampler.MIN_CHANNELS_LAST + 3
    for n, r, mode in ((1, 1, "linear"), (3, 2, "linear"), (1, 2, "cubic"), (2, 3, "linear")):
        X = image(name, (n, channels, *(9, 8, 5)[:r])).copy()
        X[:, 3, ..., 4] = np.inf
        X[:, 5, ..., 2] = np.nan
        grid = random_grid((n, *(3000, *[1] * (r - 1)), r), rng).astype(np.float32)
        for padding_mode in spec.PADDING_MODES:
            arguments = {"mode": mode, "padding_mode": padding_mode, "num_threads": num_threads}
            single_channels = [
                ogs.grid_sample(X[:, channel : channel + 1], grid, **arguments)
                for channel in range(channels)
            ]
            expected = np.concatenate(single_channels, axis=1)
            assert_same(ogs.grid_sample(X, grid, **arguments), expected)
    n_batches = 1 + 3 + 1 + 2
    assert channels_of_calls == [channels] * len(spec.PADDING_MODES) * n_batches


def test_core_is_selected_by_function_and_environment_variable(monkeypatch):
    monkeypatch.delenv(settings.CORE.variable, raising=False)
    assert ogs.get_core() == "jit"
    for name, module in (("numpy", sampler), ("jit", jit_core)):
        ogs.set_core(name)
        assert (ogs.get_core(), cores.load_core()) == (name, module)
    error = refusal(ogs.set_core, "cuda")
    assert (error.where, error.argument, error.found) == ("set_core", "name", "'cuda'")
    assert error.expected == "one of 'auto', 'numpy', 'jit'"
    monkeypatch.setenv(settings.CORE.variable, "numpy")
    ogs.set_core(None)
    assert ogs.get_core() == "numpy"
    monkeypatch.setenv(settings.CORE.variable, "fast")
    error = refusal(ogs.get_core)
    assert (error.where, error.argument) == ("environment", settings.CORE.variable)
    assert error.found == "'fast'"


def test_core_with_old_or_missing_numba_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.__version__", "0.1.0")
    with pytest.raises(ImportError, match="numba"):
        cores.need_numba()
    monkeypatch.delenv(settings.CORE.variable, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ogs.set_core(None)
    assert (ogs.get_core(), cores.load_core()) == ("numpy", sampler)
    with pytest.raises(ImportError, match="pip install numba"):
        ogs.set_core("jit")


def test_core_with_broken_numba_is_numpy_and_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        cores, "need_numba", Mock(side_effect=SystemError("made for another NumPy"))
    )
    ogs.set_core("auto")
    X = np.ones((1, 1, 2, 2))
    grid = np.zeros((1, 1, 1, 2))
    for _ in range(2):
        assert ogs.grid_sample(X, grid).item() == 1
        assert ogs.get_core() == "numpy"
    message = "Numba is installed but cannot be used; the core 'numpy' is used: "
    assert caplog.messages == [message + "made for another NumPy"]
    ogs.set_core("jit")
    with pytest.raises(
        ImportError, match="the core 'jit' needs Numba, which cannot be used: made for another"
    ):
        ogs.grid_sample(X, grid)


@with_slow("name", QUICK, ["float32"])
@with_slow("core", ["numpy", "jit"], ["numpy"])
def test_core_needs_at_most_64_mib_beyond_arrays(core: str, name: str) -> None:
    """Measured by the peak of a process."""
    script = f"""
import resource, numpy as np, ort_gridsample as ogs

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

X = np.ones((1, 3, 1500, 1500), "{name}")
grid = np.zeros((1, 1500, 1000, 2), np.float16)
ogs.grid_sample(X, grid[:, :1], "cubic", num_threads=2)
before = peak()
Y = ogs.grid_sample(X, grid, "cubic", num_threads=2)
print(peak() - before - Y.nbytes)
"""
    (nbytes,) = run_script(script, {**os.environ, settings.CORE.variable: core})
    assert int(nbytes) < 64 << 20


@pytest.mark.parametrize("padding_mode", ["zeros", "reflection"])
@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("r", [1, 2])
@with_slow("name", [*QUICK, "float64", "bfloat16", "int16"], QUICK)
def test_compiled_core_accesses_no_memory_outside_arrays(
    name: str, r: int, mode: str, padding_mode: str
) -> None:
    """X lies between the largest numbers of its type, or NaNs, and Y between sevens."""
    for channels, count in itertools.product((1, 3, 37), (1, 7, 21, 64, 75)):
        grid = random_grid((2, count, r), np.random.default_rng(count)).astype(np.float32)
        X = image(name, (2, channels, *(4, 5)[:r]))
        outside = np.iinfo(X.dtype).max if X.dtype.kind in "iu" else np.nan
        margin = np.full(X.size, outside, X.dtype)
        memory = np.concatenate([margin, X.reshape(-1), margin])
        fenced_X = memory[X.size : -X.size].reshape(X.shape)
        Y_memory = np.full(2 * channels * count + 128, 7, X.dtype)
        Y = Y_memory[64:-64].reshape(2, channels, count)
        plan = plan_for(X.dtype, mode, padding_mode, False)
        jit_core.grid_sample(fenced_X, grid, Y, plan, 1)
        ogs.set_core("numpy")
        shaped_grid = grid.reshape(2, *(1,) * (r - 1), count, r)
        expected = ogs.grid_sample(X, shaped_grid, mode, padding_mode).reshape(Y.shape)
        with about((channels, count)):
            assert_same(Y, expected)
            assert (Y_memory[:64] == 7).all()
            assert (Y_memory[-64:] == 7).all()


@pytest.mark.slow
def test_kernels_with_bounds_checks_raise_nothing(tmp_path: Path) -> None:
    script = """
import itertools, numpy as np, ort_gridsample as ogs
rng = np.random.default_rng(0)
for lengths in ((5, 7), (1, 1), (9,), (2, 3, 4)):
    X = rng.random((1, 5, *lengths), np.float32)
    grid = rng.uniform(-3, 3, (1, 2000, *[1] * (len(lengths) - 1), len(lengths))).astype(np.float32)
    grid.flat[::7] = rng.choice([1e10, -1e38, np.nan, np.inf, -np.inf], grid.flat[::7].shape)
    modes, paddings = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")
    for attributes in itertools.product(modes, paddings, (False, True)):
        assert np.isfinite(ogs.grid_sample(X, grid, *attributes)).all()
print("all are finite")
"""
    variables = {
        settings.CORE.variable: "jit",
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    assert run_script(script, {**os.environ, **variables}) == ["all are finite"]


@pytest.mark.slow
@pytest.mark.parametrize("length", [(1 << 24) + 3, (1 << 24) + 5])
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
def test_cores_agree_on_axis_longer_than_float32_integers(padding_mode, length):
    """Near the last pixel, float32 has even integers only. No tap beyond that pixel is read."""
    X = np.empty((1, 2, length), np.float32)
    X[0, 0] = np.arange(length) % 1000  # neighbors differ, also in float32
    X[0, 1] = np.nan  # where a tap beyond the first channel would be
    grid = np.array([-1, -1 + 1e-6, 0, 0.5, 1 - 1e-7, 1, 1 + 1e-7, 1.5], np.float32).reshape(
        1, -1, 1
    )
    for align_corners in (False, True):
        a, b = sample_on_both_cores(X, grid, "linear", padding_mode, align_corners)
        np.testing.assert_array_equal(a[:, :1], b[:, :1])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_coordinate_far_outside_an_axis_longer_than_float32_integers_is_0(mode):
    """In float32, 3 pixels beyond the last one are rounded to the last one."""
    X = np.ones((1, 1, (1 << 26) + 1), np.uint8)
    grid = np.array([-5, 5, np.inf], np.float32).reshape(1, -1, 1)
    ogs.set_core("jit")
    np.testing.assert_array_equal(ogs.grid_sample(X, grid, mode), [[[0, 0, 0]]])


def test_mode_without_kernel_runs_on_the_numpy_core(monkeypatch):
    others = {name: taps for name, taps in jit_core.TAPS.items() if name != "cubic"}
    monkeypatch.setattr(jit_core, "TAPS", others)
    a, b = sample_on_both_cores(
        np.random.default_rng(0).random((1, 2, 5, 6)), np.zeros((1, 3, 3, 2)), "cubic"
    )
    np.testing.assert_array_equal(a, b)


def test_row_that_is_added_later_runs_on_the_numpy_core(monkeypatch):
    """Its weights are those of linear, exchanged."""
    exchanged = Mode(
        lambda xp, x: xp.floor(x),
        (0, 1),
        lambda xp, t: xp.concatenate([t, 1 - t], axis=-2),
        pads_taps=False,
    )
    monkeypatch.setitem(MODE_RULES, "exchanged", exchanged)
    monkeypatch.setitem(PADDING_RULES, "repeated", PADDING_RULES["wrap"])
    X = np.array([[[10.0, 20, 40, 80]]])
    grid = np.array([[[-0.5], [0], [0.9]]])  # the pixels 0.5, 1.5 and 3.3
    expected = [15, 30, 0.3 * 80 + 0.7 * 10]
    for Y in sample_on_both_cores(X, grid, "exchanged", "repeated"):
        np.testing.assert_allclose(Y[0, 0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("uses_cpu", [True, False], ids=["instructions", "bit operations"])
@pytest.mark.parametrize("half_type", ["float16", "bfloat16"])
def test_half_precision_conversions_agree_with_numpy(half_type: str, uses_cpu: bool) -> None:
    """By instructions of the processor, and by bit operations for processors that lack them."""
    dtype = dtype_of(half_type)
    if uses_cpu:
        half = halves.HALVES[half_type]
        widened = half.widen
        rounded = half.round
    else:
        widened = getattr(halves, f"from_{half_type}")
        rounded = getattr(halves, f"to_{half_type}")

    @njit
    def convert(numbers, bits, widened_bits, rounded_numbers):
        for i in range(len(numbers)):
            widened_bits[i] = widened(bits[i])
            rounded_numbers[i] = rounded(numbers[i])

    bits = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(2)
    all_halves = bits.view(dtype).astype(np.float32)
    with np.errstate(invalid="ignore"):
        between_halves = all_halves * np.float32(1 + 2**-11)
        large = np.float32(1e5) * rng.normal(size=1 << 16)
        numbers = np.concatenate([all_halves, between_halves, large]).astype(np.float32)
    widened_bits = np.empty(len(numbers), np.float32)
    rounded_numbers = np.empty(len(numbers), np.uint16)
    convert(numbers, np.resize(bits, len(numbers)), widened_bits, rounded_numbers)
    np.testing.assert_array_equal(widened_bits[: len(bits)], all_halves)
    with np.errstate(all="ignore"):
        expected = numbers.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(rounded_numbers.view(dtype).astype(np.float32), expected)


@pytest.mark.slow
@pytest.mark.parametrize("uses_cpu", [True, False], ids=["instructions", "bit operations"])
@pytest.mark.parametrize("half_type", ["float16", "bfloat16"])
def test_vectors_of_halves_are_widened_as_by_numpy(
    half_type: str, uses_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library for old processors, too, must not call a function that the system may lack."""
    if uses_cpu and not halves.CPU_CONVERTS_FLOAT16:
        pytest.skip("this processor has no instructions for float16")
    monkeypatch.setattr(halves, "CPU_CONVERTS_FLOAT16", uses_cpu)
    lanes = 8

    @intrinsic
    def widen_eight(typing_context: Any, source: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = ir.VectorType(ir.IntType(16), lanes).as_pointer()
            floats = ir.VectorType(ir.FloatType(), lanes).as_pointer()
            loaded = builder.load(builder.inttoptr(arguments[0], words))
            loaded.align = 2
            widened = llvm_helpers.widen_halves(builder, loaded, halves.HALF_BITS[is_bfloat16])
            builder.store(widened, builder.inttoptr(arguments[1], floats)).align = 4
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    is_bfloat16 = int(half_type == "bfloat16")

    @njit
    def widen(source: int, target: int, n: int) -> None:
        for i in range(0, n, lanes):
            widen_eight(source + 2 * i, target + 4 * i)

    bits = np.arange(1 << 16, dtype=np.uint16)
    widened = np.empty(len(bits), np.float32)
    widen(bits.ctypes.data, widened.ctypes.data, len(bits))
    np.testing.assert_array_equal(widened, bits.view(dtype_of(half_type)).astype(np.float32))
    if half_type == "float16":
        assert ("fpext" in "".join(widen.inspect_llvm().values())) == uses_cpu


#: Features of processors without vectors, with short ones, and with long ones but slow gathers.
OTHER_FEATURES = [(), ("avx2", "fma", "f16c"), ("avx2", "fma", "f16c", "avx512f")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_for_the_features_that_numba_is_given_run(tmp_path: Path) -> None:
    """LLVM would end the process at an instruction that they lack."""
    script = """
import numpy as np
import ort_gridsample as ogs
ogs.set_core("jit")
X = np.ones((1, 3, 9, 9), np.float32)
grid = np.zeros((1, 5, 7, 2), np.float32)
for mode in ("nearest", "linear", "cubic"):
    print(ogs.grid_sample(X, grid, mode=mode).sum())
"""
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert run_script(script, {**os.environ, **environment}) == ["105.0"] * 3


#: Processors, and features without which this machine cannot run the kernels for them. They are
#: compiled for this machine, with the constants that are chosen for the other one.
OTHER_PROCESSORS = [
    *((target.processor, features, features) for features in OTHER_FEATURES),
    ("aarch64", (), ("fma", "f16c") if target.processor == "x86_64" else ()),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("processor", "features", "needed"), OTHER_PROCESSORS, ids=["scalar", "avx2", "avx512", "arm"]
)
def test_kernels_of_other_processors_agree_with_numpy_core(
    processor: str, features: tuple[str, ...], needed: tuple[str, ...], tmp_path: Path
) -> None:
    script = f"""
import itertools, numpy as np
from ort_gridsample.kernels import target
target.choose(target.system, {processor!r}, {features})
import ort_gridsample as ogs
rng = np.random.default_rng(0)
tolerances = {{"float32": 1e-5, "float64": 1e-14, "float16": 2e-3, "int16": 0}}
modes = "nearest", "linear", "cubic"
paddings = "zeros", "border", "reflection"
for X_type, mode, padding, r in itertools.product(tolerances, modes, paddings, (1, 2, 3)):
    for channels in (3, 37):
        X = (100 * rng.normal(size=(1, channels, *(9,) * r))).astype(X_type)
        grid = rng.uniform(-1.2, 1.2, (1, 70, *(5,) * (r - 1), r)).astype(np.float32)
        grid[:, :20] *= 0.5
        outputs = []
        for core in ("jit", "numpy"):
            ogs.set_core(core)
            Y = ogs.grid_sample(X, grid, mode=mode, padding_mode=padding)
            outputs.append(Y.astype("d"))
        tolerance = tolerances[X_type]
        np.testing.assert_allclose(*outputs, rtol=tolerance, atol=100 * tolerance or 1)
"""
    if needed and not target.has(*needed):
        pytest.skip("this processor does not have these features")
    assert run_script(script, {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_of_arm_have_the_bits_of_those_of_x86_64(tmp_path: Path) -> None:
    """With vectors of another size, and another way to skip taps of packed channels.

    X has a pixel of each kind of which the product with a weight of 0 is not 0, and of which the
    sum with 0 may be another number: -0 and denormal ones.
    """
    choose = "from ort_gridsample.kernels import target; target.choose(target.system, {!r}, {!r})"
    script = """
import itertools, numpy as np, ort_gridsample as ogs
ogs.set_core("jit")
rng = np.random.default_rng(0)
for mode, padding, channels in itertools.product(("linear", "cubic"), ("zeros", "border"), (3, 37)):
    X = 100 * rng.normal(size=(1, channels, 9, 9))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, -1e-45])
    X.reshape(-1)[rng.permutation(X.size)[:60]] = np.repeat(special, 10)
    grid = rng.uniform(-1.3, 1.3, (1, 70, 5, 2)).astype(np.float32)
    Y = ogs.grid_sample(X.astype(np.float32), grid, mode=mode, padding_mode=padding)
    print(np.where(np.isnan(Y), np.float32(np.nan), Y).tobytes().hex())
"""
    features = ["avx2", "fma", "f16c"]
    if target.processor != "x86_64" or not target.has(*features):
        pytest.skip("this processor does not have these features")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    expected = run_script(choose.format("x86_64", features) + script, environment)
    assert len(expected) == 8
    assert run_script(choose.format("aarch64", ()) + script, environment) == expected
