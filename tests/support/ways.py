"""The ways to run a model, with the same interface: sessions, files and lowered models.

Each way opens a model as an object with ``run(None, feeds)``, which returns the outputs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import inliner
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from support import faults
from support.built_library import needs_linker
from support.forms import Arrays, Form
from support.fused_models import needs_compiled_ops
from support.paths import (
    HAS_COMPILED_OPS,
    HAS_PYTHON_OPS,
    LIBRARY,
    needs_provider,
    needs_python_ops,
    open_compiled,
    open_compiled_file,
    open_library,
    open_native,
    open_patched_file,
    open_provider,
    quiet_options,
    running_on,
    skip_unrunnable,
)

ATTENTION = "DeformableAttention"


class Runner(Protocol):
    """A session, or what has the same method."""

    def run(self, output_names: None, feeds: Arrays) -> list[np.ndarray]:
        """Return the outputs."""


Open = Callable[[onnx.ModelProto], Runner]


def open_python(model: onnx.ModelProto) -> ogs.InferenceSession:
    """Open this package's session; all nodes run on Python ops."""
    skip_unrunnable(model)
    with running_on("python"):
        return ogs.InferenceSession(model, quiet_options(), nodes="all")


def open_declined(model: onnx.ModelProto) -> ogs.InferenceSession:
    """Open this package's session; the user declines attentions and fused grids."""
    faults.skip_unread(model)

    def is_single(record: ogs.NodeRecord) -> bool:
        return record.operator != ATTENTION and not record.fused

    return ogs.InferenceSession(model, quiet_options(), nodes=is_single)


def open_saved(model: onnx.ModelProto) -> ogs.InferenceSession:
    """Open the model that onnxruntime saves of this package's session, in another one.

    The first session fuses no grids, because a model with a fused grid is refused.
    """
    faults.skip_unread(model)

    def has_no_fused_grid(record: ogs.NodeRecord) -> bool:
        return record.operator == ATTENTION or not record.fused

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        options = quiet_options()
        options.optimized_model_filepath = str(path)
        ogs.InferenceSession(model, options, nodes=has_no_fused_grid)
        return ogs.InferenceSession(path, quiet_options())


def open_lowered(model: onnx.ModelProto, **arguments: Any) -> onnxruntime.InferenceSession:
    """Lower a model; open it in onnxruntime's own session."""
    faults.skip_unread(model)
    return open_native(ogs.patch_model(model, **arguments))


def open_plugin(model: onnx.ModelProto) -> ogs.InferenceSession:
    """Write a model with TensorRT's plugins; open it in this package's session."""
    faults.skip_unread(model)
    return ogs.InferenceSession(ogs.patch_model(model, target="tensorrt-plugins"), quiet_options())


