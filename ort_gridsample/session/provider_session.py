"""onnxruntime's session, with the execution provider among its providers.

``ort-gridsample exec --provider`` uses it in programs that do not name the provider.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import onnxruntime

from .. import spec
from ..custom_ops.plain_session import PLAIN_SESSION
from ..custom_ops.provider.definitions import NAME
from ..errors import GridSampleError, one_line
from ..system.process import after_fork
from . import forks, report
from .options import set_default_entry
from .provider import register_provider

#: A provider's name, perhaps with its options.
Provider: TypeAlias = str | tuple[str, dict[Any, Any]]

_CPU = "CPUExecutionProvider"
_AZURE = "AzureExecutionProvider"
#: The configuration entry with which onnxruntime records the provider of each node.
_RECORD_ASSIGNMENTS = "session.record_ep_graph_assignment_info"


class ProviderSession(PLAIN_SESSION):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` that also uses the execution provider.

    The provider comes before the CPU's and behind all others. If it cannot be registered, the
    session is as without it, and the reason is printed once.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if _registration.is_done():
            if sess_options is None:
                sess_options = onnxruntime.SessionOptions()
            if report.is_enabled():
                set_default_entry(sess_options, _RECORD_ASSIGNMENTS, "1")
            providers, provider_options = _with_ours(sess_options, providers, provider_options)
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)
        if report.is_enabled():
            report.add(path_or_bytes, _report_lines(self))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        forks.track_attribute(name, value)

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Open the session again on these providers and this package's."""
        options = self._sess_options_initial
        if options is not None and _registration.is_done():
            providers, provider_options = _with_ours(options, providers, provider_options)
        super().set_providers(providers, provider_options)


# The sessions are onnxruntime's for the program and in its messages.
ProviderSession.__name__ = ProviderSession.__qualname__ = PLAIN_SESSION.__name__
ProviderSession.__module__ = PLAIN_SESSION.__module__


class _Registration:
    """The registration of the provider, with the first session of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: None until the first session.
        self._succeeded: bool | None = None
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the lock

    def is_done(self) -> bool:
        """Whether the provider is registered. The first call registers it."""
        with self._lock:
            if self._succeeded is None:
                self._succeeded = self._register()
            return self._succeeded

    def _register(self) -> bool:
        try:
            register_provider()
        except (GridSampleError, ImportError) as error:
            message = "its sessions run without the execution provider"
            print(f"ort-gridsample: {message}: {one_line(error)}", file=sys.stderr)
            return False
        return True


_registration = _Registration()
#: The options that have our provider.
_extended_options = WeakSet[onnxruntime.SessionOptions]()


def _with_ours(
    options: onnxruntime.SessionOptions,
    providers: Sequence[Provider] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
) -> tuple[Sequence[Provider] | None, Sequence[dict[Any, Any]] | None]:
    """Return the providers of a session and their options, with ours.

    Ours is added to ``options`` if there is no other provider than the CPU's. onnxruntime 1.24 does
    not find ours by its name, and nodes of other packages need the device in the options.
    """
    if providers is None and options.has_providers():
        _add_device(options)
        return None, provider_options
    chosen = providers
    if chosen is None:
        chosen = onnxruntime.get_available_providers()
        provider_options = None
        chosen = [name for name in chosen if name != _AZURE]  # no session has it by default
    names = [provider[0] if isinstance(provider, tuple) else provider for provider in chosen]
    if set(names) <= {_CPU, NAME}:
        _add_device(options)
        return None, None
    position = names.index(_CPU) if _CPU in names else len(names)
    if NAME in names[:position]:
        return providers, provider_options
    extended = list(chosen)
    extended.insert(position, NAME)
    if provider_options is not None:
        provider_options = [*provider_options[:position], {}, *provider_options[position:]]
    if NAME in names:  # behind the CPU's, as in the list of available providers
        del extended[names.index(NAME) + 1]
        if provider_options is not None:
            del provider_options[names.index(NAME) + 1]
    return extended, provider_options


def _add_device(options: onnxruntime.SessionOptions) -> None:
    """Add the device of our provider to ``options``, behind the providers that they have."""
    if options in _extended_options:
        return
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    options.add_provider_for_devices(devices, {})
    _extended_options.add(options)


class Assignment(NamedTuple):
    """The provider of a sampling node, or of a group of nodes that runs as one."""

    #: The sampling node, or the first node of a group without any.
    op_type: str
    name: str
    #: The number of other nodes in the group.
    n_others: int
    provider: str

    def __str__(self) -> str:
        others = f" with {self.n_others} other nodes" if self.n_others else ""
        return f"{self.op_type} node {self.name!r}{others}: {self.provider}"


def assignments_of(path: str) -> list[Assignment]:
    """Return where the sampling nodes of the model at ``path`` run if ours is the first provider.

    Raises:
        GridSampleError: this onnxruntime has no such providers, or does not list them for nodes.
        Exception: onnxruntime does not open the model.
    """
    register_provider()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(_RECORD_ASSIGNMENTS, "1")
    options.log_severity_level = 3  # a session with ours always has nodes of the CPU's provider
    _add_device(options)
    session = PLAIN_SESSION(path, options)
    if not _lists_assignments(session):
        found = f"{NAME!r}, but {_NO_LIST}"
        raise GridSampleError("inspect", "--provider", found, "another provider")
    return list(_assignments(session))


#: Why a release of onnxruntime tells no assignments.
_NO_LIST = f"onnxruntime {onnxruntime.__version__} does not list the providers of nodes"


def _lists_assignments(session: Any) -> bool:
    return hasattr(session, "get_provider_graph_assignment_info")


def _report_lines(session: Any) -> Iterator[str]:
    """Yield the lines of a session's report."""
    if not _lists_assignments(session):
        yield _NO_LIST
    elif not _registration.is_done():
        yield "the execution provider is not registered"
    else:
        yield from map(str, _assignments(session))


def _assignments(session: Any) -> Iterator[Assignment]:
    """Yield each subgraph of our provider, and each sampling node elsewhere."""
    for subgraph in session.get_provider_graph_assignment_info():
        nodes = subgraph.get_nodes()
        sampling_nodes = [node for node in nodes if node.op_type in spec.OPERATORS]
        if subgraph.ep_name == NAME or sampling_nodes:
            node = (sampling_nodes or nodes)[0]
            yield Assignment(node.op_type, node.name, len(nodes) - 1, subgraph.ep_name)
