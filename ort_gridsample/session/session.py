"""The session that patches by itself: a model comes in, answers or a :class:`GridSampleError` go out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import EncodeError
from onnxruntime import IOBinding, OrtValue, RunOptions, SessionOptions

from .. import spec, versions
from ..custom_ops import signals
from ..custom_ops.python_ops import extensions, failures, shutdown
from ..detection.helpers import OTHER_SHAPE
from ..detection.records import NodeRecord
from ..dialects.registry import operator_types
from ..dialects.table import COMPOSITE_OP_TYPES, DOMAIN
from ..errors import GridSampleError
from ..functions.cores import load_core, logger
from ..functions.validation import listed
from ..graph.files import Model, follow_links, locations, read_model, translate_errors
from ..graph.scope import Scope, constants, domain_of, scopes, unread
from ..graph.weights import NO_WEIGHTS, Loaded, Weights, exceeds_protobuf, split, split_proto
from ..reference import memory
from ..rewriting.passes import Selection
from ..rewriting.patch import bind_threads, check_selection, patch_in_place
from . import forks, native
from .accelerators import ACCELERATED, Accelerated, Accelerators, Providers, before_the_cpu
from .options import added_to, copied, entry, from_state, has_providers, set_default, state
from .placement import Ops, Placement
from .registration import add_python_ops, register, register_new

_Parent = onnxruntime.InferenceSession

_ALLOW_SPINNING = "session.intra_op.allow_spinning"
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
#: Whether onnxruntime can read external data in memory, as long as the session lives, and the entry by which it does.
_READS_MEMORY = versions.at_least(onnxruntime.__version__, "1.31")
_WITHOUT_COPY = "session.use_external_initializer_file_buffers_directly"
#: Whether onnxruntime reads external data from there, of a model that it gets as bytes.
_READS_FOLDER = versions.at_least(onnxruntime.__version__, "1.21")
#: Domains of operators that onnxruntime or this package has, with all domains below them.
_KNOWN_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms", DOMAIN)
#: The sentence of a compiled op's error, in onnxruntime's message.
_OPERATORS = (*spec.OPERATORS, *spec.COMPOSITES)
_ARGUMENTS = {name for each in _OPERATORS for name in spec.newest(each).types} | {"Y", "spatial_shapes", "memory"}
_WHERE = rf"(?s)Status Message: ((?:{'|'.join(_OPERATORS)}) node .*?)"
#: The name of a node that checks a shape (:func:`ort_gridsample.detection.helpers.is_check`).
_CHECK = re.compile(rf"(?s)Name:'(\w+ node .*?): (\w+) is ({OTHER_SHAPE}), expected (.*?)(?:_\d+)?' Status Message: ")
_SENTENCE = re.compile(rf"{_WHERE}: ({'|'.join(_ARGUMENTS)}) is (.*?), expected (.*)")
#: Frames of Python's stack between a run and the place where an op can record its failures, and some more.
STACK = 30


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` that runs any GridSample and AffineGrid.

    It patches the model in memory and registers the ops; everything else is its parent's. ``run`` and its siblings
    raise :class:`GridSampleError` where an op rejected its input. Where a node runs on a Python op, onnxruntime's
    threads do not spin (``session.intra_op.allow_spinning``) unless ``sess_options`` say otherwise, as they would do so
    on the processors that the op needs.

    ``sess_options`` stay as they are: the session's own are a copy. Two things cannot be copied: execution providers
    that were added to the options themselves, and libraries of custom ops. Where there are such providers, or the model
    uses operators of a domain that neither onnxruntime nor this package knows, the session takes ``sess_options``
    themselves and adds to them.

    It can be pickled. The model goes along (of a path, only the path), and of the options their attributes and the
    configuration entries that onnxruntime knows; dimensions, initializers and libraries that were added to them do not.

    Args:
        path_or_bytes: a path, the bytes of a model, or a ModelProto. External data is found relative to the path.
        sess_options, providers, provider_options, kwargs: the parent's.
        model: another name for ``path_or_bytes``.
        nodes: which nodes may not stay onnxruntime's own: ``"all"``, ``"unsupported"`` or a function, as
            :func:`patch_model` takes them. None: those that have a compiled op, or that onnxruntime does not run.
            :attr:`replaced` says what became of them.
        accelerated: what becomes of nodes, which ``nodes`` do not ask to be ops, where providers come before the CPU's:
            ``"lower"``: they stay on these, written in another form where a provider runs only that; ``"keep"``: they
            stay where a provider runs them as they are; ``"never"``: they are placed as if there were the CPU alone.

    Raises:
        GridSampleError: a node concerned is not what its opset allows, or external data lies outside a path's folder.
        OSError: the file cannot be read.
        ImportError: a node concerned needs onnxruntime-extensions, and there is none.
        TypeError: no model is given, or two.
        Exception: whatever the parent raises.
    """

    #: What onnxruntime reads without copying it.
    _memory: tuple[npt.NDArray[np.uint8], ...] = ()

    def __init__(
        self, path_or_bytes: Model | None = None, sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None, *, model: Model | None = None,
        nodes: Selection | None = None, accelerated: Accelerated = "lower", **kwargs: Any,
    ) -> None:  # fmt: skip
        if (path_or_bytes is None) == (model is None):
            found = "neither" if model is None else "both"
            raise TypeError(f"InferenceSession got {found} of path_or_bytes and model, expected one of them")
        given: Any = path_or_bytes if model is None else model
        if nodes is not None:
            check_selection("InferenceSession", nodes)
        if accelerated not in ACCELERATED:
            raise GridSampleError("InferenceSession", "accelerated", repr(accelerated), listed(ACCELERATED))
        there = before_the_cpu(providers, provider_options)
        patched = _patched(given, nodes, sess_options, there, accelerated)
        path = os.path.abspath(given) if isinstance(given, (str, os.PathLike)) else None
        # A model that goes along is patched already, and what it left to onnxruntime is left there.
        kept = nodes if path or not callable(nodes) else "unsupported"
        own: dict[str, Any] = {"nodes": kept, "accelerated": accelerated}
        self._arguments = (path or patched.pickled, providers, provider_options, own, kwargs)
        try:
            self._open(patched, sess_options)
        except Exception as error:
            if all(each.ours or each.runs_on == "onnxruntime" for each in patched.placements):
                raise
            logger.warning("%s do not make a session of this model with its nodes: %s", dict(there), error)
            self._open(_patched(given, nodes, sess_options, there, "never"), sess_options)
        self._names = [output.name for output in self.get_outputs()]  # or every run would ask for them anew

    def _open(self, patched: _Patched, sess_options: SessionOptions | None) -> None:
        _prepare(patched.python)
        self._placements = patched.placements
        self._weights, self._given_options = patched.weights, sess_options
        # Where nobody could read the nodes, there may be any.
        self._runs_python_ops = bool(patched.python) or patched.domains is None
        _, providers, provider_options, *_, kwargs = self._arguments
        super().__init__(patched.model, _options(sess_options, patched), providers, provider_options, **kwargs)
        if patched.loaded is not None and patched.in_memory:  # runs on former providers may still read theirs
            self._memory = (*self._memory, *patched.loaded.files.values())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        forks.track_attribute(name, value)

    @property
    def replaced(self) -> list[Placement]:
        """What each GridSample and AffineGrid node runs on, and why."""
        return list(self._placements)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[npt.NDArray[Any] | Any]:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input.

        Returns:
            An array for each output; of a sequence a list, of a map a dict.
        """
        if self._runs_python_ops:
            memory.probe(sum(map(_copied_bytes, input_feed.values())))
        # The parent would ask for the outputs' names anew in every run.
        return self._explained("run", output_names or self._names, input_feed, run_options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> Sequence[OrtValue]:  # fmt: skip
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        return self._explained("run_with_ort_values", output_names, input_dict_ort_values, run_options)

    def run_with_ortvaluevector(
        self, run_options: RunOptions | None, feed_names: Sequence[str], feeds: Any, fetch_names: Sequence[str],
        fetches: Any, fetch_devices: Sequence[Any],
    ) -> None:  # fmt: skip
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        args = run_options, feed_names, feeds, fetch_names, fetches, fetch_devices
        self._explained("run_with_ortvaluevector", *args)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        self._explained("run_with_iobinding", iobinding, run_options)

    def run_async(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        callback: Callable[[list[npt.NDArray[Any] | Any], Any, str], object], user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:  # fmt: skip
        """As the parent's; ``callback`` gets the whole sentence where an op rejected its input."""

        def explained(results: Any, user_data: Any, error: str) -> None:
            try:
                exception = _exception_for(error)
                callback(results, user_data, error if exception is None else str(exception))
            finally:
                shutdown.asynchronous_run_ended()

        shutdown.asynchronous_run_begins()
        try:
            super().run_async(output_names, input_feed, explained, user_data, run_options)
        except BaseException:
            shutdown.asynchronous_run_ended()
            raise

    def _explained(self, name: str, *args: Any) -> Any:
        if self._runs_python_ops:
            shutdown.run_begins()
            _need_stack(STACK)
            run = getattr(_Parent, name)
        else:
            shutdown.hold()
            run = signals.bare(getattr(_Parent, name))  # nothing makes signals wait
        try:
            return run(self, *args)
        except Exception as error:
            exception = _exception_for(str(error))
            if exception is None:
                raise
            raise exception from error

    def __reduce__(self) -> tuple[Any, ...]:
        _, *others = self._arguments
        model = self._whole_model()
        if isinstance(model, onnx.ModelProto):
            raise _too_large("the session cannot be pickled")
        return _unpickled, (model, *others, state(self.get_session_options()))

    def _whole_model(self) -> Any:
        """The path of the model, or its bytes with its weights; a ModelProto where these are too many for bytes."""
        model = self._arguments[0]
        if isinstance(model, bytes) and self._weights.places:
            proto = read_model(model)
            self._weights.put_back(proto, self._weights.places)
            return proto if exceeds_protobuf(proto) else proto.SerializeToString()
        return model

    def set_providers(
        self, providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:  # fmt: skip
        """As onnxruntime's: the session is made anew, on these providers."""
        if not self._weights.places:
            super().set_providers(providers, provider_options)
        else:  # whose values the options of before may not have any more
            (*_, own, kwargs), model = self._arguments, self._whole_model()
            InferenceSession.__init__(self, model, self._given_options, providers, provider_options, **own, **kwargs)


def _unpickled(*arguments: Any) -> InferenceSession:
    model, providers, provider_options, own, kwargs, options = arguments
    return InferenceSession(model, from_state(options), providers, provider_options, **own, **kwargs)


def _copied_bytes(value: Any) -> int:
    """The bytes of a feed's copies, without which the process ends: an op's, and onnxruntime's of what has gaps."""
    if not isinstance(value, np.ndarray):
        return 0
    nbytes = memory.copied_bytes(value)
    return nbytes if value.flags.c_contiguous else 2 * nbytes


def _exception_for(message: str) -> BaseException | None:
    """What an op of this package has to say, if it is behind onnxruntime's ``message``."""
    sentence = _SENTENCE.search(message) or _CHECK.search(message)
    return failures.exception_for(message) or (sentence and GridSampleError(*sentence.groups()))


def _need_stack(frames: int) -> None:
    """Raise RecursionError here, where it can be raised, if an op would find fewer ``frames`` left to call."""
    if frames:
        _need_stack(frames - 1)


@dataclass(frozen=True)
class _Patched:
    """A model as onnxruntime gets it."""

    model: bytes | str | os.PathLike[str]  #: its bytes, or what was given where nothing had to be changed
    pickled: bytes | str | os.PathLike[str]  #: what a pickled session keeps of it
    placements: list[Placement]  #: the nodes concerned, and what they run on
    #: Those of its nodes that it does not define itself, where nodes are concerned; None where onnx cannot read it.
    domains: frozenset[str] | None
    folder: str | None = None  #: where its external data is, if onnxruntime cannot know
    weights: Weights = NO_WEIGHTS  #: what ``pickled`` lacks
    loaded: Loaded | None = None  #: what ``model`` lacks
    in_memory: bool = False  #: whether onnxruntime reads that where it lies

    @property
    def python(self) -> list[NodeRecord]:
        """The nodes that run on Python ops."""
        return [placement.record for placement in self.placements if placement.runs_on == "Python op"]


def _patched(
    model: Model, nodes: Selection | None, options: SessionOptions | None, providers: Providers,
    accelerated: Accelerated,
) -> _Patched:  # fmt: skip
    if isinstance(model, onnx.ModelProto) and exceeds_protobuf(model):
        return _patched_large(model, nodes, options, providers)
    given: bytes | str | os.PathLike[str] = _serialized(model) if isinstance(model, onnx.ModelProto) else model
    saved = options is not None and bool(options.optimized_model_filepath)
    # Others may not know initializers that are added to options, nor can what is saved have them.
    parts = None if providers or saved or (options is not None and has_providers(options)) else split(given)
    try:
        proto, weights = parts or (read_model(given), NO_WEIGHTS)
    except GridSampleError:
        # onnxruntime knows its own format, and says what is wrong with any other
        return _Patched(given, given, [], None)
    with translate_errors(proto):
        found = scopes(proto, weights)
    if weights.places and options is not None and not all(map(_is_known, _domains(proto, found))):
        weights = weights.put_back(proto, weights.places)  # the options are the caller's own then
    elsewhere = set() if options is None else added_to(options, sorted(constants(found)))
    weights = weights.put_back(proto, elsewhere)
    alone = bool(providers) and set().union(*(s.op_types for s in found)) <= {*operator_types(), "Constant"}
    with unread(found, elsewhere), closing(Accelerators(providers, accelerated, alone)) as accelerators:
        ops = Ops(nodes, accelerators, saved)
        has_plugins = any(
            not COMPOSITE_OP_TYPES.isdisjoint(scope.op_types) for scope in found
        )  # none are records later
        with translate_errors(proto):
            replaced, others = patch_in_place(proto, ops, probe=native, found=found)
    placements = ops.placements([*replaced, *others])
    if not placements:
        return _Patched(given, given, [], frozenset())
    bound = bind_threads(found, 0 if options is None else options.intra_op_num_threads)
    domains = _domains(proto, found)
    # Older onnxruntimes read data outside of the folder.
    folder = None if isinstance(given, bytes) else follow_links(proto, given, found)
    if not (replaced or bound or has_plugins):
        return _Patched(given, given, placements, domains)
    if folder is not None and not _READS_FOLDER:
        weights = weights.put_back(proto, weights.places)
        onnx.load_external_data_for_model(proto, folder)
        folder = None
    if weights.places:  # onnxruntime drops what no node reads, and then misses it
        read = set[str]().union(*(names for scope in found for names in scope.inputs))
        weights = weights.put_back(proto, weights.places.keys() - read)
    # onnxruntime reads all external data in memory, or none.
    in_memory = _READS_MEMORY and bool(weights.places) and not any(locations(proto, found))
    loaded = weights.loaded(proto.graph.initializer) if weights.places else None
    patched = proto.SerializeToString()
    # What is written for other providers, no one else need read.
    pickled = patched if isinstance(given, bytes) and (callable(nodes) or not providers) else given
    return _Patched(patched, pickled, placements, domains, folder, weights, loaded, in_memory)


def _patched_large(
    model: onnx.ModelProto, nodes: Selection | None, options: SessionOptions | None, providers: Providers
) -> _Patched:
    """As :func:`_patched`, for a model that protobuf cannot serialize: its large initializers go beside it."""
    if providers:
        raise _too_large(f"{providers[0][0]} gets whole models only")
    if options is not None and has_providers(options):
        raise _too_large("the providers of sess_options get whole models only")
    if options is not None and options.optimized_model_filepath:
        raise _too_large("the optimized model cannot be saved")
    proto, weights = split_proto(model)
    if exceeds_protobuf(proto):
        raise _too_large("its values are not in the main graph's initializers, or are inputs or outputs too")
    with translate_errors(proto):
        found = scopes(proto, weights)
    if options is not None and not all(map(_is_known, _domains(proto, found))):
        raise _too_large("it has operators of other libraries, with which sess_options cannot be copied")
    elsewhere = set() if options is None else added_to(options, sorted(constants(found)))
    weights = weights.put_back(proto, elsewhere)
    with unread(found, elsewhere), closing(Accelerators(providers, "never", False)) as accelerators:
        ops = Ops(nodes, accelerators, False)
        with translate_errors(proto):
            replaced, others = patch_in_place(proto, ops, probe=native, found=found)
    placements = ops.placements([*replaced, *others])
    bind_threads(found, 0 if options is None else options.intra_op_num_threads)
    # onnxruntime drops initializers that no node reads, and then misses them among those that it gets.
    read = set[str]().union(*(names for scope in found for names in scope.inputs))
    dropped = weights.places.keys() - read
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in dropped]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    loaded = weights.without(dropped).loaded(proto.graph.initializer)
    # The caller may change the model: the session keeps the values that onnxruntime got.
    values = {name: array.reshape(-1).view(np.uint8) for name, array in loaded.arrays.items()}
    weights = Weights(values, {name: (0, array.size) for name, array in values.items()})
    patched = _serialized(proto)
    in_memory = _READS_MEMORY and not any(locations(model))
    return _Patched(patched, patched, placements, _domains(proto, found), None, weights, loaded, in_memory)


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError) as error:  # the latter by protobuf in pure Python
        raise _too_large(str(error)) from error


