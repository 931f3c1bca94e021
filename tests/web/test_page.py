"""The built page in headless Chromium."""

import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from support.cases import Attributes
from support.exported_models import EXPORTED_FOLDER
from support.models import grid_sample_model, parsed

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("drive_page.mjs")
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: The environment variable with the path of a screenshot to write.
SCREENSHOT_VARIABLE = "ORT_GRIDSAMPLE_WEB_SCREENSHOT"
REFUSED = "kornia_warp_perspective_float64"
MODELS = {REFUSED: "primitives", "stn": "ort_gridsample", "voxelmorph": "primitives"}
LARGE_BYTES = 300_000_000


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """The handler of ``python -m http.server``, without its log."""

    def log_message(self, *_: object) -> None: ...


@contextmanager
def served(handler: Any) -> Iterator[str]:
    """Serve on a free port of this machine; yield the URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def model_with_external_data(folder: Path) -> tuple[Path, Path]:
    """Write a model whose image is a sum with a large initializer in another file."""
    model = parsed(
        "g (float[1,1,64,64] X, float[1,8,8,2] G) => (float[1,1,8,8] Y) {"
        " Z = Add (X, W) Y = GridSample (Z, G) }",
        20,
    )
    weights = np.random.default_rng(0).random((1, 1, 64, 64), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "W"))
    path = folder / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path, folder / "weights.bin"


def large_model(folder: Path) -> Path:
    """Write a model of 300 MB, in one file."""
    model = grid_sample_model("float32", "float32", 2, [Attributes()], opset=20)
    weights = np.zeros(LARGE_BYTES // 4, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "unused"))
    path = folder / "large.onnx"
    onnx.save(model, path)
    return path


def failing_files(folder: Path) -> dict[str, str]:
    """Write files of which each fails in another way."""
    invalid = folder / "invalid.onnx"
    invalid.write_bytes(b"no model")
    plain = folder / "plain.onnx"
    onnx.save(parsed("g (float[1] X) => (float[1] Y) { Y = Relu (X) }", 20), plain)
    unknown = folder / "unknown.onnx"
    node = helper.make_node("Strange", ["X"], ["Z"], domain="example.com")
    model = grid_sample_model("float32", "float32", 2, [Attributes()], opset=20)
    model.graph.node[0].input[0] = "Z"
    model.graph.node.insert(0, node)
    model.opset_import.append(helper.make_opsetid("example.com", 1))
    onnx.save(model, unknown)
    external, _ = model_with_external_data(folder)
    paths = {"invalid": invalid, "plain": plain, "unknown": unknown, "external": external}
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def other_requests() -> list[str]:
    """The requests that another server than the page's got."""
    return []


