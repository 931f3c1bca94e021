"""Sessions with execution providers that are plugins: one of our own that refuses nodes."""

import gc
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.custom_ops.provider import ep_api
from ort_gridsample.inference.trial import Trial
from ort_gridsample.session import (
    accelerator_answers,
    accelerators,
    added_providers,
    plugins,
    provider_process,
    provider_script,
)
from ort_gridsample.session.accelerator_answers import AnswerCache
from ort_gridsample.session.accelerators import AcceleratorProbe, accelerators_of
from ort_gridsample.session.config_entries import config_entries
from ort_gridsample.session.options import open_quietly
from ort_gridsample.session.provider_process import ProviderProcess
from ort_gridsample.versions import is_at_least
from support.built_library import needs_linker
from support.models import parsed
from support.processes import run_program
from support.refusing_plugin import REFUSING, refusing_plugin

CPU = "CPUExecutionProvider"
HAS_PLUGINS = is_at_least(onnxruntime.__version__, ep_api.OLDEST)
pytestmark = [
    needs_linker,
    pytest.mark.skipif(not HAS_PLUGINS, reason="this onnxruntime has no plugins with kernels"),
]
RNG = np.random.default_rng(0)
FEEDS = {
    "X": RNG.random((1, 2, 4, 5)).astype(np.float32),
    "G": RNG.uniform(-1.2, 1.2, (1, 2, 3, 2)).astype(np.float32),
}
LEFT_TO_CPU = "it leaves the node to the CPU"


def grid_sample(mode: str = "linear", opset: int = 20) -> onnx.ModelProto:
    """Return a model of one GridSample of X and G."""
    inputs = "float[1,2,4,5] X, float[1,2,3,2] G"
    node = f'Y = GridSample <mode = "{mode}"> (X, G)'
    return parsed(f"g ({inputs}) => (float[1,2,2,3] Y) {{ {node} }}", opset)


@pytest.fixture(scope="module", autouse=True)
def registered_plugin() -> Iterator[None]:
    # A name that is not the provider's: this package must not need it.
    name = "a library of a test"
    onnxruntime.register_execution_provider_library(name, str(refusing_plugin()))
    yield
    gc.collect()
    onnxruntime.unregister_execution_provider_library(name)


@pytest.fixture(autouse=True)
def empty_answer_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    monkeypatch.setattr(accelerator_answers, "cache_folder", lambda: tmp_path / "ort_gridsample")


def plugin_devices() -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == REFUSING]


def plain_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def options_with(
    devices: Sequence[Any], provider_options: dict[str, str]
) -> onnxruntime.SessionOptions:
    options = plain_options()
    options.add_provider_for_devices(devices, provider_options)
    return options


#: The ways to choose a provider: by its name, by its devices, and by a policy.
WAYS = ["names", "devices"]
each_way = pytest.mark.parametrize("way", WAYS)


def open_on_plugin(
    model: onnx.ModelProto, way: str, provider_options: dict[str, str], **kwargs: Any
) -> ogs.InferenceSession:
    if way == "names":
        providers = [(REFUSING, provider_options), CPU]
        return ogs.InferenceSession(model, plain_options(), providers, **kwargs)
    options = options_with(plugin_devices(), provider_options)
    return ogs.InferenceSession(model, options, **kwargs)


def providers_of_nodes(session: ogs.InferenceSession) -> set[str]:
    return {part.ep_name for part in session.get_provider_graph_assignment_info()}


# --- Placement ---

#: The mode of a node, what the plugin refuses, and the form that it runs; None if it runs none.
REFUSALS = [
    ("linear", "", ""),
    ("nearest", "linear ", ""),
    ("linear", "linear ", "opset 16's words"),
    ("linear", "linear ai.onnx ", "com.microsoft's node"),
    ("linear", "GridSample ", None),
    ("linear", "float32 ", None),
    ("linear", "4-D ", None),
    ("linear", "5-D float16 ", ""),
]


