"""What execution providers other than the CPU's run of a node, and in which form: asked of them, by trying.

They are asked with a model of that node alone, CPU fallback switched off, in a process that may crash, and the answer
is looked at. What they said is kept on disk, for this release of onnxruntime, these options and this device.
"""

import hashlib
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from .. import spec
from ..detection.records import NodeRecord, spatial_axes
from ..errors import GridSampleError
from ..functions.operators import affine_grid
from ..graph.files import atomic_write
from ..inference.types import Value
from ..kernels.cache_folder import cache_folder
from ..reference.arrays import Array
from ..reference.threads import interpreter
from ..rewriting.patch import patch_in_place
from ..rewriting.targets import Target
from ..rewriting.targets.runtimes import ANY, RUNTIMES
from ..rewriting.targets.spelled import Spelled
from . import probe_process as trial
from .native import WRONG, fed, one_node, sampled

#: What may be done to nodes for providers that come before the CPU's: ``"lower"``: write them in a form that these run;
#: ``"keep"``: leave those that these run as they are; ``"never"``: nothing, as if there were the CPU alone.
Accelerated: TypeAlias = Literal["lower", "keep", "never"]
ACCELERATED: tuple[str, ...] = get_args(Accelerated)
#: The form of basic operators that a provider needs.
_FORMS = {"WebGpuExecutionProvider": RUNTIMES["onnxruntime-webgpu"]}

_TRIAL = Path(trial.__file__)
#: So long may a provider take to compile and run one node.
SECONDS = 60
#: What is kept where a provider runs a model, and how it begins where nothing is.
_YES, _LATE = "yes", "it takes longer"
#: After so many seconds a provider that refused is asked again: a driver may have been installed.
_DAY = 86400.0
#: What a record says of a node that is in a function, and in no body there.
_FUNCTION = re.compile(r"function \S+")
#: Of what onnxruntime says where a provider does not take all nodes, and how much to show of what providers say.
_LEFT, _LONGEST = "fallback to CPU EP has been explicitly disabled", 300
#: Lengths of axes that only a run knows: a batch of heads, some channels, pixels, and few positions.
_BATCH, _CHANNELS, _LENGTHS, _OUT = 8, 4, (9, 7, 6), (5, 3, 4)
#: Of more values X has few channels in a probe.
_LARGE = 1 << 23

Shape = list[int | str | None]
#: Execution providers with their options.
Providers: TypeAlias = Sequence[tuple[str, Mapping[str, str]]]


@dataclass(frozen=True)
class Probe:
    """A model of one node, and what makes its inputs (values in [0, 1), positions far from any tie) and Y."""

    model: onnx.ModelProto
    make: Callable[[], tuple[Mapping[str, Array], Array]]


@dataclass(frozen=True)
class Way:
    """A form of a node that the providers run, its target, and why they do not run the node's own, which has none."""

    name: str = ""
    target: Target | None = None
    why: str = ""


def before_the_cpu(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None, options: Sequence[Mapping[Any, Any]] | None
) -> Providers:
    """Those of a session's ``providers`` that are installed and come before the CPU's, with their ``options``."""
    given = list(providers or ())
    each = [(p, o) if isinstance(p, str) else p for p, o in zip(given, options or [{}] * len(given), strict=False)]
    there = onnxruntime.get_available_providers() if each else []
    before = takewhile(lambda one: one[0] != "CPUExecutionProvider", each)
    return [(name, {str(k): str(v) for k, v in said.items()}) for name, said in before if name in there]