@pytest.fixture(scope="module")
def results(
    page_folder: Path,
    npm_packages: Path,
    other_requests: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """What tests/web/drive_page.mjs prints."""
    chromium = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if chromium is None:
        pytest.skip("Chromium is not installed")
    folder = tmp_path_factory.mktemp("page")

    class OtherHandler(QuietHandler):
        def do_GET(self) -> None:
            other_requests.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

    files = {
        "models": [
            [str(EXPORTED_FOLDER / f"{name}.onnx"), target] for name, target in MODELS.items()
        ],
        "failures": failing_files(folder),
        "externalData": str(folder / "weights.bin"),
        "large": str(large_model(folder)),
    }
    page_handler = functools.partial(QuietHandler, directory=str(page_folder))
    with served(page_handler) as url, served(OtherHandler) as other_url:
        # The other server can be reached.
        urllib.request.urlopen(f"{other_url}/reached", timeout=10).close()
        job = {
            "packages": str(npm_packages),
            "chromium": chromium,
            "url": url,
            "otherUrl": other_url,
            "files": files,
            "screenshot": os.environ.get(SCREENSHOT_VARIABLE),
        }
        job_file = folder / "job.json"
        job_file.write_text(json.dumps(job))
        process = subprocess.run(
            ["node", str(PROGRAM), str(job_file)], capture_output=True, text=True, timeout=850
        )
        assert process.returncode == 0, process.stderr[-4000:]
        return json.loads(process.stdout) | {"url": url}


def test_file_that_is_dropped_before_the_page_is_ready_waits(results: Any) -> None:
    assert results["early"]["isReady"] is False
    assert "does not run it: Could not find an implementation" in results["early"]["verdict"]


def test_start_loads_files_of_the_page_only_and_no_onnxruntime(results: Any) -> None:
    requests = results["start"]["requests"]
    assert requests
    assert all(request.startswith((results["url"], "blob:", "data:")) for request in requests)
    assert not any("onnxruntime/" in request for request in requests)


def test_foot_names_versions_and_licenses(results: Any) -> None:
    assert f"ort_gridsample {ogs.__version__} (MIT)" in results["start"]["versions"]
    assert "onnxruntime-web" in results["start"]["versions"]


def test_refused_sample_is_patched_and_agrees_by_keyboard_only(results: Any) -> None:
    result = results["keyboard"]
    assert "does not run it: Could not find an implementation" in result["verdict"]
    start = "Before, the model does not load. The patched model runs, and agrees with the stored"
    assert result["sentence"] == f"{start} answer."
    assert "Could not find an implementation" in result["runs"]
    assert result["focus"] == "comparison-sentence"


@pytest.mark.parametrize("name", MODELS)
def test_download_of_a_dropped_model_has_the_bytes_of_the_command(
    results: Any, name: str, index: Any
) -> None:
    versions = {package["name"]: package["version"] for package in index["packages"]}
    if versions["onnx"] != onnx.__version__:
        pytest.skip("the page has another release of onnx")
    target = MODELS[name]
    patched = ogs.patch_model(EXPORTED_FOLDER / f"{name}.onnx", target=target)
    expected = hashlib.sha256(patched.SerializeToString()).hexdigest()
    result = results["models"][name]
    assert (result["sha256"], result["shown"]) == (expected, expected)
    assert result["name"] == f"{name}.patched.onnx"


@pytest.mark.parametrize("name", MODELS)
def test_command_that_the_page_shows_writes_the_download(
    results: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gridsample.cli import main

    result = results["models"][name]
    program, *words = result["command"].split()
    shutil.copy(EXPORTED_FOLDER / f"{name}.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (program, main(words)) == ("ort-gridsample", 0)
    written = (tmp_path / result["name"]).read_bytes()
    assert hashlib.sha256(written).hexdigest() == result["sha256"]


@pytest.mark.parametrize(("name", "target"), MODELS.items())
def test_dropped_model_agrees_with_its_stored_answer(results: Any, name: str, target: str) -> None:
    sentence = results["models"][name]["sentence"]
    if target == "ort_gridsample":
        assert sentence == "The patched model does not run in onnxruntime-web."
    else:
        assert sentence.endswith("agrees with the stored answer.")
        assert sentence.startswith("Before, the model does not load.") == (name == REFUSED)


def test_judge_of_random_inputs_is_the_model_before_or_onnxs_evaluator(results: Any) -> None:
    assert results["random"]["voxelmorph"] == (
        "The patched model agrees with the model before the patch."
    )
    assert results["random"][REFUSED] == (
        "Before, the model does not load. The patched model runs, and agrees with the model before "
        "the patch in onnx's evaluator, with ort_gridsample's operators."
    )


def test_invalid_file_gets_a_sentence(results: Any) -> None:
    state = results["failures"]["invalid"]
    assert "expected an ONNX model" in state["error"]
    assert not state["offersPatch"]


def test_model_without_sampling_nodes_gets_a_sentence(results: Any) -> None:
    state = results["failures"]["plain"]
    assert state["verdict"].startswith("This model has no GridSample")
    assert not state["offersPatch"]


def test_model_with_an_unknown_domain_gets_a_sentence(results: Any) -> None:
    state = results["failures"]["unknown"]
    (note,) = state["notes"]
    assert "operators of the domain example.com" in note
    assert state["offersPatch"]


def test_external_data_without_its_file_gets_a_sentence(results: Any) -> None:
    (note,) = results["failures"]["external"]["notes"]
    assert note.startswith("The external data weights.bin is missing.")
    assert results["failures"]["external"]["offersPatch"]
    error = results["failures"]["externalRun"]["error"]
    assert error == "The model cannot run without its external data: weights.bin."


def test_model_with_its_external_data_runs(results: Any) -> None:
    state = results["failures"]["externalComplete"]
    assert state["error"] == ""
    assert state["sentence"] == "The patched model agrees with the model before the patch."


def test_model_that_is_too_large_gets_the_command(results: Any) -> None:
    error = results["huge"]["error"]
    assert error.startswith("huge.onnx has 2,000,000,000 bytes, which is more than a browser")
    assert error.endswith("ort-gridsample patch huge.onnx patched.onnx")


def test_model_of_300_mb_is_patched(results: Any) -> None:
    result = results["large"]
    assert result["verdict"].startswith("1 node samples on a grid.")
    assert result["sha256"] == result["shown"]


def test_page_is_light_and_dark_and_fits_a_phone(results: Any) -> None:
    appearance = results["appearance"]
    assert appearance["dark"] != appearance["light"]
    assert appearance["overflow"] <= 0
    assert appearance["unnamed"] == []


def test_console_has_no_errors(results: Any) -> None:
    assert results["console"] == []


def test_nothing_leaves_the_tab(results: Any, other_requests: list[str]) -> None:
    ways = results["escape"]
    assert len(ways) == 13
    assert {way: result for way, result in ways.items() if result.startswith("sent")} == {}
    assert not any(request.startswith("/policy/") for request in other_requests)


def test_same_attempts_without_the_policy_reach_another_server(
    results: Any, other_requests: list[str]
) -> None:
    ways = results["escapeWithoutPolicy"]
    for way in ("fetch", "blobWorker", "eval", "urlWorker"):
        assert ways[way].startswith("sent"), way
    reached = {request for request in other_requests if request.startswith("/control/")}
    names = ("beacon", "blob-worker", "fetch", "img", "script", "iframe", "socket")
    assert reached >= {f"/control/{name}" for name in names}
