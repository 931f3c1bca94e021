"""Integer codes of dialects that are not integers, and names of dialects that are only read."""

from collections.abc import ItemsView, ValuesView
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.dialects import registry, table
from ort_gridsample.reference.arrays import Array
from support.compare import refusal
from support.foreign_nodes import constant_input_sampler


def records_with_mode(mode: Array) -> list[ogs.NodeRecord]:
    """Return the records of a node of PyTorch whose mode is the constant ``mode``."""
    model = constant_input_sampler("grid_sampler", "aten")
    for tensor in model.graph.initializer:
        if tensor.name == "mode":
            tensor.CopyFrom(numpy_helper.from_array(mode, "mode"))
    return ogs.inspect_model(model)


@pytest.mark.parametrize("value", [0.5, -0.5, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_constant_code_that_is_no_integer_is_refused(value: float, dtype: str) -> None:
    (record,) = records_with_mode(np.array([value], dtype))
    assert record.error is not None
    assert (record.error.argument, record.error.found) == ("interpolation_mode", repr(value))
    assert record.error.expected == "0 (linear), 1 (nearest) or 2 (cubic)"


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (np.array([0, 1]), "the input 'mode' of type int64 and shape (2,)"),
        (np.array(1j), "the input 'mode' of type complex128 and shape ()"),
    ],
    ids=["two numbers", "a complex number"],
)
def test_constant_code_that_is_no_single_number_is_refused(mode: Array, found: str) -> None:
    (record,) = records_with_mode(mode)
    assert record.error is not None
    assert (record.error.argument, record.error.found) == ("interpolation_mode", found)
    assert record.error.expected == "a single number"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_constant_code_of_any_type_is_read(dtype: str) -> None:
    (record,) = records_with_mode(np.array(1, dtype))
    assert (record.error, record.mode) == (None, "nearest")


@pytest.mark.parametrize("dialect", [*table.BUILT_IN, *table.PACKAGE_NODES])
def test_add_dialect_with_the_name_of_a_built_in_dialect_is_refused(dialect: ogs.Dialect) -> None:
    mine = replace(
        table.STANDARD["GridSample"][20],
        name=dialect.name,
        op_type="Mine",
        domains=("my.domain",),
    )
    before = registry.dialects()
    error = refusal(ogs.add_dialect, mine)
    assert (error.argument, error.found) == ("name", repr(dialect.name))
    assert registry.dialects() == before


class CountingDict(dict[Any, Any]):
    """A dictionary that counts how often its values and its items are listed."""

    n_lists = 0

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self.n_lists += 1
        return super().values()

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]
        self.n_lists += 1
        return super().items()


def test_dialect_lists_the_values_of_an_attribute_once_for_all_nodes() -> None:
    standard = table.STANDARD["GridSample"][20]
    values = CountingDict(standard.attributes["mode"].values)
    spelling = replace(standard.attributes["mode"], values=values)
    dialect = replace(standard, attributes={**standard.attributes, "mode": spelling})
    node = helper.make_node("GridSample", ["X", "G"], ["Y"], mode="linear")
    for _ in range(3):
        assert dialect.read("here", node, lambda _: None, "")["mode"] == "linear"
    assert values.n_lists == 1


def test_dialect_lists_the_names_of_attributes_once_for_all_nodes() -> None:
    standard = table.STANDARD["GridSample"][20]
    attributes = CountingDict(standard.attributes)
    dialect = replace(standard, attributes=attributes)
    node = helper.make_node("GridSample", ["X", "G"], ["Y"], mode="linear")
    dialect.read("here", node, lambda _: None, "")
    n_lists = attributes.n_lists
    dialect.read("here", node, lambda _: None, "")
    assert attributes.n_lists == n_lists + 1  # the spellings that are read
