"""The combinations of the taps of several axes, in groups."""

from itertools import product

import numpy as np
import pytest

from ort_gridsample.graph.expressions import Expressions, Tensor
from ort_gridsample.graph.runtimes import Runtime
from ort_gridsample.rewriting.targets.tap_groups import TapGroups

N_POSITIONS = 5
CUBIC_TAPS = 4


def sums_in_groups(runtime: Runtime) -> list[np.ndarray]:
    """Return the sums of the taps of three axes, in groups: axis i has multiples of 10**(2 - i)."""
    e = Expressions("node", 20, runtime)
    multiples = np.tile(np.arange(CUBIC_TAPS)[:, None], N_POSITIONS)[None]
    axes = [e.constant(multiples * factor) for factor in (100, 10, 1)]
    groups = TapGroups(e, CUBIC_TAPS, 3, N_POSITIONS)
    sums = groups.combined_groups(axes, Tensor.__add__, [N_POSITIONS])
    return [group.constant for group in sums if group.constant is not None]


@pytest.mark.parametrize(
    ("max_gathers", "n_groups", "group_size"), [(1, 1, 64), (4, 4, 16), (16, 16, 4), (64, 64, 1)]
)
def test_tap_groups_are_as_many_as_gathers(
    max_gathers: int, n_groups: int, group_size: int
) -> None:
    groups = sums_in_groups(Runtime(max_gathers=max_gathers))
    assert [group.shape for group in groups] == [(group_size, N_POSITIONS)] * n_groups


@pytest.mark.parametrize("max_split_outputs", [4, 8, 16])
@pytest.mark.parametrize("max_gathers", [1, 4, 16, 64])
def test_tap_groups_have_all_combinations_in_order(
    max_gathers: int, max_split_outputs: int
) -> None:
    runtime = Runtime(max_gathers=max_gathers, max_split_outputs=max_split_outputs)
    sums = np.concatenate(sums_in_groups(runtime))[:, 0]
    expected = [100 * i + 10 * j + k for i, j, k in product(range(CUBIC_TAPS), repeat=3)]
    assert sums.tolist() == expected