class Accelerators:
    """The execution ``providers`` of a session that come before the CPU's; to be closed once they were asked.

    ``accelerated`` says what may be done to nodes for them, ``alone`` whether the model has none but those concerned.
    """

    def __init__(self, providers: Providers, accelerated: Accelerated, alone: bool) -> None:
        self._providers, self._accelerated, self._alone = providers, accelerated, alone
        self._trial = Trial()
        self.name = " or ".join(name for name, _ in providers)

    def close(self) -> None:
        """End the process in which they are asked."""
        self._trial.close()

    def __bool__(self) -> bool:
        return bool(self._providers) and self._accelerated != "never"

    def way(self, record: NodeRecord, opsets: Mapping[str, int]) -> Way | None:
        """How they run the node of ``record``; None where they do not, or too little is known of it to ask.

        What several nodes compute stays as it is: the providers know basic operators.
        """
        if record.unrolled:
            return Way()
        if record.patched or record.error is not None:
            return None
        probes = [probe(record, case, opsets, self._alone) for case in record.cases]
        known = [each for each in probes if each is not None]
        if not known or len(known) < len(probes):
            return None
        why = ""
        for name, target in self._forms(record):
            refusal = next(filter(None, (self._refusal(each, target) for each in known)), "")
            if not refusal:
                return Way(name, target, why)
            why = why or refusal
        return None

    def _forms(self, record: NodeRecord) -> Iterator[tuple[str, Target | None]]:
        """The forms to try, in their order: its own, and others where it does not run as it is."""
        yield "", None
        # Bodies of If, Loop and Scan are left: some providers crash over others than those that they refuse.
        is_in_body = bool(record.graph) and not _FUNCTION.fullmatch(record.graph)
        if self._accelerated == "keep" or record.passes_on or is_in_body:
            return
        from ..rewriting.targets.lowered import Primitives, TwoAxes  # here, as importing it takes a while

        runtime = next((_FORMS[name] for name, _ in self._providers if name in _FORMS), ANY)
        if record.operator == "GridSample":
            yield "the standard's node", Spelled("ai.onnx")
            yield "opset 16's words", Spelled("ai.onnx", first_words=True)
            yield "com.microsoft's node", Spelled("com.microsoft")
            yield "4-D GridSamples", TwoAxes(runtime=runtime)
        yield "basic operators", Primitives(runtime=runtime)

    def _refusal(self, asked: Probe, target: Target | None) -> str:
        """Why they do not run the probe's node alone, as ``target`` writes it, and rightly; empty where they do."""
        written = deepcopy(asked.model)
        try:
            has_form = target is None or bool(patch_in_place(written, target)[0])
        except GridSampleError:
            has_form = False
        if not has_form:
            return "it has no such form"
        model = written.SerializeToString(deterministic=True)
        providers = [(name, sorted(said.items())) for name, said in self._providers]
        asked_of = repr((onnxruntime.__version__, _devices(), providers)).encode()
        key = hashlib.sha256(asked_of + model).hexdigest()
        found = _known.get(key) or _kept(key)
        if not found:
            found = ask(self._trial, model, self._providers, asked)
            if not found.startswith(_LATE):  # the machine may be busy
                _keep(key, found)
        _known[key] = found
        return "" if found == _YES else found


def probe(record: NodeRecord, case: Sequence[Value], opsets: Mapping[str, int], alone: bool) -> Probe | None:
    """The probe of a node that is called as in ``case``; None where too little is known of it.

    Its shapes are what is known of the node's, ``opsets`` the versions of its domains; ``alone``: whether the model is
    to have no other node, as some providers take nothing that is alone.
    """
    types = {name: value.type for name, value in zip(record.values, case, strict=True) if value.type}
    axes = spatial_axes(record.operator, case)
    is_float = next(iter(types.values()), "") in spec.FLOATS
    if axes not in (1, 2, 3) or len(types) < len(case) or not is_float or any(0 in (v.shape or ()) for v in case):
        return None
    said = record.possible_attributes
    known: list[Shape] = [[] if value.shape is None else list(value.shape) for value in case]
    if record.operator == "AffineGrid":
        shapes: list[Shape] = [known[0] or [None, axes, axes + 1], [axes + 2]]
    else:
        unknown: Shape = [None] * (axes + 2)
        shapes = [known[0] or unknown[:], [*(known[1] or unknown)[:-1], axes]]
        lengths = _lengths(shapes[0], shapes[1])
    align_corners = bool(said["align_corners"])

    def make() -> tuple[Mapping[str, Array], Array]:
        rng = np.random.default_rng(0)
        if record.operator == "AffineGrid":
            size, n = record.constants.get("size"), shapes[0][0]
            first, *others = [_BATCH, _CHANNELS, *_OUT[:axes]] if size is None else size.tolist()
            n = n if isinstance(n, int) else first
            arrays: tuple[Array, Array] = rng.random((n, axes, axes + 1)), np.array([n, *others], np.int64)
            expected = affine_grid(*arrays, align_corners)
        else:
            X, positions = lengths
            sides = np.array(X[:1:-1], np.float64)
            pixels = np.floor(rng.uniform(-1, sides + 1, positions)) + rng.uniform(0.1, 0.4, positions)
            grid = 2 * pixels / np.maximum(sides - 1, 1) - 1 if align_corners else (2 * pixels + 1) / sides - 1
            arrays = rng.random(X), grid
            expected = sampled(*arrays, str(said["mode"]), str(said["padding_mode"]), align_corners)
        return {name: each.astype(fed(types[name])) for name, each in zip(types, arrays, strict=True)}, expected

    imports = [(domain, opsets.get(domain, 1)) for domain in dict.fromkeys(("", record.domain))]
    model = one_node(record.bare(), imports, types.items(), shapes)
    if not alone:
        source = model.graph.input[0].name
        for reader in model.graph.node:
            reader.input[:] = ["beside" if name == source else name for name in reader.input]
        model.graph.node.insert(0, helper.make_node("Relu", [source], ["beside"]))  # no value in it is below 0
    return Probe(model, make)


