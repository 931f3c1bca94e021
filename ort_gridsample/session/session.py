"""The session that runs any sampling node: onnxruntime's own, with the model patched in memory."""

from __future__ import annotations

import copyreg
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnxruntime import IOBinding, OrtValue, RunOptions

from ..custom_ops import signals
from ..custom_ops.plain_session import PLAIN_SESSION
from ..custom_ops.python_ops import failures, shutdown
from ..detection.unknown_nodes import unknown_operators_text
from ..errors import GridSampleError
from ..functions.validation import format_choices
from ..graph.files import Model, read_model
from ..graph.model_source import ModelSource
from ..graph.run_errors import read_error, read_failure
from ..graph.scope import scopes_of
from ..graph.tensors import exceeds_protobuf
from ..rewriting.passes import Selection
from ..rewriting.patch import check_selection
from ..system import memory
from . import forks, report, standard_files
from .accelerators import (
    ACCELERATED_POLICIES,
    PROVIDERS_POLICIES,
    AcceleratedPolicy,
    ProvidersPolicy,
    accelerators_of,
)
from .added_providers import added_providers
from .chosen_nodes import ChosenNodes
from .known_operators import unknown_operators
from .model_preparation import patch_for_session, too_large_to_pickle
from .options import State, is_error_of_unknown_operator, options_from_state, read_state
from .patched_model import PatchedModel, SessionArguments, Source
from .placement import COMPILED_OP, PYTHON_OP, Placement
from .plugins import Devices, are_found_by_name
from .prepared_options import options_for, with_providers
from .python_op_preparation import prepare_python_ops

logger = logging.getLogger("ort_gridsample")

_Parent = PLAIN_SESSION

#: How many frames must be left on Python's stack when a run starts: those between a run and the
#: place where an op records a failure, and some more.
_MIN_STACK_FRAMES = 30


@dataclass(frozen=True)
class _ReopenArguments:
    """The arguments with which a session is opened again, other than its options.

    A pickle contains them.

    Attributes:
        model: the path or the bytes of the model.
        providers, provider_options, nodes, accelerated, providers_policy: the session's.
        others: keyword arguments of onnxruntime's session.
    """

    model: Source
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None
    provider_options: Sequence[dict[Any, Any]] | None
    nodes: Selection | None
    accelerated: AcceleratedPolicy
    others: dict[str, Any]
    providers_policy: ProvidersPolicy = "first"  # older pickles have none


