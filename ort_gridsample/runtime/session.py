"""Running patched models: registration, and a session that patches by itself and says what went wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import product
from os import PathLike
from typing import Any

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import helper

from .. import spec
from ..core import memory
from ..core.choice import core
from ..errors import GridSampleError
from ..model.dialects import DOMAIN, VERSION
from ..model.files import follow_links, read_model
from ..model.matches import records_of
from ..model.patch import bind_threads, patch_in_place
from ..model.records import NodeRecord
from .python_ops import exits, failures, interrupts
from .python_ops.ops import library_path

_REGISTERED = "ort_gridsample.registered"
_SPINNING = "session.intra_op.allow_spinning"
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"

#: Frames of Python's stack between a run and the place where an op can record its failures, and some more.
STACK = 30

#: The SessionOptions attributes that a pickled session takes along.
_OPTION_ATTRIBUTES = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "enable_profiling",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "optimized_model_filepath",
    "profile_file_prefix",
    "use_deterministic_compute",
)


def register(session_options: onnxruntime.SessionOptions | None = None) -> onnxruntime.SessionOptions:
    """Let sessions made with ``session_options`` run patched models.

    >>> onnxruntime.InferenceSession("patched.onnx", register())    # doctest: +SKIP

    Any number of calls on the same options do the same as one. Called on the main thread, it also makes Python's
    signal handlers (Ctrl-C) wait while a Python-defined op runs.

    Args:
        session_options: new ones where None.

    Returns:
        The same options.
    """
    options = onnxruntime.SessionOptions() if session_options is None else session_options
    interrupts.protect()
    if _entry(options, _REGISTERED) is None:
        if not _library_is_known_to(options):
            options.register_custom_ops_library(library_path)
        options.add_session_config_entry(_REGISTERED, "1")
    return options


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` that runs any GridSample and AffineGrid.

    It patches the model in memory and registers the ops; everything else is its parent's. ``run`` and its siblings
    raise :class:`GridSampleError` where an op rejected its input. Unless ``sess_options`` say otherwise, onnxruntime's
    threads do not spin (``session.intra_op.allow_spinning``), as they would do so on the processors that the ops need.
    It can be pickled: the model goes along (of a path, only the path).

    Args:
        model: a path, the bytes of a model, or a ModelProto. External data is found relative to the path.
        sess_options, providers, provider_options, kwargs: the parent's.

    Raises:
        GridSampleError: a node concerned is not what its opset allows, or external data lies outside a path's folder.
        Exception: whatever the parent raises.
    """

    def __init__(
        self,
        model: onnx.ModelProto | bytes | str | PathLike[str],
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Any = None,
        provider_options: Any = None,
        **kwargs: Any,
    ) -> None:
        options = register(sess_options)
        patched, records, folder = _patched(model, options.intra_op_num_threads)
        _prepare(records)
        if records and _entry(options, _SPINNING) is None:
            # onnxruntime's threads would go on spinning after their own nodes, on the processors that the ops need.
            options.add_session_config_entry(_SPINNING, "0")
        path = os.path.abspath(model) if isinstance(model, (str, PathLike)) else None
        self._pickled = (path or patched, _attributes(options), providers, provider_options, kwargs)
        if folder:
            _find_external_data_in(folder, options)
        super().__init__(patched, options, providers, provider_options, **kwargs)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        memory.probe(sum(map(_copied, input_feed.values())))
        return _explained(super().run, output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        return _explained(super().run_with_ort_values, output_names, input_dict_ort_values, run_options)

    def run_with_ortvaluevector(self, *args: Any) -> None:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        _explained(super().run_with_ortvaluevector, *args)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As the parent's, and raises :class:`GridSampleError` where an op rejected its input."""
        _explained(super().run_with_iobinding, iobinding, run_options)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Callable[..., Any], user_data: Any, run_options: Any = None
    ) -> None:
        """As the parent's; ``callback`` gets the whole sentence where an op rejected its input."""

        def explained(results: Any, user_data: Any, error: str) -> None:
            try:
                failure = failures.behind(error)
                callback(results, user_data, error if failure is None else str(failure))
            finally:
                exits.ended()

        exits.started()
        try:
            super().run_async(output_names, input_feed, explained, user_data, run_options)
        except BaseException:
            exits.ended()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, self._pickled