def _too_large(reason: str) -> GridSampleError:
    found = f"a ModelProto of more than 2 GiB ({reason})"
    expected = "the path of a model that was saved with external data (onnx.save with save_as_external_data=True)"
    return GridSampleError("InferenceSession", "the model", found, expected)


def _domains(model: onnx.ModelProto, found: Iterable[Scope]) -> frozenset[str]:
    used = frozenset[str]().union(*(scope.domains for scope in found))
    return used - {domain_of(function.domain) for function in model.functions}


def _options(given: SessionOptions | None, patched: _Patched) -> SessionOptions | None:
    """The options of a session that runs ``patched``: ``given`` as they are, or a copy that has what it needs."""
    if patched.domains is None:
        return _options_for_unknown_nodes(given)
    if not any(placement.ours for placement in patched.placements):
        if patched.loaded is None:
            return given
        options = SessionOptions() if given is None else copied(given)
    elif given is None:
        options = register()
    elif has_providers(given) or not all(map(_is_known, patched.domains)):
        options = register(given)  # their libraries or providers may be needed, and cannot be copied
    else:
        options = register_new(copied(given))
    if patched.python:
        add_python_ops(options)
        # onnxruntime's threads would go on spinning after their own nodes, on the processors that the ops need.
        set_default(options, _ALLOW_SPINNING, "0")
    elif not extensions.DOMAINS.isdisjoint(patched.domains):
        with suppress(ImportError):  # not installed, or the user has registered a library with these operators
            add_python_ops(options)
    if patched.folder not in (None, entry(options, _EXTERNAL_FOLDER)):  # onnxruntime warns of what is set again
        options.add_session_config_entry(_EXTERNAL_FOLDER, patched.folder)
    if patched.loaded is not None and patched.in_memory:
        files = patched.loaded.files
        options.add_external_initializers_from_files_in_memory([*files], [*files.values()], [*map(len, files.values())])
        set_default(options, _WITHOUT_COPY, "1")
    elif patched.loaded is not None:
        arrays = patched.loaded.arrays
        options.add_external_initializers([*arrays], [*map(OrtValue.ortvalue_from_numpy, arrays.values())])
    return options