@each_way
@pytest.mark.parametrize(("mode", "refuses", "form"), REFUSALS)
def test_node_is_placed_as_on_a_provider_of_onnxruntime(
    mode: str, refuses: str, form: str | None, way: str
) -> None:
    session = open_on_plugin(grid_sample(mode), way, {"refuses": refuses})
    (placement,) = session.placements
    if form is None:
        assert placement.runs_on == "compiled op"
    else:
        assert placement.runs_on == REFUSING
        reason = f"because {REFUSING} refuses the node itself: {LEFT_TO_CPU}"
        assert placement.reason == (f"written as {form}, {reason}" if form else "")
    assert session.get_providers() == [REFUSING, CPU]
    assert (REFUSING in providers_of_nodes(session)) == (form is not None)
    expected = ogs.grid_sample(FEEDS["X"], FEEDS["G"], mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(session.run(None, FEEDS)[0], expected, rtol=0, atol=1e-6)


@each_way
def test_node_that_crashes_the_plugin_does_not_end_this_process(way: str) -> None:
    session = open_on_plugin(grid_sample(), way, {"crashes": "linear "})
    (placement,) = session.placements
    assert placement.runs_on == REFUSING
    assert re.search(r"refuses the node itself: the provider crashed", placement.reason)


@each_way
@pytest.mark.parametrize(
    "arguments", [{"accelerated": "never"}, {"nodes": "all"}], ids=["never", "all"]
)
def test_session_runs_our_op_if_the_user_requests_it(way: str, arguments: dict[str, Any]) -> None:
    (placement,) = open_on_plugin(grid_sample(), way, {}, **arguments).placements
    assert placement.runs_on == "compiled op"


@each_way
def test_kept_node_is_not_rewritten(way: str) -> None:
    provider_options = {"refuses": "linear "}
    session = open_on_plugin(grid_sample(), way, provider_options, accelerated="keep")
    assert session.placements[0].runs_on == "compiled op"


def test_options_are_usable_for_another_session() -> None:
    options = options_with(plugin_devices(), {"refuses": "linear "})
    for _ in range(2):
        session = ogs.InferenceSession(grid_sample(), options)
        assert session.placements[0].reason.startswith("written as opset 16's words")
    entries = config_entries(options)
    assert entries[f"ep.{REFUSING.lower()}.refuses"] == "linear "


def select_plugin(devices: Sequence[Any], *_: object) -> list[Any]:
    return [device for device in devices if device.ep_name == REFUSING]


def test_plugin_that_a_policy_selects_runs_the_node() -> None:
    assert run_program("plugin_of_a_policy.py") == [REFUSING, REFUSING]


def test_plugin_that_a_delegate_selects_runs_the_node() -> None:
    options = plain_options()
    options.set_provider_selection_policy_delegate(select_plugin)
    session = ogs.InferenceSession(grid_sample(), options)
    assert session.placements[0].runs_on == REFUSING
    assert providers_of_nodes(session) == {REFUSING}


def test_names_take_precedence_over_devices() -> None:
    options = options_with(plugin_devices(), {})
    with pytest.warns(UserWarning, match="already been configured with providers"):
        session = ogs.InferenceSession(grid_sample(), options, [CPU])
    assert session.placements[0].runs_on == "compiled op"


def test_set_providers_places_the_nodes_again() -> None:
    session = ogs.InferenceSession(grid_sample(), plain_options())
    session.set_providers([(REFUSING, {"refuses": "linear "}), CPU])
    assert session.placements[0].reason.startswith("written as opset 16's words")
    restored = pickle.loads(pickle.dumps(session))
    assert restored.placements[0].runs_on == REFUSING
    session.set_providers([CPU])
    assert session.placements[0].runs_on == "compiled op"


def test_own_provider_in_options_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ogs.register_provider()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == own]
    run = Mock(side_effect=RuntimeError("it is probed"))
    monkeypatch.setattr(ProviderProcess, "run", run)
    for way in WAYS:
        if way == "names":
            session = ogs.InferenceSession(grid_sample(), plain_options(), [own, CPU])
        else:
            session = ogs.InferenceSession(grid_sample(), options_with(devices, {}))
        assert session.placements[0].runs_on == "compiled op"
    run.assert_not_called()