def _lengths(X_shape: Shape, grid_shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths of X and the grid in a probe; where X is large, ``X_shape`` gets few channels."""
    axes, lengths = len(X_shape) - 2, dict[str, int]()

    def filled(shape: Shape, guess: Sequence[int]) -> tuple[int, ...]:
        pairs = zip(shape, guess, strict=True)
        return tuple(d if isinstance(d, int) else lengths.setdefault(d, g) if d else g for d, g in pairs)

    n = next((d for d in (X_shape[0], grid_shape[0]) if isinstance(d, int)), _BATCH)
    if prod(filled([n, *X_shape[1:]], [n, _CHANNELS, *_LENGTHS[:axes]])) > _LARGE:
        X_shape[1] = min(_CHANNELS, X_shape[1]) if isinstance(X_shape[1], int) else X_shape[1]
    X = filled([n, *X_shape[1:]], [n, _CHANNELS, *_LENGTHS[:axes]])
    return X, filled([n, *grid_shape[1:]], [n, *_OUT[:axes], axes])


#: What was answered in this process, and before it forked: a key -> :data:`_YES`, or why not.
_known: dict[str, str] = {}


class Trial:
    """A process of its own, in which models run; there is one while somebody asks, and another one after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def answer(self, *asked: object) -> Array | str:
        """The output of a model; in words why there is none."""
        if (python := interpreter()) is None:
            return "inside a host program there is no Python for another process that could be asked"
        if self._process is None:
            code = f"import sys, runpy; sys.path[:] = {sys.path!r}; runpy.run_path({str(_TRIAL)!r}, None, '__main__')"
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen([python, "-c", code], **pipes)
        process, timer, began = self._process, threading.Timer(SECONDS, self._process.kill), time.monotonic()
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(asked, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            is_late, ended = time.monotonic() - began >= SECONDS, process.wait()
            self.close()
            return f"{_LATE} than {SECONDS} seconds" if is_late else f"it ends the process, with {ended}"
        finally:
            timer.cancel()


def ask(trial: Trial, model: bytes, providers: Providers, asked: Probe) -> str:
    """:data:`_YES` where ``providers`` run ``model`` alone, and rightly; else why not."""
    feeds, expected = asked.make()
    answer = trial.answer(model, [name for name, _ in providers], [dict(said) for _, said in providers], feeds)
    if isinstance(answer, str):
        left = "it leaves the node to the CPU" if _LEFT in answer else answer
        return left if len(left) <= _LONGEST else f"…{left[-_LONGEST:]}"
    if answer.shape != expected.shape:
        return f"its answer is of shape {answer.shape}, expected {expected.shape}"
    off = float(np.nan_to_num(np.abs(answer - expected), nan=np.inf).max(initial=0))
    return _YES if off < WRONG else f"its answer is off by {off:.2g} where values are in [0, 1]"


@cache
def _devices() -> str:
    with suppress(Exception):  # onnxruntime before 1.22, or a provider that fails
        return repr(sorted((d.ep_name, d.device.vendor, d.device.device_id) for d in onnxruntime.get_ep_devices()))
    return onnxruntime.get_device()


def _folder() -> Path:
    return cache_folder() / "providers"


def _kept(key: str) -> str | None:
    with suppress(OSError, RuntimeError):  # no file, or no home
        file = _folder() / key
        if (found := file.read_text(encoding="utf-8")) == _YES or time.time() - file.stat().st_mtime < _DAY:
            return found
    return None


def _keep(key: str, answer: str) -> None:
    with suppress(OSError, RuntimeError):
        _folder().mkdir(parents=True, exist_ok=True)
        with atomic_write(_folder() / key) as file:
            file.write_text(answer, encoding="utf-8")
