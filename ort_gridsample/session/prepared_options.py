"""The options of a session that runs a prepared model: its ops, weights and entries."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from onnxruntime import OrtValue, SessionOptions

from ..custom_ops.compiled_ops.catalog import OpSelection
from ..custom_ops.python_ops import extensions
from ..graph.weights import LoadedWeights
from .options import (
    are_builtin_domains,
    config_entry,
    copy_options,
    has_providers,
    set_default_entry,
)
from .patched_model import PatchedModel
from .plugins import Providers, add_providers
from .registration import add_python_ops, register, register_privately

#: Keys of configuration entries of onnxruntime's sessions.
_ALLOW_SPINNING = "session.intra_op.allow_spinning"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_WITHOUT_COPY = "session.use_external_initializer_file_buffers_directly"


def options_for(given: SessionOptions | None, patched: PatchedModel) -> SessionOptions | None:
    """Return the options of a session that runs a patched model.

    Args:
        given: the caller's options. They are changed only if they cannot be copied.

    Returns:
        ``given`` if the model needs nothing else. Otherwise a copy with all that the model needs,
        or ``given`` itself if it cannot be copied.

    Raises:
        ImportError: the model needs ops that are not available.
    """
    if not patched.is_readable:
        return _options_for_unknown_nodes(given)
    has_ops = any(placement.is_ours for placement in patched.placements)
    if has_ops:
        options = _options_with_ops(given, patched.domains, patched.compiled_ops)
    elif patched.opened_weights is None and patched.folder is None:
        return given
    else:
        options = SessionOptions() if given is None else copy_options(given)
    if patched.python_ops:
        add_python_ops(options)
        # onnxruntime's threads would spin after their own nodes, on the processors that the ops
        # need.
        set_default_entry(options, _ALLOW_SPINNING, "0")
    elif not extensions.DOMAINS.isdisjoint(patched.domains):
        with suppress(ImportError):  # not installed, or registered by the caller
            add_python_ops(options)
    if patched.folder is not None and patched.folder != config_entry(options, _DATA_FOLDER):
        # Not if the entry has this value already: onnxruntime warns of an entry that is set twice.
        options.add_session_config_entry(_DATA_FOLDER, patched.folder)
    if patched.opened_weights is not None:
        _add_weights(options, patched.opened_weights, patched.reads_weights_in_place)
    return options


def with_providers(
    options: SessionOptions | None,
    given: SessionOptions | None,
    domains: Collection[str],
    providers: Providers,
) -> SessionOptions:
    """Return options with providers, for a session whose arguments do not name them.

    Args:
        options: what :func:`options_for` returned. They are changed unless they are the caller's.
        given: the caller's options. They are changed only if they cannot be copied.
    """
    if options is None:
        options = SessionOptions()
    elif options is given and are_builtin_domains(domains):
        options = copy_options(options)
    add_providers(options, providers)
    return options


def _options_with_ops(
    given: SessionOptions | None,
    domains: Collection[str],
    compiled_ops: OpSelection,
) -> SessionOptions:
    """Return options that have the selected compiled ops.

    The caller's own options get all ops, because other sessions may use them.
    """
    if given is None:
        return register_privately(SessionOptions(), compiled_ops)
    if has_providers(given) or not are_builtin_domains(domains):
        return register(given)  # their libraries or providers may be needed, and cannot be copied
    return register_privately(copy_options(given), compiled_ops)


def _add_weights(options: SessionOptions, weights: LoadedWeights, reads_in_place: bool) -> None:
    """Add the values of initializers to options."""
    if not reads_in_place:
        values = [OrtValue.ortvalue_from_numpy(array) for array in weights.arrays.values()]
        options.add_external_initializers(list(weights.arrays), values)
        return
    buffers = list(weights.files.values())
    sizes = [len(buffer) for buffer in buffers]
    options.add_external_initializers_from_files_in_memory(list(weights.files), buffers, sizes)
    set_default_entry(options, _WITHOUT_COPY, "1")


def _options_for_unknown_nodes(given: SessionOptions | None) -> SessionOptions | None:
    """Return the options for a model that onnx cannot read: it may have ops of this package."""
    with suppress(ImportError):
        options = register(given)
        with suppress(ImportError):
            add_python_ops(options)
        return options
    return given
