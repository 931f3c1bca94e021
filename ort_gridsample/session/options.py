"""Read, copy and pickle ``onnxruntime.SessionOptions``.

onnxruntime gives every session a copy of its options, and the session returns that copy. It lacks
what was added to the options as code: libraries of custom ops and execution providers.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import onnx
import onnxruntime
from onnx import TensorProto, helper

from ..custom_ops.python_ops import extensions
from ..custom_ops.signals import with_signals_deferred
from ..dialects.table import DOMAIN
from ..graph.scope import UNSTATED_OPSET
from ..inference.one_node import one_node_model
from ..system.process import after_fork
from . import forks
from .config_keys import CONFIG_KEYS

_MEMBERS = vars(onnxruntime.SessionOptions)
_ATTRIBUTES = [name for name, member in _MEMBERS.items() if isinstance(member, property)]
_MODEL: dict[str, Any] = {"opset_imports": [helper.make_opsetid("", 13)], "ir_version": 8}
_EMPTY_GRAPH = helper.make_graph([], "empty", [], [])
#: The configuration entry with which providers write their compiled nodes to a file.
_WRITES_CONTEXT = "ep.context_enable"
_EMPTY_MODEL = helper.make_model(_EMPTY_GRAPH, **_MODEL).SerializeToString()
#: The smallest int64, three times. Used to find in one run whether options replace any initializer:
#: if none, the element-wise Max of all is this value.
_MIN_INT64S = [-(1 << 63)] * 3

#: A part of onnxruntime's error for an operator of the ONNX domain, of any other domain, and of a
#: domain that the model does not import.
_UNKNOWN_OPERATOR = (
    "No Op registered for ",
    " is not a registered function/op",
    "No opset import for domain",
)

#: Domains of operators that onnxruntime or this package has. All domains below them count too.
_BUILTIN_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms", DOMAIN)

#: Attributes by name, and configuration entries by key.
State: TypeAlias = tuple[dict[str, Any], dict[str, str]]

#: Reentrant, because a session may call a program's function that selects its devices.
_lock = threading.RLock()


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held the lock


def config_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return the configuration entry ``key``, or None if there is none."""
    with suppress(Exception):  # onnxruntime raises if there is none
        return str(options.get_session_config_entry(key))
    return None


