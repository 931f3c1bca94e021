"""Sessions on the execution provider whose nodes are fused: files, other providers, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from support import attention_forms, grid_forms
from support.exported_models import EXPORTED_FOLDER
from support.forms import Form
from support.paths import needs_provider, open_provider, provider_options, quiet_options
from support.processes import run_program
from support.provider_nodes import count_fused

pytestmark = needs_provider

#: A form of one attention, and one of a computed grid.
FUSED = {
    "attention": attention_forms.form_of(attention_forms.SMALL),
    "grid": grid_forms.chain_form(grid_forms.flow),
}
every_form = pytest.mark.parametrize("form", FUSED.values(), ids=FUSED)


@every_form
def test_nodes_of_another_provider_are_not_fused(form: Form) -> None:
    order = ["CPUExecutionProvider", ogs.register_provider()]
    if ogs.register_provider() not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime does not find providers by their names")
    options = quiet_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = form.model.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=order)
    assert count_fused(session) == 0


@every_form
def test_saved_model_has_single_nodes(form: Form, tmp_path: Path) -> None:
    """Onnxruntime refuses to save fused nodes."""
    path = tmp_path / "optimized.onnx"
    options = provider_options()
    options.optimized_model_filepath = str(path)
    session = onnxruntime.InferenceSession(form.model.SerializeToString(), options)
    assert count_fused(session) == 0
    saved = onnxruntime.InferenceSession(path, provider_options())
    assert count_fused(saved) == 1
    form.assert_outputs(saved.run(None, form.feeds))


@every_form
def test_model_for_contexts_has_single_nodes(form: Form, tmp_path: Path) -> None:
    """Onnxruntime refuses fused nodes in a model that it compiles for providers."""
    source = tmp_path / "model.onnx"
    compiled = tmp_path / "compiled.onnx"
    onnx.save(form.model, source)
    onnxruntime.ModelCompiler(provider_options(), str(source)).compile_to_file(str(compiled))
    assert count_fused(onnxruntime.InferenceSession(compiled, provider_options())) == 1


def test_sessions_of_many_threads_get_their_own_nodes() -> None:
    names = [name for name in attention_forms.EXPORTED if name.endswith("static-dynamo")] * 4
    forms = [attention_forms.form_of(name) for name in names]

    def outputs(form: Form) -> list[np.ndarray]:
        session = open_provider(form.model)
        assert count_fused(session) == 1
        return session.run(None, form.feeds)

    with ThreadPoolExecutor(8) as pool:
        for form, Y in zip(forms, pool.map(outputs, forms), strict=True):
            form.assert_outputs(Y)


def test_model_patched_to_tensorrts_plugin_has_the_same_outputs() -> None:
    """A library of the provider runs this model, but does not fuse."""
    form = attention_forms.form_of("stacked/static-dynamo")
    patched = ogs.patch_model(form.model, target="tensorrt-plugins")
    form.assert_outputs(open_provider(patched).run(None, form.feeds))


#: Exported models -> the number of their deformable attentions.
EXPORTED = {"deformable_detr": 3, "grounding_dino": 3, "mask2former": 1, "rt_detr_v2": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_model_has_its_attentions(name: str) -> None:
    path = EXPORTED_FOLDER / f"{name}.onnx"
    session = onnxruntime.InferenceSession(path, provider_options())
    assert count_fused(session) == EXPORTED[name]


@pytest.mark.slow
@pytest.mark.parametrize("model", [attention_forms.SMALL, "transformer"])
def test_a_thousand_sessions_with_fused_nodes_leak_nothing(model: str) -> None:
    """Resident memory after 1,000 sessions, in MiB more than after the first 100."""
    (grown,) = run_program("provider_sessions.py", "1000", model)
    assert float(grown) < 8
