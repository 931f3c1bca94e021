"""Register this package's ops on ``SessionOptions``.

Compiled ops are registered at once. Python ops are registered when a session is created whose model
has Python ops. They need the library of onnxruntime-extensions, and the user may register this
library on the same options, where it must not be registered twice.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import onnxruntime

from ..custom_ops import signals
from ..custom_ops.compiled_ops import registry
from ..custom_ops.compiled_ops.catalog import OpSelection
from ..custom_ops.identity_map import IdentityMap
from ..custom_ops.provider import registration as ep_registration
from ..custom_ops.python_ops import extensions
from ..dialects.table import COMPILED_DOMAIN, COMPILED_TYPES, DOMAIN, VERSION
from ..graph.files import imported_domains
from ..kernels import library_file
from .options import has_operator

logger = logging.getLogger("ort_gridsample")

#: Domain of a library of ops -> an op that the library has.
_OP_TYPES = {
    DOMAIN: "AffineGrid",
    COMPILED_DOMAIN: COMPILED_TYPES["AffineGrid"],
    extensions.DOMAIN: "StringUpper",
}


@dataclass
class _Registration:
    """What :func:`register` knows about options that it returned.

    Attributes:
        is_private: whether no user has these options, so that no library can be added to them.
        python_domain_ops: the ops that are registered in the domain ``ort_gridsample`` of Python
            ops, if any.
    """

    is_private: bool
    python_domain_ops: Literal["", "Python", "compiled"] = ""


_registrations = IdentityMap[_Registration]()


def register(
    session_options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.SessionOptions:
    """Return options with which onnxruntime's own sessions run patched models.

    >>> onnxruntime.InferenceSession("patched.onnx", register())    # doctest: +SKIP

    Another call with the same options changes nothing. The user may register other libraries of
    custom ops on the same options, before or after, for example onnxruntime-extensions. If a
    session runs Python ops, Python's signal handlers (such as that of Ctrl-C) are called only after
    the session was created, and after each run on the main thread.

    Args:
        session_options: the options, which are changed and returned, or None for new options.

    Raises:
        ImportError: neither Numba nor onnxruntime-extensions is installed.
        GridSampleError: the configured library of compiled ops cannot be used.
    """
    if session_options is None:
        return _register_on_unregistered(onnxruntime.SessionOptions())
    if _registrations.get(session_options) is not None:
        return session_options
    return _register_on_unregistered(
        session_options, has_compiled_ops=_has_ops_of(session_options, COMPILED_DOMAIN)
    )


def register_privately(
    options: onnxruntime.SessionOptions, selection: OpSelection
) -> onnxruntime.SessionOptions:
    """Register the selected compiled ops on new options that no user gets; return the options.

    Raises:
        ImportError, GridSampleError: as :func:`register`.
    """
    return _register_on_unregistered(options, selection=selection, is_private=True)


def _register_on_unregistered(
    options: onnxruntime.SessionOptions,
    has_compiled_ops: bool = False,
    selection: OpSelection = None,
    is_private: bool = False,
) -> onnxruntime.SessionOptions:
    """Register the ops on options that were not registered before, as :func:`register` does.

    Args:
        options: the options, which are changed.
        has_compiled_ops: whether a library with the compiled ops was registered on the options.
        selection: the compiled ops to register.
        is_private: whether no user gets the options.
    """
    if not has_compiled_ops:
        reason = registry.static_reason() or _register_compiled_ops(options, selection)
        if reason and not extensions.is_installed():
            raise ImportError(
                f"ort_gridsample has no ops to register: compiled ops cannot be used ({reason}), "
                "and Python ops need onnxruntime-extensions, which is not installed: pip install "
                "numba, or pip install onnxruntime-extensions, or patch the model to the target "
                "'primitives', which needs no ops",
                name="onnxruntime_extensions",
            )
        if reason:
            # Without compiled ops, sessions need the Python ops, which must be defined before the
            # user registers onnxruntime-extensions' library.
            _define_python_ops()
    _define_python_ops_early()
    _registrations[options] = _Registration(is_private)
    defer_signals_in_plain_sessions()
    return options


def defer_signals_in_plain_sessions() -> None:
    """Defer signals while plain sessions that may run this package's ops are created and run."""
    signals.defer_in_sessions(_prepare_plain_session, _may_call_python)


def _register_compiled_ops(
    options: onnxruntime.SessionOptions,
    selection: OpSelection,
) -> str:
    """Register the compiled ops; return why that is not possible, or "" if it is."""
    try:
        registry.register(options, selection)
    except ImportError as error:
        logger.debug("%s", error)
        return str(error)
    return ""