class InferenceSession(PLAIN_SESSION):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` that runs any GridSample and AffineGrid.

    In memory, it replaces nodes of the model by ops of this package, which are compiled or defined
    in Python. Deformable attention becomes one op. ``placements`` lists where each node runs, as
    :class:`Placement` objects. Everything else is as in onnxruntime.

    NumPy has no bfloat16, and onnxruntime takes no array of ``ml_dtypes.bfloat16``. Bind its bits:

    >>> import ml_dtypes, numpy as np, onnx, onnxruntime, ort_gridsample as ogs
    >>> session = ogs.InferenceSession(onnx.parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["": 22]> g (bfloat16[1,1,2] X) => (bfloat16[1,1,1] Y)
    ...     <float[1,1,1] grid = {0}> { Y = GridSample (X, grid) }'''))
    >>> X = np.array([[[1, 2]]], ml_dtypes.bfloat16)
    >>> Y = np.empty((1, 1, 1), ml_dtypes.bfloat16)
    >>> value_of = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type    # shares the memory
    >>> binding = session.io_binding()
    >>> binding.bind_ortvalue_input("X", value_of(X.view(np.uint16), onnx.TensorProto.BFLOAT16))
    >>> binding.bind_ortvalue_output("Y", value_of(Y.view(np.uint16), onnx.TensorProto.BFLOAT16))
    >>> session.run_with_iobinding(binding)
    >>> print(Y)
    [[[1.5]]]

    ``run`` and its siblings raise :class:`GridSampleError` if an op rejects its input. If a node
    runs on a Python op, onnxruntime's threads do not spin (``session.intra_op.allow_spinning``),
    because they would spin on the processors that the op needs. An entry in ``sess_options`` takes
    precedence.

    The session uses a copy of ``sess_options``, which stay as they are. Two things cannot be
    copied: execution providers that were added to the options themselves, and libraries of custom
    ops. If there are such providers, or if the model uses operators of a domain that is neither
    onnxruntime's nor this package's, the session uses ``sess_options`` themselves and adds to them.

    With ``optimized_model_filepath`` in ``sess_options``, onnxruntime saves what the session runs.
    A GridSample that was fused with the nodes of its grid cannot be read again. Keep the source
    model, or save a model of a session with ``nodes=lambda record: not record.fused``.

    A session can be pickled. The pickle has the model (for a path, only the path), the attributes
    of the options, and the configuration entries that onnxruntime defines. It does not have
    dimensions, initializers and libraries that were added to the options. A subclass is called with
    the same arguments when its session is unpickled.

    Args:
        path_or_bytes: a path, the bytes of a model, or a ModelProto. External data is found
            relative to the path.
        sess_options, providers, provider_options, kwargs: the parent's.
        model: another name for ``path_or_bytes``.
        nodes: the nodes that must be replaced: ``"all"``, ``"unsupported"`` or a function, as in
            :func:`patch_model`. If None, a node that ``accelerated`` leaves to the CPU is replaced
            if there is a compiled op for it, or if onnxruntime does not run it.
        accelerated: what to do with nodes if providers come before the CPU's, unless ``nodes`` is
            ``"all"`` or a function. ``"lower"``: they stay on these providers, respelled, in
            float32 between Casts, or written as basic operators (lowered) if need be. ``"keep"``:
            those that a provider runs stay as they are. ``"never"``: as if there were only the CPU.
        providers_policy: ``"first"``: the first form that a provider runs; ``"fastest"``: the
            fastest of them and the CPU's.

            Forms are timed once, for nodes of known shapes.

    Raises:
        GridSampleError: a sampling node is not what its opset allows, the library in use lacks its
            kernel, or external data lies outside of the model's folder.
        OSError: the file cannot be read.
        ImportError: a sampling node needs onnxruntime-extensions, which is not installed.
        TypeError: no model is given, or two.
        Exception: an error of the parent.
    """

    #: The attribute :data:`.signals.RUNS_PYTHON_OPS`.
    _runs_python_ops: bool
    #: Buffers that onnxruntime reads without a copy.
    _buffers: tuple[npt.NDArray[np.uint8], ...] = ()

    def __init__(
        self,
        path_or_bytes: Model | None = None,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        model: Model | None = None,
        nodes: Selection | None = None,
        accelerated: AcceleratedPolicy = "lower",
        providers_policy: ProvidersPolicy = "first",
        **kwargs: Any,
    ) -> None:
        given_model = _only_model(path_or_bytes, model)
        _check_arguments(nodes, accelerated, providers_policy)
        accelerators = accelerators_of(providers, provider_options)
        devices: Devices = {}
        if not providers:
            accelerators, devices = added_providers(sess_options)
        path = None
        if isinstance(given_model, (str, os.PathLike)):
            path = os.path.abspath(given_model)
        # The model at a path may have changed when the session is opened again, and then the
        # function is called again.
        if path is None and callable(nodes) and not isinstance(nodes, ChosenNodes):
            nodes = ChosenNodes(nodes)
        placement_arguments = SessionArguments(
            nodes=nodes,
            options=sess_options,
            accelerators=accelerators,
            accelerated=accelerated,
            devices=devices,
            providers_policy=providers_policy,
        )
        patched = patch_for_session(given_model, placement_arguments)
        self._reopen_arguments = _ReopenArguments(
            model=path or patched.reopened_model,
            providers=providers,
            provider_options=provider_options,
            nodes=nodes,
            accelerated=accelerated,
            others=kwargs,
            providers_policy=providers_policy,
        )
        try:
            self._open(patched, sess_options)
        except Exception as error:
            if not patched.has_accelerated_nodes:
                raise
            logger.warning(
                "the providers %s failed (%s); retrying with these nodes on the CPU",
                dict(accelerators),
                error,
            )
            on_cpu = replace(placement_arguments, accelerated="never")
            self._open(patch_for_session(given_model, on_cpu), sess_options)
        # Kept, because the parent computes the list in every call.
        self._output_names = [output.name for output in self.get_outputs()]
        report.add(given_model, self._placements)

    def _open(self, patched: PatchedModel, sess_options: onnxruntime.SessionOptions | None) -> None:
        """Create onnxruntime's session of a patched model."""
        prepare_python_ops(patched.python_ops)
        self._placements = patched.placements
        self._source_weights = patched.reopened_weights
        self._given_options = sess_options
        # A model that onnx cannot read may have any nodes.
        may_run_python_ops = bool(patched.python_ops) or not patched.is_readable
        setattr(self, signals.RUNS_PYTHON_OPS, may_run_python_ops)
        reopen_arguments = self._reopen_arguments
        providers = reopen_arguments.providers
        provider_options = reopen_arguments.provider_options
        options = options_for(sess_options, patched)
        named_providers = accelerators_of(providers, provider_options)
        if not are_found_by_name(named_providers):
            options = with_providers(options, sess_options, patched.domains, named_providers)
            providers = provider_options = None
        try:
            super().__init__(
                patched.opened_model,
                options,
                providers,
                provider_options,
                **reopen_arguments.others,
            )
        except Exception as error:
            creation_error = read_error(str(error))
            if creation_error is not None:
                raise creation_error from error
            sentence = _unknown_operators_text(patched, options, error)
            if not sentence:
                raise
            raise type(error)(f"{error}; {sentence}") from error
        if patched.opened_weights is not None and patched.reads_weights_in_place:
            # Runs that are in flight on the session's former providers may still read their
            # buffers.
            self._buffers = (*self._buffers, *patched.opened_weights.files.values())
        saved_path = "" if sess_options is None else sess_options.optimized_model_filepath
        if saved_path and standard_files.enabled and any(p.is_ours for p in patched.placements):
            standard_files.write_standard_operators(saved_path)

    def __repr__(self) -> str:
        attributes = vars(self)  # a session that failed to open lacks some
        arguments = attributes.get("_reopen_arguments")
        model = "" if arguments is None else f" of {_described(arguments.model)}"
        counts = Counter(placement.runs_on for placement in attributes.get("_placements", ()))
        places = []
        for runs_on, count in counts.items():
            plural = "s" if runs_on in (COMPILED_OP, PYTHON_OP) else ""
            places.append(f"{count} on {runs_on}{plural}")
        return f"<{type(self).__name__}{model}: sampling nodes: {', '.join(places) or 'none'}>"

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        forks.track_attribute(name, value)

    @property
    def placements(self) -> list[Placement]:
        """Where each sampling node runs, and why."""
        return list(self._placements)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[npt.NDArray[Any] | Any]:
        """Run the model, as the parent does.

        Returns:
            An array for each output; for a sequence a list, for a map a dict.

        Raises:
            GridSampleError: an op rejected its input.
            MemoryError: there is not enough memory for the copies of the feeds in Python ops.
        """
        names = output_names or self._output_names
        if self._runs_python_ops:
            _check_memory_for_copies(input_feed)
            return self._call("run", names, input_feed, run_options)
        # As in _call, of which each step counts here: a tiny run takes 5 µs.
        shutdown.block_if_exiting()
        try:
            return signals.unwrapped(_Parent.run)(self, names, input_feed, run_options)
        except Exception as error:
            exception = _exception_for(str(error))
            if exception is None:
                raise
            raise exception from error

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> Sequence[OrtValue]:
        """Run as the parent does; raise :class:`GridSampleError` if an op rejects its input."""
        return self._call("run_with_ort_values", output_names, input_dict_ort_values, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run as the parent does; raise :class:`GridSampleError` if an op rejects its input."""
        args = run_options, feed_names, feeds, fetch_names, fetches, fetch_devices
        self._call("run_with_ortvaluevector", *args)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run as the parent does; raise :class:`GridSampleError` if an op rejects its input."""
        self._call("run_with_iobinding", iobinding, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[npt.NDArray[Any] | Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run as the parent does. ``callback`` gets the op's error if an op rejects its input.

        Raises:
            MemoryError: there is not enough memory for the copies of the feeds in Python ops.
        """

        def call_back(results: Any, user_data: Any, error: str) -> None:
            try:
                exception = _exception_for(error)
                callback(results, user_data, error if exception is None else str(exception))
            finally:
                shutdown.end_asynchronous_run()

        if self._runs_python_ops:
            _check_memory_for_copies(input_feed)
            shutdown.begin_run()
        else:
            shutdown.block_if_exiting()
        shutdown.begin_asynchronous_run()
        try:
            super().run_async(output_names, input_feed, call_back, user_data, run_options)
        except BaseException:
            shutdown.end_asynchronous_run()
            raise

    def _call(self, name: str, *args: Any) -> Any:
        """Call the parent's method ``name``; raise an op's exception instead of onnxruntime's."""
        method = getattr(_Parent, name)
        if self._runs_python_ops:
            shutdown.begin_run()
            _check_stack(_MIN_STACK_FRAMES)
        else:
            shutdown.block_if_exiting()
            method = signals.unwrapped(method)  # signals need not wait without Python ops
        try:
            return method(self, *args)
        except Exception as error:
            exception = _exception_for(str(error))
            if exception is None:
                raise
            raise exception from error

    def __reduce__(self) -> tuple[Any, ...]:
        if hasattr(type(self), "__setstate__"):
            # A subclass that pickles its own state, as one of onnxruntime's class must.
            return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]
        model = self._source_with_weights()
        if isinstance(model, onnx.ModelProto):
            raise too_large_to_pickle()
        arguments = replace(self._reopen_arguments, model=model)
        return _unpickled, (arguments, read_state(self.get_session_options()), type(self))

    def _source_with_weights(self) -> Source | onnx.ModelProto:
        """Return the path of the model, or its bytes with its weights.

        A ModelProto is returned if protobuf cannot serialize so many weights.
        """
        model = self._reopen_arguments.model
        if not isinstance(model, bytes) or not self._source_weights.names:
            return model
        proto = read_model(model)
        ModelSource(proto, self._source_weights).restore()
        return proto if exceeds_protobuf(proto) else proto.SerializeToString()

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Open the session again on these providers, as onnxruntime does.

        The nodes are placed again. In the model of a session with a function as ``nodes`` that was
        not opened from a path, the nodes that the function chose stay chosen. If the model has
        sampling nodes and cannot be opened on these providers, the session stays on its former
        ones.
        """
        if not self._placements:
            super().set_providers(providers, provider_options)
            self._reopen_arguments = replace(
                self._reopen_arguments,
                providers=providers,
                provider_options=provider_options,
            )
            return
        reopen_arguments = self._reopen_arguments
        former_attributes = dict(vars(self))
        try:
            InferenceSession.__init__(
                self,
                self._source_with_weights(),
                self._given_options,
                providers,
                provider_options,
                nodes=reopen_arguments.nodes,
                accelerated=reopen_arguments.accelerated,
                providers_policy=reopen_arguments.providers_policy,
                **reopen_arguments.others,
            )
        except BaseException:
            self.__dict__.update(former_attributes)
            raise


def _exception_for(message: str) -> BaseException | None:
    """Return the exception of an op of this package, from onnxruntime's error ``message``.

    Returns:
        The exception that a Python op raised, or the error that a compiled op or a check reported.
        None if the message is about something else.
    """
    number = read_failure(message)
    raised = None if number is None else failures.pop(number)
    return raised or read_error(message)


def _unknown_operators_text(
    patched: PatchedModel,
    options: onnxruntime.SessionOptions | None,
    error: Exception,
) -> str:
    """Return which operators of a model neither onnxruntime nor this package has.

    Args:
        error: onnxruntime's error. If it is about something else, the text is empty.
    """
    if not is_error_of_unknown_operator(error) or not patched.is_readable:
        return ""
    model = read_model(patched.opened_model)
    given = onnxruntime.SessionOptions() if options is None else options
    unknown = unknown_operators(model, scopes_of(model), given)
    return unknown_operators_text(unknown) if unknown else ""


def _described(model: Source) -> str:
    """Return the name of a model's file, or the size of its bytes."""
    if isinstance(model, bytes):
        return f"a model of {len(model):,} bytes"
    return repr(os.path.basename(model))


def _only_model(path_or_bytes: Model | None, model: Model | None) -> Model:
    """Return the one of two arguments that is not None.

    Raises:
        TypeError: both are None, or neither is.
    """
    if path_or_bytes is not None and model is None:
        return path_or_bytes
    if model is not None and path_or_bytes is None:
        return model
    count = "neither" if model is None else "both"
    expected = "expected one of them"
    raise TypeError(f"InferenceSession got {count} of path_or_bytes and model, {expected}")


def _check_arguments(nodes: object, accelerated: object, providers_policy: object) -> None:
    """Check the arguments of a session that onnxruntime's does not have.

    Raises:
        GridSampleError: an argument has none of its values.
    """
    if nodes is not None:
        check_selection("InferenceSession", nodes)
    policies = {
        "accelerated": (accelerated, ACCELERATED_POLICIES),
        "providers_policy": (providers_policy, PROVIDERS_POLICIES),
    }
    for name, (value, choices) in policies.items():
        if value not in choices:
            expected = format_choices(choices)
            raise GridSampleError("InferenceSession", name, repr(value), expected)


def _unpickled(
    arguments: _ReopenArguments,
    options: State,
    session_class: type[InferenceSession] = InferenceSession,  # older pickles have no class
) -> InferenceSession:
    """Return the session of a pickle."""
    return session_class(
        arguments.model,
        options_from_state(options),
        arguments.providers,
        arguments.provider_options,
        nodes=arguments.nodes,
        accelerated=arguments.accelerated,
        providers_policy=arguments.providers_policy,
        **arguments.others,
    )


def _check_memory_for_copies(feeds: Mapping[str, Any]) -> None:
    """Check that there is memory for the copies of feeds in Python ops.

    Without it, the process would end in a run.

    Raises:
        MemoryError: there is not enough memory.
    """
    nbytes = sum(map(_copied_bytes, feeds.values()))
    try:
        memory.check_allocatable(nbytes)
    except MemoryError as error:
        names = ", ".join(map(repr, feeds))
        raise MemoryError(
            f"memory is exhausted, expected {nbytes} free bytes for copies of the inputs {names}"
        ) from error


def _copied_bytes(value: Any) -> int:
    """Return the bytes of the copies of a feed in a run.

    A Python op copies the feed. onnxruntime also copies an array that is not contiguous.
    """
    if not isinstance(value, np.ndarray):
        return 0
    nbytes = memory.copied_bytes(value)
    return nbytes if value.flags.c_contiguous else 2 * nbytes


def _check_stack(frames: int) -> None:
    """Raise RecursionError if fewer than ``frames`` frames are left on the stack.

    An op cannot raise it.
    """
    if frames:
        _check_stack(frames - 1)
