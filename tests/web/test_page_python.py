"""The page's Python modules, in this Python and with the installed onnxruntime."""

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.cli import inputs
from ort_gridsample.detection.records import NodeRecord
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.graph.runtimes import RUNTIMES
from ort_gridsample.session.installed_runtime import InstalledRuntime
from support.exported_models import EXPORTED_FOLDER

PYTHON = Path(__file__).parents[2] / "examples" / "web" / "python"
#: A model with a decomposed AffineGrid: the runtime has to run parts of it.
DECOMPOSED = EXPORTED_FOLDER / "stn_bicubic.onnx"
REFUSED = EXPORTED_FOLDER / "kornia_warp_perspective_float64.onnx"
RUNTIME = "a runtime"


def load_module(name: str) -> ModuleType:
    """Import a file of examples/web/python."""
    spec = importlib.util.spec_from_file_location(name, PYTHON / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page() -> Iterator[Any]:
    """The module page, without answers."""
    try:
        load_module("page_runtime")
        yield load_module("page")
    finally:
        for name in ("page", "page_runtime"):
            sys.modules.pop(name, None)


def call_once(page: Any, name: str, **arguments: Any) -> Any:
    return json.loads(page.call(name, json.dumps(arguments)))


def answer(page: Any, key: str) -> None:
    """Answer a question by the installed onnxruntime, as the page's JavaScript does."""
    question = page._RUNTIME.questions[key]
    runtime = InstalledRuntime()
    try:
        if question.feeds is None:
            types = [
                [output.name, output.element_type, list(output.lengths)]
                for output in runtime.output_types(page.question_model(key))
            ]
            page.answer_types(key, json.dumps(types))
            return
        model = page.question_model(key)
        runs = runtime.run(model, question.feeds, optimized=question.optimized)
        page.answer_runs(
            key, [[(str(a.dtype), list(a.shape), a.tobytes()) for a in outputs] for outputs in runs]
        )
    except Exception as error:
        page.answer_error(key, str(error))


def call(page: Any, name: str, **arguments: Any) -> Any:
    """Call a function until it has no question; return its result."""
    for _ in range(5):
        reply = call_once(page, name, **arguments)
        if not reply["questions"]:
            return reply["result"]
        for key in reply["questions"]:
            answer(page, key)
    raise AssertionError("there are always more questions")


def test_call_with_open_questions_has_their_keys(page: Any) -> None:
    reply = call_once(page, "inspect", path=str(REFUSED), runtime=RUNTIME)
    (key,) = reply["questions"]
    assert json.loads(page.question_properties(key)) == {"optimized": True, "n_runs": 1}
    assert onnx.load_from_string(page.question_model(key)).graph.node[0].op_type == "GridSample"


@pytest.mark.parametrize("path", [DECOMPOSED, REFUSED], ids=lambda path: path.stem)
def test_patch_with_all_answers_has_the_bytes_of_patch_model(
    page: Any, path: Path, tmp_path: Path
) -> None:
    patched_path = tmp_path / "patched.onnx"
    result = call(
        page,
        "patch",
        path=str(path),
        patched_path=str(patched_path),
        target="ort_gridsample",
        functions=False,
        opset=None,
        for_runtime=None,
    )
    expected = ogs.patch_model(path).SerializeToString()
    assert patched_path.read_bytes() == expected
    assert result["bytes"] == len(expected)
    assert result["command"] == f"ort-gridsample patch {path.name} patched.onnx"


def test_error_of_a_call_is_a_sentence(page: Any, tmp_path: Path) -> None:
    path = tmp_path / "invalid.onnx"
    path.write_bytes(b"no model")
    reply = call_once(page, "inspect", path=str(path), runtime=RUNTIME)
    assert "expected an ONNX model" in reply["error"]
    assert reply["questions"] == []


def records(*reasons: str) -> list[NodeRecord]:
    """Return records of nodes with these reasons."""
    record = ogs.inspect_model(REFUSED)[0]
    return [type(record)(**{**vars_of(record), "reason": reason}) for reason in reasons]


def vars_of(record: NodeRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([], "This model has no GridSample"),
        ([""], "1 node samples on a grid. a runtime runs it by itself."),
        (["no kernel"], "1 node samples on a grid. a runtime does not run it: no kernel."),
        (["", ""], "2 nodes sample on a grid. a runtime runs all of them by itself."),
        (
            ["no kernel", "no kernel"],
            "2 nodes sample on a grid. a runtime runs none of them by itself: no kernel.",
        ),
        (
            ["no kernel", "", "no float64"],
            "3 nodes sample on a grid. a runtime runs 1 of them by itself, for 2 reasons.",
        ),
    ],
    ids=["none", "runs", "refused", "all run", "same reason", "several reasons"],
)
def test_verdict_is_one_sentence(page: Any, reasons: list[str], expected: str) -> None:
    assert page.verdict(records(*reasons), RUNTIME).startswith(expected)