def add_python_ops(options: onnxruntime.SessionOptions) -> None:
    """Add the Python ops to options that :func:`register` returned, unless they are there.

    Raises:
        ImportError: onnxruntime-extensions is not installed, or was registered on the options
            before the Python ops were defined.
    """
    registration = _registrations.get(options)
    if registration is None or registration.python_domain_ops == "Python":
        return
    if registration.python_domain_ops == "compiled":
        raise ImportError(
            "compiled ops stand in for the Python ops on these options: use new SessionOptions for "
            "a model that needs Python ops",
            name="onnxruntime_extensions",
        )
    path = _define_python_ops()
    if registration.is_private or not _user_added_python_ops(options):
        signals.with_signals_deferred(options.register_custom_ops_library, path)
    registration.python_domain_ops = "Python"


def _user_added_python_ops(options: onnxruntime.SessionOptions) -> bool:
    """Whether the user registered onnxruntime-extensions, and with it the Python ops.

    Raises:
        ImportError: the user registered it before the Python ops were defined.
    """
    if _has_ops_of(options, DOMAIN):
        return True
    if _has_ops_of(options, extensions.DOMAIN):
        raise ImportError(
            "onnxruntime-extensions was registered on these options before ort_gridsample "
            "defined its Python ops: import onnxruntime_extensions before ort_gridsample",
            name="onnxruntime_extensions",
        )
    return False


def _define_python_ops_early() -> None:
    """Define the Python ops if onnxruntime-extensions is imported.

    The user may be about to register its library.
    """
    if extensions.is_imported():
        with suppress(ImportError):  # the error is raised again where Python ops are needed
            _define_python_ops()


def _define_python_ops() -> str:
    """Define the Python ops, and return the path of onnxruntime-extensions' library.

    Every later registration of that library includes the Python ops.
    """
    from ..custom_ops.python_ops.ops import library_path

    return library_path


def _prepare_plain_session(
    session: Any,
    model: Any,
    options: onnxruntime.SessionOptions | None,
) -> None:
    """Prepare the execution provider and the Python ops that a plain session may need."""
    if ep_registration.is_registered():
        # onnxruntime does not save a model with nodes that a provider fused.
        ep_registration.allow_fusion(options is None or not options.optimized_model_filepath)
    registration = _registrations.get(options)
    has_added_ops = signals.RUNS_PYTHON_OPS in vars(session)  # sessions of this package
    if registration is None or has_added_ops:
        return
    domains = _imported_domains(model)
    if domains is None or DOMAIN in domains:
        _add_ops_for_plain_session(options, registration, is_needed=domains is not None)
    setattr(session, signals.RUNS_PYTHON_OPS, registration.python_domain_ops == "Python")


def _may_call_python(options: onnxruntime.SessionOptions | None) -> bool:
    """Whether a session with these options may call functions of this package in Python."""
    return ep_registration.is_registered() or _registrations.get(options) is not None


def _imported_domains(model: Any) -> frozenset[str] | None:
    """Return the domains that the model of a plain session imports; None if they are unknown."""
    if not isinstance(model, (bytes, str, os.PathLike)):
        return None
    with suppress(OSError):  # onnxruntime raises an error about the file
        return imported_domains(model)
    return frozenset()


def _add_ops_for_plain_session(
    options: onnxruntime.SessionOptions,
    registration: _Registration,
    is_needed: bool,
) -> None:
    """Add Python ops, or compiled ops of the same names if that is not possible.

    Raises:
        ImportError: neither is possible, and ops are certainly needed.
    """
    if registration.python_domain_ops:
        return
    try:
        add_python_ops(options)
    except ImportError as error:
        reason = "a library is configured"
        if library_file.configured_library() is None:
            reason = registry.unavailable_reason()
        if not reason:
            registry.compiled_ops().register(options, [DOMAIN])
            registration.python_domain_ops = "compiled"
        elif is_needed:
            raise
        else:
            logger.debug(
                "Python ops are not registered (%s), nor compiled ones in their place: %s",
                error,
                reason,
            )


def _has_ops_of(options: onnxruntime.SessionOptions, domain: str) -> bool:
    """Whether sessions with ``options`` have the ops of ``domain``.

    Options do not list their libraries, and those that the user has may have any. onnxruntime
    refuses a session, not the registration, if two libraries have the same op.
    """
    return has_operator(options, domain, _OP_TYPES[domain], VERSION)


_define_python_ops_early()