def _options_for_unknown_nodes(given: SessionOptions | None) -> SessionOptions | None:
    """The options of a session for a model that onnx cannot read: ops of this package may be in it, or not."""
    with suppress(ImportError):
        options = register(given)
        with suppress(ImportError):
            add_python_ops(options)
        return options
    return given


def _is_known(domain: str) -> bool:
    if domain in extensions.DOMAINS:
        return False
    return not domain or any(domain == known or domain.startswith(f"{known}.") for known in _KNOWN_DOMAINS)


def _need_python_ops(records: Sequence[NodeRecord]) -> None:
    """Raise ImportError where the nodes of ``records`` cannot run on Python ops, and say which is the first."""
    try:
        extensions.load()
    except ImportError as error:
        strings = next((record for record in records if "str" in record.types.get("X", ())), None)
        if strings is not None:
            message = f"{strings.where}: X is of type str, and string tensors run on Python ops only. {error}"
            raise ImportError(message, name=error.name) from None
        raise


def _prepare(records: Sequence[NodeRecord]) -> None:
    """Let the core compile what the nodes need now, so that the first run does not wait for it."""
    if records:
        _need_python_ops(records)
    needed = {
        (spec.TYPES[X].transport, spec.TYPES[grid].transport, record.mode)
        for record in records
        if record.operator == "GridSample" and record.mode in spec.MODES
        for X, grid in product(record.types["X"], record.types["grid"])
    }
    for X, grid, mode in sorted(needed, key=str):
        if X != "str":
            load_core().prepare(np.dtype(X), np.dtype(grid), mode)
