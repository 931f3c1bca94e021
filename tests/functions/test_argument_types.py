"""Arguments of the functions that are not arrays, not strings or not whole numbers."""

import numpy as np
import pytest

import ort_gridsample as ogs

X = np.zeros((1, 1, 2, 2))
GRID = np.zeros((1, 1, 1, 2))
#: Sequences whose items differ in length.
RAGGED = [(2, 2), (3,)]


@pytest.mark.parametrize("argument", ["X", "grid"])
def test_grid_sample_ragged_argument_is_refused(argument: str) -> None:
    arguments = {"X": X, "grid": GRID, argument: RAGGED}
    with pytest.raises(ogs.GridSampleError) as refusal:
        ogs.grid_sample(**arguments)
    assert refusal.value.argument == argument


@pytest.mark.parametrize("argument", ["theta", "size"])
def test_affine_grid_ragged_argument_is_refused(argument: str) -> None:
    arguments = {"theta": np.zeros((1, 2, 3)), "size": (1, 1, 2, 2), argument: RAGGED}
    with pytest.raises(ogs.GridSampleError) as refusal:
        ogs.affine_grid(**arguments)
    assert refusal.value.argument == argument


@pytest.mark.parametrize(
    "argument", ["value", "spatial_shapes", "sampling_locations", "attention_weights"]
)
def test_deformable_attention_ragged_argument_is_refused(argument: str) -> None:
    arguments = {
        "value": np.zeros((1, 4, 1, 1)),
        "spatial_shapes": [(2, 2)],
        "sampling_locations": np.zeros((1, 1, 1, 1, 2, 2)),
        "attention_weights": np.zeros((1, 1, 1, 1, 2)),
        argument: RAGGED,
    }
    with pytest.raises(ogs.GridSampleError) as refusal:
        ogs.deformable_attention(**arguments)
    assert refusal.value.argument == argument


@pytest.mark.parametrize("element", [1, None, b"a"])
def test_grid_sample_object_that_is_no_string_is_refused(element: object) -> None:
    strings = np.array(["a", "b", "c", element], object).reshape(1, 1, 2, 2)
    with pytest.raises(ogs.GridSampleError, match=type(element).__name__) as refusal:
        ogs.grid_sample(strings, GRID, "nearest")
    assert refusal.value.argument == "X"


def test_grid_sample_objects_of_string_subclasses_are_sampled() -> None:
    strings = np.full((1, 1, 2, 2), np.str_("a"), object)
    assert ogs.grid_sample(strings, GRID, "nearest").item() == "a"


@pytest.mark.parametrize("wrong", [np.array(2.0), np.array([2]), np.array([1, 2])])
def test_num_threads_that_is_no_whole_number_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ogs.GridSampleError, match="num_threads is"):
        ogs.grid_sample(X, GRID, num_threads=wrong)
    with pytest.raises(TypeError, match=r"num_threads is .*, expected a whole number, at least 1"):
        ogs.set_num_threads(wrong)


def test_num_threads_as_array_of_no_axes_is_allowed() -> None:
    assert ogs.grid_sample(X, GRID, num_threads=np.array(2)).shape == (1, 1, 1, 1)