def open_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Open a model in onnx's evaluator, with this package's operators."""
    if model.functions:  # the evaluator has no added operators in functions
        model = inliner.inline_local_functions(model)
    return ReferenceEvaluator(model, new_ops=ogs.reference_ops())


#: The name of a way -> how it opens a model.
WAYS: dict[str, Open] = {
    "python": open_python,
    "compiled": open_compiled,
    "declined": open_declined,
    "saved": open_saved,
    "patched file": open_patched_file,
    "compiled file": open_compiled_file,
    "provider": open_provider,
    "library": open_library,
    "ai.onnx": partial(open_lowered, target="ai.onnx"),
    "primitives": partial(open_lowered, target="primitives"),
    "functions": partial(open_lowered, target="primitives", functions=True),
    "tensorrt-plugins": open_plugin,
    "evaluator": open_evaluator,
}
#: The same for ways that run a sample of forms only: those of known spatial lengths and finite
#: coordinates.
SAMPLED_WAYS: dict[str, Open] = {
    "matrix products": partial(open_lowered, target="primitives", for_runtime="gather-free"),
}
_needs_ops = [
    pytest.mark.skipif(
        not (HAS_PYTHON_OPS or HAS_COMPILED_OPS), reason="no ops of this package are installed"
    )
]
#: The marks of ways that need what may not be installed.
_MARKS = {
    **dict.fromkeys(("declined", "patched file", "tensorrt-plugins"), _needs_ops),
    "python": [needs_python_ops],
    "compiled": [needs_compiled_ops],
    "saved": [needs_compiled_ops],
    "compiled file": [needs_compiled_ops],
    "provider": needs_provider,
    "library": [] if LIBRARY else [needs_linker],
}


def way_param(
    *values: object, way: str, marks: Sequence[pytest.MarkDecorator] = (), id: str = ""
) -> Any:
    """Return a parameter set of ``values`` and the way, skipped if the way is not installed."""
    names = "-".join([*([id] if id else map(str, values)), way])
    return pytest.param(*values, way, marks=[*_MARKS.get(way, []), *marks], id=names)


class Limit(NamedTuple):
    """What some ways cannot do with some forms.

    Attributes:
        ways: the names of the ways.
        forms: a regular expression of the names of the forms.
        reason: why.
        error: a regular expression of the error of the way. Empty if the way may depend on the
            release of onnxruntime, so that it is not tried.
    """

    ways: Sequence[str]
    forms: str
    reason: str
    error: str = ""


def limit_of(limits: Sequence[Limit], name: str, way: str) -> Limit | None:
    """Return why the way cannot run the form."""
    for limit in limits:
        if way in limit.ways and re.match(limit.forms, name):
            return limit
    return None


class Matrix(NamedTuple):
    """Forms that all ways run.

    Attributes:
        form_of: returns the form of a name.
        limits: what some ways cannot do.
        sample: whether all ways run the form by default, also to test the limits.
        quick_ways: those that run every form by default.
        library: a regular expression of the forms for which the tests' own library has kernels.
    """

    form_of: Callable[[str], Form]
    limits: Sequence[Limit]
    sample: Callable[[str], bool]
    quick_ways: Sequence[str] = ()
    library: str = ".*"

    def cells(
        self, names: Iterable[str], other_ways: Sequence[str] = (), *, are_slow: bool = False
    ) -> list[Any]:
        """Return a parameter for each form and way, except the ``other_ways``."""
        cells = []
        for name, way in product(names, WAYS):
            limit = limit_of(self.limits, name, way)
            is_in_sample = self.sample(name)
            if way in other_ways or (limit and not is_in_sample):
                continue
            if way == "library" and not LIBRARY and not re.match(self.library, name):
                continue
            is_quick = not are_slow and (is_in_sample or way in self.quick_ways)
            marks = [] if is_quick else [pytest.mark.slow]
            if limit and not limit.error:
                marks.append(pytest.mark.skip(reason=limit.reason))
            cells.append(way_param(name, way=way, marks=marks))
        return cells

    def sample_cells(self, way: str, names: Iterable[str]) -> list[Any]:
        """Return a parameter for each of these forms, in one of :data:`SAMPLED_WAYS`."""
        return [
            way_param(name, way=way, marks=[] if self.sample(name) else [pytest.mark.slow])
            for name in names
        ]

    def run(self, name: str, way: str) -> tuple[Runner, list[np.ndarray]] | None:
        """Compare a form with the oracle in a way; return the session and its outputs.

        Return None if the way refuses the form, as a limit states.
        """
        form = self.form_of(name)
        limit = limit_of(self.limits, name, way)
        if limit:
            with pytest.raises(Exception, match=limit.error):
                WAYS[way](form.model).run(None, form.feeds)
            return None
        session = {**WAYS, **SAMPLED_WAYS}[way](form.model)
        outputs = session.run(None, form.feeds)
        form.assert_outputs(outputs)
        return session, outputs

    def assert_limits_are_tested(self, names: Iterable[str]) -> None:
        """Check that each limit is that of a form that all ways run."""
        sample = [name for name in names if self.sample(name)]
        for limit in self.limits:
            assert any(re.match(limit.forms, name) for name in sample), limit.reason
