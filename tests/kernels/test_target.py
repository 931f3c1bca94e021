"""The processors that kernels are compiled for."""

import pytest

from support.processes import run_script


@pytest.mark.parametrize(
    ("machine", "features", "converts"),
    [("aarch64", (), True), ("x86_64", (), False), ("x86_64", ("f16c",), True)],
)
def test_float16_is_converted_by_the_processor_if_it_has_the_instruction(
    machine: str, features: tuple[str, ...], converts: bool
) -> None:
    """64-bit ARM processors have it without a feature."""
    pytest.importorskip("numba", reason="kernels are compiled by Numba")
    (output,) = run_script(f"""
from ort_gridsample.kernels import target
target.choose("linux", {machine!r}, {features!r})
from ort_gridsample.kernels import halves
print(halves.CPU_CONVERTS_FLOAT16)
""")
    assert output == str(converts)


@pytest.mark.parametrize(
    ("processor", "features", "has_fast_vectors", "register_size"),
    [
        ("aarch64", (), True, 16),
        ("x86_64", (), False, 32),
        ("x86_64", ("avx2", "fma"), True, 32),
        ("x86_64", ("avx2", "fma", "avx512f"), True, 64),
    ],
)
def test_vectors_have_the_size_of_the_registers_of_the_processor(
    processor: str, features: tuple[str, ...], has_fast_vectors: bool, register_size: int
) -> None:
    """ARM has vectors without a feature, too."""
    output = run_script(f"""
from ort_gridsample.kernels import target
target.choose("linux", {processor!r}, {features!r})
print(target.has_fast_vectors(), target.register_size())
""")
    assert output == [f"{has_fast_vectors} {register_size}"]