def set_default_entry(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Add the configuration entry ``key`` if there is none."""
    if config_entry(options, key) is None:
        options.add_session_config_entry(key, value)


def load_model(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    """Load ``model`` into a C session (``_sess``) that is not initialized for runs.

    Raises:
        Exception: onnxruntime's error if it refuses the model.
    """
    # A signal between two steps would leave the lock locked.
    return with_signals_deferred(_load_model, options, model)


def _load_model(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    """Load ``model`` with profiling off, as it would write a file."""
    with _changed(options, enable_profiling=False):
        return forks.loaded_session(model, options)


def open_quietly(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    """Return a C session (``_sess``) with ``options``, which writes no files and logs nothing.

    The session has the providers that were added to the options, or the CPU's.

    Raises:
        Exception: onnxruntime's error if it refuses the model.
    """
    return with_signals_deferred(_open_quietly, options, model)


def _open_quietly(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    quiet = {"enable_profiling": False, "optimized_model_filepath": "", "log_severity_level": 4}
    with _changed(options, **quiet), _without_context(options):
        session = forks.loaded_session(model, options)
        session.initialize_session([], [], set())
        return session


@contextmanager
def _changed(options: onnxruntime.SessionOptions, **attributes: object) -> Iterator[None]:
    """Change attributes of options for a while."""
    with _lock:  # or another thread would take these values for the caller's
        former_values = {name: getattr(options, name) for name in attributes}
        try:
            for name, value in attributes.items():
                setattr(options, name, value)
            yield
        finally:
            for name, value in former_values.items():
                setattr(options, name, value)


@contextmanager
def _without_context(options: onnxruntime.SessionOptions) -> Iterator[None]:
    """Let providers write no file with their compiled nodes for a while."""
    if config_entry(options, _WRITES_CONTEXT) != "1":
        yield
        return
    options.add_session_config_entry(_WRITES_CONTEXT, "0")
    try:
        yield
    finally:
        options.add_session_config_entry(_WRITES_CONTEXT, "1")


def is_error_of_unknown_operator(error: BaseException) -> bool:
    """Whether onnxruntime's error states that it does not have an operator."""
    return any(part in str(error) for part in _UNKNOWN_OPERATOR)


def has_operator(
    options: onnxruntime.SessionOptions,
    domain: str,
    op_type: str,
    version: int,
) -> bool:
    """Whether sessions with ``options`` have an operator.

    A model of one node of that operator is loaded. Its number of inputs may be wrong, but
    onnxruntime looks for the operator first.
    """
    node = helper.make_node(op_type, [], [], domain=domain)
    opsets = {"": UNSTATED_OPSET, domain: version}
    model = one_node_model(node, opsets, {"X": "float32"}, [None])
    try:
        load_model(options, model.SerializeToString())
    except Exception as error:
        return not is_error_of_unknown_operator(error)
    return True


def copy_options(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Return a copy of ``options``, without libraries of custom ops and execution providers."""
    copy = load_model(options, _EMPTY_MODEL).session_options
    copy.enable_profiling = options.enable_profiling
    return copy


def added_initializers(options: onnxruntime.SessionOptions, names: Sequence[str]) -> set[str]:
    """Return which of the initializers ``names`` were added to ``options``.

    Options do not list them. Only a session shows which values it uses.
    """
    if not names:
        return set()
    copy = copy_options(options)
    copy.optimized_model_filepath = ""
    copy.enable_profiling = False
    copy.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    copy.intra_op_num_threads = 1
    copy.log_severity_level = 4  # onnxruntime warns of added initializers of another shape
    # Most options have none.
    return _replaced_names(copy, names) if _replaces_any(copy, names) else set()


def _replaces_any(options: onnxruntime.SessionOptions, names: Sequence[str]) -> bool:
    """Whether ``options`` may replace any of the initializers ``names``."""
    # If not, the maximum of all initializers is the smallest number.
    maximum_name = _unused_name("maximum", set(names))
    maximum_node = helper.make_node("Max", [names[0], *names], [maximum_name])
    maximums = _outputs(options, names, _MIN_INT64S, [maximum_node])
    return not maximums or maximums[0].tolist() != _MIN_INT64S


def _replaced_names(options: onnxruntime.SessionOptions, names: Sequence[str]) -> set[str]:
    """Return which of the initializers ``names`` are replaced by ``options``."""
    known_names = set(names)
    shape_nodes = []
    for index, name in enumerate(names):
        shape_name = _unused_name(f"shape {index}", known_names)
        shape_nodes.append(helper.make_node("Shape", [name], [shape_name]))
    # The initializers of this model are empty, unlike those that a session needs.
    shapes = _outputs(options, names, [], shape_nodes)
    if shapes is None:
        return set()
    return {name for name, shape in zip(names, shapes, strict=True) if shape.tolist() != [0]}


def _unused_name(name: str, names: Collection[str]) -> str:
    """Return ``name``, with a suffix if it is one of ``names``."""
    while name in names:
        name += " "
    return name


def _outputs(
    options: onnxruntime.SessionOptions,
    names: Sequence[str],
    value: Sequence[int],
    nodes: Sequence[onnx.NodeProto],
) -> list[Any] | None:
    """Run a model of ``nodes`` whose initializers ``names`` have this ``value``.

    Returns:
        The first output of each node. None if onnxruntime refuses the model.
    """
    make_output = partial(helper.make_tensor_value_info, elem_type=TensorProto.INT64, shape=[None])
    outputs = [make_output(node.output[0]) for node in nodes]
    graph = helper.make_graph(nodes, "added", [], outputs)
    for name in names:  # faster than helper.make_tensor
        graph.initializer.add(
            name=name,
            data_type=TensorProto.INT64,
            dims=[len(value)],
            int64_data=value,
        )
    model = helper.make_model(graph, **_MODEL)
    with suppress(Exception):
        session = forks.cpu_session(model.SerializeToString(), options)
        return list(session.run(None, {}))
    return None


def has_providers(options: onnxruntime.SessionOptions) -> bool:
    """Whether execution providers were added to ``options``, which newer onnxruntimes support."""
    return hasattr(options, "has_providers") and bool(options.has_providers())


def are_builtin_domains(domains: Collection[str]) -> bool:
    """Whether all operators of ``domains`` are onnxruntime's or this package's."""
    return all(map(_is_builtin_domain, domains))


def _is_builtin_domain(domain: str) -> bool:
    """Whether all operators of ``domain`` are onnxruntime's or this package's."""
    if domain in extensions.DOMAINS:
        return False
    if not domain:
        return True
    return any(domain == known or domain.startswith(f"{known}.") for known in _BUILTIN_DOMAINS)


def read_state(options: onnxruntime.SessionOptions) -> State:
    """Return what can be read of ``options`` and pickled: attributes and configuration entries."""
    entries = dict[str, str]()
    for key in CONFIG_KEYS:
        value = config_entry(options, key)
        if value is not None:
            entries[key] = value
    return {name: getattr(options, name) for name in _ATTRIBUTES}, entries


def options_from_state(state: State) -> onnxruntime.SessionOptions:
    """Return new options with the attributes and entries that :func:`read_state` returned."""
    attributes, entries = state
    options = onnxruntime.SessionOptions()
    for name, value in attributes.items():
        if getattr(options, name, None) != value:
            setattr(options, name, value)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options
