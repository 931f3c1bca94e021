"""Test how the command line reports wrong settings in the environment."""

import pytest

from ort_gridsample import settings
from ort_gridsample.cli import main


@pytest.fixture(autouse=True)
def _no_settings_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (settings.CORE, settings.OPS, settings.NUM_THREADS):
        monkeypatch.setattr(setting, "value", None)
        monkeypatch.delenv(setting.variable, raising=False)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("ORT_GRIDSAMPLE_CORE", "bogus", "one of 'auto', 'numpy', 'jit'"),
        ("ORT_GRIDSAMPLE_OPS", "bogus", "one of 'auto', 'compiled', 'python'"),
        ("ORT_GRIDSAMPLE_NUM_THREADS", "x", "a whole number, at least 1"),
        ("ORT_GRIDSAMPLE_NUM_THREADS", "0", "a whole number, at least 1"),
    ],
)
def test_wrong_setting_is_an_error_of_the_user(
    variable: str,
    text: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, text)
    assert main(["inspect", "missing.onnx"]) == 2
    sentence = f"environment: {variable} is {text!r}, expected {expected}"
    assert capsys.readouterr().err == f"ort-gridsample: {sentence}\n"
