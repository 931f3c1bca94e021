"""Where the session of exec --provider adds the execution provider to the program's providers."""

from typing import Any

import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.session import provider_session
from support.paths import needs_provider

pytestmark = needs_provider


@pytest.mark.parametrize(
    ("providers", "provider_options", "expected"),
    [
        (None, None, (None, None)),
        (["CPUExecutionProvider"], [{}], (None, None)),
        (["A", "CPUExecutionProvider"], None, (["A", "ours", "CPUExecutionProvider"], None)),
        (["A"], [{"a": 1}], (["A", "ours"], [{"a": 1}, {}])),
        (
            [("A", {"a": 1}), ("CPUExecutionProvider", {})],
            None,
            ([("A", {"a": 1}), "ours", ("CPUExecutionProvider", {})], None),
        ),
        (
            ["A", "CPUExecutionProvider"],
            [{"a": 1}, {"b": 2}],
            (["A", "ours", "CPUExecutionProvider"], [{"a": 1}, {}, {"b": 2}]),
        ),
        (["ours", "A"], None, (["ours", "A"], None)),
        (
            ["A", "CPUExecutionProvider", "ours"],
            None,
            (["A", "ours", "CPUExecutionProvider"], None),
        ),
        (
            ["A", "CPUExecutionProvider", "ours"],
            [{"a": 1}, {"b": 2}, {}],
            (["A", "ours", "CPUExecutionProvider"], [{"a": 1}, {}, {"b": 2}]),
        ),
    ],
)
def test_provider_is_added_before_the_cpus(
    providers: Any, provider_options: Any, expected: Any
) -> None:
    name = ogs.register_provider()

    def with_name(names: Any) -> Any:
        return names and [name if each == "ours" else each for each in names]

    options = onnxruntime.SessionOptions()
    found = provider_session._with_ours(options, with_name(providers), provider_options)
    assert found == (with_name(expected[0]), expected[1])
    assert options.has_providers() == (expected[0] is None)