def test_plugin_whose_library_is_gone_runs_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = plugins.Plugin("missing", "/no/such/library.so")
    monkeypatch.setattr(provider_process, "plugins", lambda: {REFUSING: missing})
    session = ogs.InferenceSession(grid_sample(), plain_options(), [REFUSING, CPU])
    assert session.placements[0].runs_on == "compiled op"


@each_way
def test_fastest_form_is_timed_on_the_plugin(way: str, tmp_path: Path) -> None:
    session = open_on_plugin(grid_sample(), way, {}, providers_policy="fastest")
    np.testing.assert_allclose(
        session.run(None, FEEDS)[0], ogs.grid_sample(FEEDS["X"], FEEDS["G"]), rtol=0, atol=1e-6
    )
    files = (tmp_path / "ort_gridsample" / "providers").iterdir()
    assert sum(b"seconds " in file.read_bytes() for file in files) >= 3


# --- Answers ---


def key_of(providers: Sequence[Any]) -> str:
    """Return the key of a probe's answer."""
    case = SimpleNamespace(data_key="")
    with closing(
        AcceleratorProbe(accelerators_of(providers, None), "keep", only_sampling_nodes=True)
    ) as probe:
        return probe._key(b"", case)  # type: ignore[arg-type]


def with_metadata(device: Any, **metadata: str) -> Any:
    hardware = SimpleNamespace(
        vendor=device.device.vendor, device_id=device.device.device_id, metadata={}
    )
    all_metadata = {**device.ep_metadata, **metadata}
    return SimpleNamespace(ep_name=device.ep_name, ep_metadata=all_metadata, device=hardware)


@pytest.mark.parametrize("metadata", [{"version": "0.0.1"}, {"library_path": "/other.so"}])
def test_answer_of_another_version_or_library_has_another_key(
    metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = plugin_devices()
    keys = set()
    for devices in ([device], [with_metadata(device)], [with_metadata(device, **metadata)]):
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda devices=devices: devices)
        keys.add(key_of([REFUSING]))
    assert len(keys) == 2


def test_answer_of_other_options_has_another_key() -> None:
    keys = {key_of([(REFUSING, {"refuses": word})]) for word in ("linear ", "nearest ")}
    assert len(keys) == 2


def test_second_session_probes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    open_on_plugin(grid_sample(), "devices", {})
    monkeypatch.setattr(Trial, "refusal", None)
    assert open_on_plugin(grid_sample(), "devices", {}).placements[0].runs_on == REFUSING


# --- The providers of options ---


def test_added_providers_have_their_options() -> None:
    options = options_with(plugin_devices(), {"refuses": "linear ", "other": "1"})
    providers, devices = added_providers.added_providers(options)
    assert providers == [(REFUSING, {"refuses": "linear ", "other": "1"})]
    assert devices == {REFUSING: [0]}


@pytest.mark.parametrize("options", [None, onnxruntime.SessionOptions()], ids=["none", "new"])
def test_options_without_providers_have_none(options: onnxruntime.SessionOptions | None) -> None:
    assert added_providers.added_providers(options) == ([], {})


def device(device_id: int, name: str = REFUSING) -> Any:
    hardware = SimpleNamespace(type="GPU", vendor_id=1, device_id=device_id, metadata={})
    return SimpleNamespace(ep_name=name, ep_metadata={}, device=hardware)


@pytest.mark.parametrize(
    ("used", "index"),
    [
        ([device(3)], 1),
        ([None, device(3)], 1),
        ([device(3, CPU)], 0),
        ([device(9)], 0),
        ([None], 0),
    ],
    ids=["second", "second input", "another provider", "not listed", "unknown"],
)
def test_device_of_added_provider_is_that_of_the_session(
    used: list[Any], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [device(2), device(3)])
    session = SimpleNamespace(input_epdevices=used)
    assert added_providers._device_index(session, REFUSING) == index