def test_equal_nodes_share_a_row(page: Any) -> None:
    result = call(page, "inspect", path=str(EXPORTED_FOLDER / "rt_detr_v2.onnx"), runtime=RUNTIME)
    n_nodes = [len(row["nodes"]) for row in result["rows"]]
    assert sum(n_nodes) == len(result["records"])
    assert len(n_nodes) < len(result["records"])


def test_choices_have_all_runtimes_and_known_targets(page: Any) -> None:
    targets, runtimes = zip(*page.CHOICES.values(), strict=True)
    assert set(targets) <= set(target_names())
    assert set(runtimes) - {None} == set(RUNTIMES)
    choices = [choice for choice in page.CHOICES.values() if choice[1]]
    assert all(target in RUNTIMES[runtime].targets for target, runtime in choices)


def test_drawn_inputs_are_those_of_the_file_or_random(page: Any) -> None:
    arrays = str(REFUSED.with_suffix(".npz"))
    drawn = call(page, "draw_inputs", path=str(REFUSED), shapes={}, arrays=arrays)
    assert drawn["has_expected"]
    assert drawn["n_stored"] == 2
    drawn = call(page, "draw_inputs", path=str(REFUSED), shapes={"X": [1, 3, 8, 9]}, arrays=None)
    assert drawn["shapes"]["X"] == [1, 3, 8, 9]
    assert not drawn["has_expected"]


def test_evaluator_has_the_stored_answer_of_a_model_that_onnxruntime_refuses(page: Any) -> None:
    arrays = str(REFUSED.with_suffix(".npz"))
    call(page, "draw_inputs", path=str(REFUSED), shapes={}, arrays=arrays)
    assert call(page, "evaluate", path=str(REFUSED)) == {}
    (agreement,) = call(page, "compare", first="stored", second="evaluator")
    assert agreement["agrees"]


def test_array_that_leaves_and_enters_is_the_same(page: Any) -> None:
    for array in (np.arange(6, dtype=np.int64).reshape(2, 3), np.array(["a", "b"], object)):
        _, type_name, shape, data = page._leaving("X", array)
        entered = page._entering(type_name, shape, data)
        assert entered.dtype == array.dtype
        np.testing.assert_array_equal(entered, array)


def test_replacement_of_ml_dtypes_has_the_sizes_and_no_arithmetic() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    module = load_module("ml_dtypes")
    sys.modules["ml_dtypes"] = ml_dtypes
    for name, size in module._SIZES.items():
        assert np.dtype(getattr(module, name)).itemsize == size
        if hasattr(ml_dtypes, name):
            assert np.dtype(getattr(ml_dtypes, name)).itemsize == size
    array = np.zeros(2, module.bfloat16)
    with pytest.raises(TypeError):
        array + array
    with pytest.raises(ValueError, match="sequence"):
        array.astype(np.float32)


def test_random_input_of_bfloat16_with_the_replacement_of_ml_dtypes_raises_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", pytest.importorskip("ml_dtypes"))
    load_module("ml_dtypes")
    generator = np.random.default_rng(0)
    with pytest.raises(ogs.GridSampleError, match="of a type that numpy has"):
        inputs.random_array(generator, "X", "tensor(bfloat16)", (2,))


def test_constant_of_bfloat16_is_read_as_float32(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_helper, "to_array", numpy_helper.to_array)  # restored at the end
    page._read_bfloat16_as_float32()
    values = [1.0, -2.5, 3.0e38, float("inf")]
    tensor = helper.make_tensor("", onnx.TensorProto.BFLOAT16, [2, 2], values)
    raw = onnx.TensorProto()
    raw.CopyFrom(tensor)
    raw.ClearField("int32_data")
    raw.raw_data = np.array(tensor.int32_data, "<u2").tobytes()
    for proto in (tensor, raw):
        array = numpy_helper.to_array(proto)
        assert array.dtype == np.float32
        np.testing.assert_allclose(array.ravel(), values, rtol=1e-2)


def test_modules_of_the_commands_that_the_page_imports_need_no_onnxruntime() -> None:
    program = (
        "import sys; sys.modules['onnxruntime'] = None; "
        "from ort_gridsample.cli import inputs, inspect, output_comparison"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