def _copied(value: Any) -> int:
    """The bytes of the copies that are made of a feed: an op's, and before that onnxruntime's of what has gaps.

    They are made where their failure would end the process.
    """
    if not isinstance(value, np.ndarray):
        return 0
    return value.nbytes if value.flags.c_contiguous else 2 * value.nbytes


def _explained(run: Callable[..., Any], *args: Any) -> Any:
    exits.begin()
    _need_stack(STACK)
    interrupts.protect()
    try:
        return run(*args)
    except Exception as error:
        failure = failures.behind(str(error))
        if failure is None:
            raise
        raise failure from error
    finally:
        interrupts.deliver()


def _need_stack(frames: int) -> None:
    """Raise RecursionError here, where it can be raised, if an op would find fewer ``frames`` left to call."""
    if frames:
        _need_stack(frames - 1)


def _patched(
    model: onnx.ModelProto | bytes | str | PathLike[str], num_threads: int
) -> tuple[bytes | str | PathLike[str], list[NodeRecord], str | None]:
    """``model`` patched, as bytes, its nodes, and the folder of a path's external data.

    A path or bytes without such nodes, or no ONNX model, stay as they are.
    """
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    else:
        try:
            proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else read_model(model)
        except (DecodeError, OSError, GridSampleError):
            return model, [], None  # onnxruntime knows its own format, and says what is wrong with any other
    replaced = patch_in_place(proto)
    records = replaced or records_of(proto)
    bound = bind_threads(proto, num_threads)
    if not (replaced or bound or isinstance(model, onnx.ModelProto)):
        return model, records, None
    folder = follow_links(proto, model) if isinstance(model, (str, PathLike)) else None
    return proto.SerializeToString(), records, folder


def _prepare(records: Iterable[NodeRecord]) -> None:
    """Let the core compile what the nodes need now, so that the first run does not wait for it."""
    needed = {
        (spec.TYPES[X].carrier, spec.TYPES[grid].carrier, record.mode)
        for record in records
        if record.operator == "GridSample" and record.mode in spec.MODES
        for X, grid in product(record.types["X"], record.types["grid"])
    }
    for X, grid, mode in sorted(needed, key=str):
        if X != "str":
            core().prepare(np.dtype(X), np.dtype(grid), mode)


def _find_external_data_in(folder: str, options: onnxruntime.SessionOptions) -> None:
    """Let a model that comes as bytes find its external data; the options keep the entry, as there is no way back."""
    if _entry(options, _EXTERNAL_FOLDER) != folder:
        options.add_session_config_entry(_EXTERNAL_FOLDER, folder)


def _entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    try:
        return str(options.get_session_config_entry(key))
    except Exception:  # onnxruntime's way to say that there is none
        return None


def _library_is_known_to(options: onnxruntime.SessionOptions) -> bool:
    """Whether someone registered onnxruntime-extensions with ``options`` already: a second time would break them."""
    Y, status = (helper.make_empty_tensor_value_info(name) for name in ("grid", "status"))
    inputs = [
        helper.make_tensor_value_info("theta", onnx.TensorProto.FLOAT, None),
        helper.make_tensor_value_info("size", onnx.TensorProto.INT64, None),
    ]
    node = helper.make_node(
        "AffineGrid", ["theta", "size"], ["grid", "status"], domain=DOMAIN, align_corners=0, node="", num_threads=0
    )
    graph = helper.make_graph([node], "probe", inputs, [Y, status])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    probe = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    quiet = {"log_severity_level": 4, "enable_profiling": False, "optimized_model_filepath": ""}
    before = {name: getattr(options, name) for name in quiet}
    try:
        for name, value in quiet.items():
            setattr(options, name, value)
        onnxruntime.InferenceSession(probe, options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    finally:
        for name, value in before.items():
            setattr(options, name, value)
    return True


def _attributes(options: onnxruntime.SessionOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _OPTION_ATTRIBUTES if hasattr(options, name)}


def _unpickled(
    model: bytes | str, attributes: dict[str, Any], providers: Any, provider_options: Any, kwargs: dict[str, Any]
) -> InferenceSession:
    options = onnxruntime.SessionOptions()
    for name, value in attributes.items():
        setattr(options, name, value)
    return InferenceSession(model, options, providers, provider_options, **kwargs)
