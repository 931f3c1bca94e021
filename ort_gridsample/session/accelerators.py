"""Find out whether accelerators run a node, and in which form.

Accelerators are execution providers that come before the CPU's. They are tested with a model of
that node alone, without fallback to the CPU, in a process that may crash. The output is checked.
The answers are kept on disk for this release of onnxruntime, these provider options and this
device.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isfinite
from typing import Any, Literal, TypeAlias, get_args

import onnx
import onnxruntime

from ..detection.records import NodeRecord
from ..dialects.registry import operator_types
from ..errors import GridSampleError
from ..graph.runtimes import ANY, RUNTIMES
from ..graph.scope import Scope
from ..rewriting.patch import rewrite_selected_nodes
from ..rewriting.targets import Target
from ..rewriting.targets.dialect_target import DialectTarget
from . import form_times
from .accelerator_answers import ANSWERS, RUNS
from .plugins import CPU, Devices, Providers, device_keys, is_installed
from .probe_cases import ProbeCase, build_case
from .provider_process import ProviderProcess

logger = logging.getLogger("ort_gridsample")

#: What to do with nodes for accelerators. ``"lower"``: write a node in a form that an accelerator
#: runs. ``"keep"``: leave the nodes that an accelerator runs as they are. ``"never"``: place nodes
#: as if there were only the CPU.
AcceleratedPolicy: TypeAlias = Literal["lower", "keep", "never"]
ACCELERATED_POLICIES: tuple[str, ...] = get_args(AcceleratedPolicy)

#: Which of the forms that an accelerator runs is used. ``"first"``: the first. ``"fastest"``: the
#: fastest of all, or the op of this package on the CPU if that is faster.
ProvidersPolicy: TypeAlias = Literal["first", "fastest"]
PROVIDERS_POLICIES: tuple[str, ...] = get_args(ProvidersPolicy)

#: Accelerator -> the runtime whose form of basic operators it needs.
_RUNTIMES = {"WebGpuExecutionProvider": RUNTIMES["onnxruntime-webgpu"]}
#: How the names of forms of :class:`.Float32Target` end.
_IN_FLOAT32 = "in float32 between Casts"
#: What a form did whose timed run failed.
_FAILED = "failed when timed"
#: ``NodeRecord.graph`` of a node that is in a function, and not in a body inside of the function.
_FUNCTION = re.compile(r"function \S+")


@dataclass(frozen=True)
class ProviderForm:
    """A form of a node that accelerators run.

    Attributes:
        name: the name of the form; empty if the node stays as it is.
        target: the target that writes the form. None if the node stays as it is.
        refusal: why the accelerators do not run the node as it is; empty if they do.
        seconds: the times of this form and of the node as it is, if this form is faster.
        faster_on_cpu: the times that show that the CPU is faster, as text. Empty if it is not.
    """

    name: str = ""
    target: Target | None = None
    refusal: str = ""
    seconds: tuple[float, float] | None = None
    faster_on_cpu: str = ""

    def reason(self, accelerators: str) -> str:
        """Return why the node has this form; empty if it stays as it is.

        Args:
            accelerators: the name of the accelerators.
        """
        if not self.name:
            return ""
        because = f"{accelerators} refuses the node itself: {self.refusal}"
        if self.seconds is not None:
            form, node = self.seconds
            node_time = f"in {_milliseconds(node)}" if isfinite(node) else _FAILED
            because = (
                f"{accelerators} runs it in {_milliseconds(form)}, and the node itself {node_time}"
            )
        return f"written as {self.name}, because {because}"


def accelerators_of(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
) -> Providers:
    """Return the providers that are installed and come before the CPU's, with their options.

    Args:
        providers: the argument of a session: names, or pairs of a name and options.
        provider_options: the argument of a session: the options of each name.
    """
    if not providers:
        return []
    options = provider_options or [{}] * len(providers)
    pairs = [
        (provider, provider_option) if isinstance(provider, str) else provider
        for provider, provider_option in zip(providers, options, strict=False)
    ]
    before_cpu = takewhile(lambda pair: pair[0] != CPU, pairs)
    return [
        (name, {str(key): str(value) for key, value in provider_option.items()})
        for name, provider_option in before_cpu
        if is_installed(name)
    ]


def has_only_sampling_nodes(scopes: Iterable[Scope]) -> bool:
    """Whether all nodes of a model but Constants are sampling nodes."""
    op_types = set[str]().union(*(scope.indices_by_type for scope in scopes))
    return op_types <= {*operator_types(), "Constant"}


class AcceleratorProbe:
    """Find, by trying them, the forms of nodes that the accelerators of a session run.

    Close the object when the placements of all nodes are known.

    Args:
        accelerators: the accelerators, which may be none.
        accelerated: what to do with nodes for them.
        only_sampling_nodes: whether all nodes of the model are sampling nodes.
        devices: the devices of the accelerators that are plugins.
        policy: which of the forms that they run is used.
        num_threads: the number of threads of an op on the CPU; 0 for the process' default.

    Attributes:
        name: the name of the accelerators in placements.
    """

    def __init__(
        self,
        accelerators: Providers,
        accelerated: AcceleratedPolicy,
        *,
        only_sampling_nodes: bool,
        devices: Devices | None = None,
        policy: ProvidersPolicy = "first",
        num_threads: int = 0,
    ) -> None:
        self._policy = policy
        self._num_threads = num_threads
        self._accelerators = accelerators
        self._devices = dict(devices or {})
        self._accelerated = accelerated
        self._only_sampling_nodes = only_sampling_nodes
        self._process = ProviderProcess(accelerators, self._devices)
        self.name = " or ".join(name for name, _ in accelerators)

    def close(self) -> None:
        """End the process in which the accelerators run models."""
        self._process.close()

    @property
    def is_active(self) -> bool:
        """Whether there are accelerators that may run nodes."""
        return bool(self._accelerators) and self._accelerated != "never"

    def form_of(self, record: NodeRecord, opsets: Mapping[str, int]) -> ProviderForm | None:
        """Return the first form of a node that the accelerators run, or the fastest.

        A decomposed operator stays as it is, because accelerators run basic operators.

        Args:
            record: the node's record.
            opsets: the versions of the domains that the node is written in.

        Returns:
            The form. None if the accelerators run none, or if too little is known to test them.
        """
        if record.decomposed:
            return ProviderForm()
        if record.patched or record.error is not None:
            return None
        cases = list[ProbeCase]()
        for values in record.cases:
            case = build_case(record, values, opsets, self._only_sampling_nodes)
            if case is None:
                return None
            cases.append(case)
        if not cases:
            return None
        forms = self._forms_that_run(record, cases)
        # Times of other lengths would be misleading.
        is_timed = self._policy == "fastest" and all(case.has_known_lengths for case in cases)
        return self._fastest(record, cases, [*forms]) if is_timed else next(forms, None)

    def _forms_that_run(
        self, record: NodeRecord, cases: Sequence[ProbeCase]
    ) -> Iterator[ProviderForm]:
        """Yield the forms of a node that the accelerators run, in order."""
        node_refusal = ""
        for name, target in self._forms(record):
            refusals = (self._refusal(case, target) for case in cases)
            refusal = next(filter(None, refusals), "")
            if not name:
                node_refusal = refusal
            if not refusal:
                yield ProviderForm(name, target, node_refusal)

    def _fastest(
        self, record: NodeRecord, cases: Sequence[ProbeCase], forms: Sequence[ProviderForm]
    ) -> ProviderForm | None:
        """Return the fastest form, with the CPU's times if it is faster; None without forms."""
        if not forms:
            return None
        seconds = [sum(self._seconds(case, form.target) for case in cases) for form in forms]
        index = form_times.index_of_fastest(seconds)
        cpu_seconds = sum(map(self._cpu_seconds, cases))
        copy_seconds = sum(map(self._copy_seconds, cases))
        form = forms[index]
        if cpu_seconds + copy_seconds < seconds[index]:
            form_seconds = seconds[index]
            time = f"takes {_milliseconds(form_seconds)}" if isfinite(form_seconds) else _FAILED
            times = (
                f"the CPU takes {_milliseconds(cpu_seconds)} and copies take "
                f"{_milliseconds(copy_seconds)}; {self.name} {time}"
            )
            logger.info("%s: %s", record.where, times)
            return replace(form, faster_on_cpu=times)
        is_node_slower = index > 0 and not forms[0].name
        return replace(form, seconds=(seconds[index], seconds[0])) if is_node_slower else form

    def _seconds(self, case: ProbeCase, target: Target | None) -> float:
        """Return the seconds of a run of a case written by ``target``."""
        model = _written(case, target)
        assert model is not None
        key = self._key(model, case, "seconds")
        return ANSWERS.seconds(
            key, lambda: form_times.seconds_on_accelerators(self._process, case, model)
        )

    def _copy_seconds(self, case: ProbeCase) -> float:
        """Return the seconds in which the arrays of a case are copied in and out."""
        key = self._key(case.model.SerializeToString(deterministic=True), case, "copies")
        return ANSWERS.seconds(key, lambda: form_times.seconds_of_copies(self._process, case))

    def _cpu_seconds(self, case: ProbeCase) -> float:
        """Return the seconds of a run of a case without accelerators."""
        threads = self._num_threads
        environment = form_times.cpu_environment(threads)
        key = self._key(case.model.SerializeToString(deterministic=True), case, environment)
        return ANSWERS.seconds(key, lambda: form_times.seconds_on_cpu(case, threads))

    def _forms(self, record: NodeRecord) -> Iterator[tuple[str, Target | None]]:
        """Yield the names and targets of the forms to try, in order."""
        yield "", None
        # Nodes in bodies of If, Loop and Scan stay: some accelerators crash over nodes there that
        # are not the ones that they refuse.
        is_in_body = bool(record.graph) and not _FUNCTION.fullmatch(record.graph)
        if self._accelerated == "keep" or record.has_attribute_references or is_in_body:
            return
        # Slow to import, and rarely needed.
        from ..rewriting.targets.float32_target import Float32Target
        from ..rewriting.targets.lowering_targets import PrimitivesTarget, TwoAxesTarget

        runtimes = (_RUNTIMES[name] for name, _ in self._accelerators if name in _RUNTIMES)
        runtime = next(runtimes, ANY)
        is_grid_sample = record.operator == "GridSample"
        if is_grid_sample:
            yield "the standard's node", DialectTarget("ai.onnx")
            yield "opset 16's words", DialectTarget("ai.onnx", first_words=True)
            yield "com.microsoft's node", DialectTarget("com.microsoft")
        yield f"the standard's node {_IN_FLOAT32}", Float32Target("ai.onnx")
        if is_grid_sample:
            yield f"opset 16's words {_IN_FLOAT32}", Float32Target("ai.onnx", first_words=True)
            yield f"com.microsoft's node {_IN_FLOAT32}", Float32Target("com.microsoft")
            yield "4-D GridSamples", TwoAxesTarget(runtime=runtime)
        yield "basic operators", PrimitivesTarget(runtime=runtime)

    def _refusal(self, case: ProbeCase, target: Target | None) -> str:
        """Return why the accelerators refuse a case written by ``target``, else ""."""
        model = _written(case, target)
        if model is None:
            return "it has no such form"
        key = self._key(model, case)
        answer = ANSWERS.get(key)
        if not answer:
            answer = case.trial(model).refusal(self._process, "its answer") or RUNS
            ANSWERS.put(key, answer)
        return "" if answer == RUNS else answer

    def _key(self, model: bytes, case: ProbeCase, *others: object) -> str:
        """Return a key of an answer: a hash of all that the answer depends on."""
        accelerators = [(name, sorted(options.items())) for name, options in self._accelerators]
        devices = sorted(self._devices.items())
        providers = (accelerators, devices, device_keys() or onnxruntime.get_device())
        environment = (onnxruntime.__version__, providers, case.data_key, *others)
        return hashlib.sha256(repr(environment).encode() + model).hexdigest()


def _milliseconds(seconds: float) -> str:
    """Return seconds as text: milliseconds of two digits, without an exponent."""
    return f"{float(f'{1e3 * seconds:.2g}'):g} ms"


def _written(case: ProbeCase, target: Target | None) -> bytes | None:
    """Return the model of a case written by ``target``; None if the target has no form of it."""
    proto = deepcopy(case.model)
    if target is not None and not _rewrite(proto, target):
        return None
    return proto.SerializeToString(deterministic=True)


def _rewrite(model: onnx.ModelProto, target: Target) -> bool:
    """Rewrite the node of a case; whether the target has a form of it."""
    try:
        replaced, _ = rewrite_selected_nodes(model, target)
    except GridSampleError:
        return False
    return bool(replaced)