@pytest.mark.parametrize(("indices", "expected"), [([1], [3]), (None, [2, 3])])
def test_probe_uses_the_devices_of_the_session(
    indices: list[int] | None, expected: list[int]
) -> None:
    devices = [device(2), device(7, CPU), device(3)]
    for listed in devices:
        listed.ep_metadata["library_path"] = "library.so"
    runtime = SimpleNamespace(get_ep_devices=lambda: devices)
    options = Mock()
    provider_script._add_provider(runtime, options, REFUSING, {"key": "value"}, indices)
    ((chosen, provider_options),) = [call.args for call in options.method_calls]
    assert [listed.device.device_id for listed in chosen] == expected
    assert provider_options == {"key": "value"}


def test_probe_adds_a_provider_that_is_no_plugin_by_its_name() -> None:
    runtime = SimpleNamespace(get_ep_devices=lambda: [device(2)])
    options = Mock()
    provider_script._add_provider(runtime, options, REFUSING, {}, None)
    options.add_provider.assert_called_once_with(REFUSING, {})


@pytest.mark.parametrize(
    ("name", "is_virtual", "expected"),
    [
        ("NPU", {}, "NPU"),
        ("NPU", {"is_virtual": "1"}, "NPU.virtual"),
        ("NPU.virtual", {"is_virtual": "1"}, "NPU.virtual"),
    ],
)
def test_library_is_registered_with_virtual_devices_if_they_are_used(
    name: str, is_virtual: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = device(0, name)
    found.ep_metadata["library_path"] = "library.so"
    found.device.metadata.update(is_virtual)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [found])
    assert plugins.plugins() == {name: plugins.Plugin(expected, "library.so")}


@pytest.mark.parametrize(
    ("release", "name", "expected"),
    [("1.28.0", REFUSING, False), ("1.32.0", REFUSING, True), ("1.28.0", CPU, True)],
)
def test_plugin_is_found_by_its_name_in_newer_releases(
    release: str, name: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", release)
    assert plugins.are_found_by_name([(name, {})]) == expected


def test_device_selection_of_a_program_may_open_sessions() -> None:
    def select(devices: Sequence[Any], *_: object) -> list[Any]:
        ogs.InferenceSession(grid_sample(), plain_options())
        return select_plugin(devices)

    options = plain_options()
    options.set_provider_selection_policy_delegate(select)
    assert ogs.InferenceSession(grid_sample(), options).placements[0].runs_on == REFUSING


def test_session_for_the_providers_of_options_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = options_with(plugin_devices(), {})
    options.enable_profiling = True
    options.optimized_model_filepath = "saved.onnx"
    options.add_session_config_entry("ep.context_enable", "1")
    session = open_quietly(options, grid_sample().SerializeToString())
    assert session.get_providers() == [REFUSING, CPU]
    assert list(tmp_path.iterdir()) == []
    assert options.enable_profiling
    assert options.optimized_model_filepath == "saved.onnx"
    assert options.log_severity_level == 3
    assert options.get_session_config_entry("ep.context_enable") == "1"


def test_config_entries_are_all_entries_of_options() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("a key that nobody knows", "its value")
    assert config_entries(options) == {"a key that nobody knows": "its value"}
    assert config_entries(onnxruntime.SessionOptions()) == {}


# --- Commands ---


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(grid_sample(), path)
    return str(path)


def test_inspect_shows_the_form_that_a_plugin_runs(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", model_path, "--provider", REFUSING, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["session"]["runs_on"] == REFUSING


def test_bench_runs_both_sides_on_a_plugin(
    model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", model_path, "--provider", REFUSING, "--seconds", "0", "--rounds", "1"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["provider"] == REFUSING
    assert result["sides"]["ort_gridsample"]["difference"] < 1e-6
    for side in ("onnxruntime", "ort_gridsample"):
        (node,) = result["sides"][side]["nodes"].values()
        assert node["op_type"] == "GridSample"


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_command_registers_the_library_of_a_plugin(command: str, model_path: str) -> None:
    words = [command, model_path, "--provider", REFUSING, "--provider-library"]
    quick = ["--seconds", "0", "--rounds", "1"] if command == "bench" else []
    lines = run_program("command_line.py", *words, str(refusing_plugin()), *quick)
    assert any(REFUSING in line for line in lines)
