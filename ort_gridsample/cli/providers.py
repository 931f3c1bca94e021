"""The execution provider that a command line names, which may be a plugin."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import GridSampleError, one_line
from ..functions.validation import format_choices

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnxruntime

_WHERE = "command line"
_LIBRARY = "--provider-library"


def add_arguments(parser: argparse.ArgumentParser, help: str) -> None:
    """Add the arguments for an execution provider."""
    parser.add_argument("--provider", metavar="NAME", help=help)
    parser.add_argument(
        _LIBRARY,
        metavar="LIBRARY",
        help="the library of a provider that is a plugin: its path, or the name of the Python "
        "package that has it, such as onnxruntime_ep_openvino",
    )


def register_provider(arguments: argparse.Namespace, command: str) -> None:
    """Register the provider that the arguments name, if it is a plugin.

    Args:
        arguments: the values of the arguments of :func:`add_arguments`.
        command: the name of the command, for errors.

    Raises:
        GridSampleError: onnxruntime lacks the provider, or does not load its library.
    """
    from ..session.plugins import is_installed, provider_names

    provider = arguments.provider
    library = arguments.provider_library
    if library is not None and provider is None:
        found = f"{library!r} without --provider"
        raise GridSampleError(_WHERE, _LIBRARY, found, "the name of the provider as well")
    if provider is None:
        return
    if library is not None and not is_installed(provider):
        _register_library(provider, library)
    if not is_installed(provider):
        expected = f"one that this onnxruntime has: {format_choices(provider_names())}"
        raise GridSampleError(command, "--provider", repr(provider), expected)


def _register_library(provider: str, library: str) -> None:
    """Register the library of a plugin."""
    import onnxruntime

    from ..session.plugins import devices_of

    path = _library_path(library)
    try:
        onnxruntime.register_execution_provider_library(provider, path)
    except Exception as error:  # also AttributeError, of onnxruntime before 1.22
        found = f"{library!r}: {one_line(error)}"
        expected = "a library of an execution provider that this onnxruntime loads"
        raise GridSampleError(_WHERE, _LIBRARY, found, expected) from error
    if not devices_of(provider):
        found = f"{library!r}, which finds no device of {provider} on this machine"
        raise GridSampleError(_WHERE, _LIBRARY, found, "a library with such a device")


def _library_path(library: str) -> str:
    """Return the path of a library: that of a file, or that of the library of a package."""
    if Path(library).exists() or not library.isidentifier():
        return str(Path(library).absolute())
    if importlib.util.find_spec(library) is None:
        expected = "the path of a library, or the name of an installed package that has one"
        raise GridSampleError(_WHERE, _LIBRARY, repr(library), expected)
    return str(importlib.import_module(library).get_library_path())


def open_session(
    session_class: Callable[..., Any],
    model: str,
    options: onnxruntime.SessionOptions,
    provider: str | None,
) -> Any:
    """Return a session of a model on a provider and the CPU.

    Args:
        options: the options of the session, which are changed.
        provider: the name of the provider; None for the CPU only.
    """
    from ..session.plugins import CPU, add_providers, are_found_by_name

    if provider is None:
        return session_class(model, options, providers=[CPU])
    if are_found_by_name([(provider, {})]):
        return session_class(model, options, providers=[provider, CPU])
    add_providers(options, [(provider, {})])
    return session_class(model, options)
