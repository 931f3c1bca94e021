"""Prepare the model of a session: place its nodes, and patch them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from itertools import product

import onnx
import onnxruntime
from google.protobuf.message import EncodeError

from .. import spec, versions
from ..custom_ops.compiled_ops.catalog import OpSelection
from ..dialects.table import (
    ATTENTION,
    COMPILED_DOMAIN,
    COMPILED_TYPES,
    COMPOSITE_OP_TYPES,
    DOMAIN,
)
from ..errors import GridSampleError
from ..graph.external_data import locations, resolve_locations
from ..graph.files import Model, read_model, translate_errors
from ..graph.model_source import ModelSource, constant_names
from ..graph.model_splitting import split_proto, split_source
from ..graph.scope import Scope, scopes_of, used_domains
from ..graph.tensors import exceeds_protobuf
from ..rewriting.patch import bind_threads, rewrite_matches
from . import installed_runtime, standard_files
from .accelerators import AcceleratorProbe, has_only_sampling_nodes
from .decisions import context_of
from .options import added_initializers, are_builtin_domains
from .patched_model import PatchedModel, SessionArguments, Source
from .placement import Placement
from .placing import placements_of
from .session_target import SessionTarget

#: Whether onnxruntime can use external data in memory without a copy, while the session lives.
READS_MEMORY = versions.is_at_least(onnxruntime.__version__, "1.31")
#: Whether onnxruntime reads the external data of a model in bytes from the folder that an entry of
#: the options names.
_READS_FOLDER = versions.is_at_least(onnxruntime.__version__, "1.21")


def patch_for_session(model: Model, arguments: SessionArguments) -> PatchedModel:
    """Place the nodes of a model and write them for that.

    Args:
        model: the model. It is not changed.

    Raises:
        GridSampleError: a sampling node is not what its opset allows, external data lies outside of
            the model's folder, or a ModelProto is too large.
        OSError: the file cannot be read.
        ImportError: compiled ops are required and not available.
    """
    if isinstance(model, onnx.ModelProto):
        if exceeds_protobuf(model):
            return _patch_large_proto(model, arguments)
        return _patch_source(serialized(model), arguments)
    return _patch_source(model, arguments)


def _patch_source(source: Source, arguments: SessionArguments) -> PatchedModel:
    """Patch the model in these bytes or at this path."""
    try:
        model_source = _read(source, arguments)
    except GridSampleError:
        # onnxruntime reads its own format, and has the error message for any other.
        return PatchedModel.unreadable(source)
    preparation = _ModelPreparation(model_source, arguments)
    preparation.prepare()
    if not preparation.placements and not preparation.is_changed:
        return PatchedModel.without_sampling_nodes(source)
    preparation.write_thread_counts()
    # ``resolve_locations`` also checks that external data lies in the folder, which onnxruntime
    # does not; so a model whose sampling nodes all stay is checked too.
    folder = None
    if not isinstance(source, bytes):
        folder = resolve_locations(preparation.proto, source, preparation.scopes)
    if preparation.is_changed:
        return _changed_model(source, preparation, folder)
    return _unchanged_model(source, preparation)


def _unchanged_model(source: Source, preparation: _ModelPreparation) -> PatchedModel:
    """Return a model that onnxruntime gets as it was given."""
    return PatchedModel(
        opened_model=source,
        reopened_model=source,
        placements=preparation.placements,
        domains=preparation.domains(),
        compiled_ops=preparation.compiled_ops(),
    )


def _changed_model(
    source: Source, preparation: _ModelPreparation, folder: str | None
) -> PatchedModel:
    """Return the prepared model in bytes.

    Args:
        preparation: the prepared model, which is changed.
        folder: the folder of the model's external data; None if the source is bytes.
    """
    proto = preparation.proto
    model_source = preparation.source
    if folder is not None and not _READS_FOLDER:
        model_source.restore()
        onnx.load_external_data_for_model(proto, folder)
        folder = None
    # onnxruntime drops the initializers that no node reads, and then misses them among the values
    # that it gets.
    model_source.restore(model_source.unread_names(preparation.scopes))
    has_weights = bool(model_source.names)
    # onnxruntime uses all external data in memory, or none.
    reads_weights_in_place = (
        READS_MEMORY and has_weights and not any(locations(proto, preparation.scopes))
    )
    opened_weights = model_source.load() if has_weights else None
    patched = proto.SerializeToString()
    return PatchedModel(
        opened_model=patched,
        reopened_model=source,
        placements=preparation.placements,
        domains=preparation.domains(),
        folder=folder,
        opened_weights=opened_weights,
        reads_weights_in_place=reads_weights_in_place,
        compiled_ops=preparation.compiled_ops(),
    )


def _read(source: Source, arguments: SessionArguments) -> ModelSource:
    """Read a model, if possible without the values of its large initializers.

    Accelerators may not know initializers that are added to options, and onnxruntime cannot save a
    model that has them.
    """
    needs_weights = (
        arguments.accelerators or arguments.is_model_saved or arguments.options_have_providers
    )
    split = None if needs_weights else split_source(source)
    return ModelSource(read_model(source)) if split is None else split


def _patch_large_proto(model: onnx.ModelProto, arguments: SessionArguments) -> PatchedModel:
    """Patch a model that protobuf cannot serialize, apart from its large initializers."""
    _check_takes_large_model(arguments)
    source = split_proto(model)
    if exceeds_protobuf(source.model):
        reason = "its values are not in the main graph's initializers, or are inputs or outputs too"
        raise _too_large(reason)
    unchanged = source.copy()
    preparation = _ModelPreparation(source, arguments)
    if preparation.uses_given_options:
        reason = "it has operators of other libraries, with which sess_options cannot be copied"
        raise _too_large(reason)
    preparation.prepare()
    preparation.write_thread_counts()
    # An initializer that no node reads would be too large to get its values back.
    source.drop(source.unread_names(preparation.scopes))
    opened_weights = source.load()
    unchanged.drop(unchanged.unread_names(scopes_of(unchanged.model)))
    return PatchedModel(
        opened_model=serialized(source.model),
        reopened_model=serialized(unchanged.model),
        placements=preparation.placements,
        domains=preparation.domains(),
        reopened_weights=unchanged.snapshot(opened_weights),
        opened_weights=opened_weights,
        reads_weights_in_place=READS_MEMORY and not any(locations(model)),
        compiled_ops=preparation.compiled_ops(),
    )


def _check_takes_large_model(arguments: SessionArguments) -> None:
    if arguments.accelerators:
        raise _too_large(f"{arguments.accelerators[0][0]} gets whole models only")
    if arguments.options_have_providers:
        raise _too_large("the providers of sess_options get whole models only")
    if arguments.is_model_saved:
        raise _too_large("the optimized model cannot be saved")


class _ModelPreparation:
    """The preparation of a model for a session.

    Call :meth:`prepare` before any method but :meth:`domains` and :attr:`uses_given_options`.

    Attributes:
        source: the model, which the methods change, and the values that it lacks.
        proto: the model of ``source``.
        arguments: the session's arguments.
        scopes: the graphs and functions of ``proto``.
        placements: where the sampling nodes run. Known after :meth:`prepare`.
        is_changed: whether onnxruntime cannot run the model as it was given.
    """

    def __init__(self, source: ModelSource, arguments: SessionArguments) -> None:
        self.source = source
        self.proto = source.model
        self.placements: list[Placement] = []
        self.is_changed = False
        self.arguments = arguments
        with translate_errors(self.proto):
            self.scopes: list[Scope] = scopes_of(self.proto, source)

    def domains(self) -> frozenset[str]:
        """Return the domains of the nodes that the model does not define itself."""
        return used_domains(self.proto, self.scopes)

    def compiled_ops(self) -> OpSelection:
        """Return the compiled ops that the model may contain, by types of its sampling nodes."""
        scopes = [scope for scope in self.scopes if COMPILED_DOMAIN in scope.domains]
        op_types = set[str]().union(*(scope.indices_by_type for scope in scopes))
        op_types.intersection_update(COMPILED_TYPES.values())
        types = set[str]()
        for record in (placement.record for placement in self.placements):
            first_types = next(iter(record.types.values()), ())
            # The type of a patched node's input may be that before a Cast.
            types.update(spec.TYPES if record.patched else first_types or spec.TYPES)
        return frozenset(product(op_types, types))

    @property
    def uses_given_options(self) -> bool:
        """Whether onnxruntime gets the caller's own options, to which no values must be added."""
        return self.arguments.options is not None and not are_builtin_domains(self.domains())

    def prepare(self) -> None:
        """Place the sampling nodes, and rewrite them, with the initializers that this needs."""
        if self.uses_given_options:
            self.source.restore()
        self._place_and_patch()

    def _replaced_names(self) -> Collection[str]:
        """Return the names of the constants that the caller's options replace."""
        if self.arguments.options is None:
            return ()
        return added_initializers(self.arguments.options, sorted(constant_names(self.scopes)))

    def _place_and_patch(self) -> None:
        """Decide where the sampling nodes run, and rewrite them."""
        arguments = self.arguments
        has_composites = self._has_composites()
        hidden_names = self._replaced_names()
        accelerator_probe = AcceleratorProbe(
            arguments.accelerators,
            arguments.accelerated,
            only_sampling_nodes=self._has_only_sampling_nodes(),
            devices=arguments.devices,
            policy=arguments.providers_policy,
            num_threads=arguments.num_threads,
        )
        with self.source.hide(hidden_names, self.scopes), closing(accelerator_probe):
            context = context_of(
                arguments.nodes,
                accelerator_probe,
                is_saved=arguments.is_model_saved,
                fuses_grids=not (arguments.is_model_saved and standard_files.enabled),
            )
            target = SessionTarget(context)
            with translate_errors(self.proto):
                plan = rewrite_matches(
                    self.proto,
                    target,
                    probe=installed_runtime.PROBE,
                    all_scopes=self.scopes,
                )
        self.placements = placements_of([*plan.targets, *plan.kept], target.decisions)
        self.is_changed = bool(plan.targets) or has_composites

    def _has_composites(self) -> bool:
        """Whether the model may have composite nodes.

        Expanding one changes the model, but may leave no record of a replaced node.
        """
        op_types = set[str]().union(*(scope.indices_by_type for scope in self.scopes))
        has_attention = ATTENTION in op_types and DOMAIN in self.domains()
        return has_attention or not COMPOSITE_OP_TYPES.isdisjoint(op_types)

    def write_thread_counts(self) -> None:
        """Let the ops use as many threads as the options allow."""
        if bind_threads(self.scopes, self.arguments.num_threads):
            self.is_changed = True

    def _has_only_sampling_nodes(self) -> bool:
        """Whether all nodes but Constants are sampling nodes. Only accelerators need to know it."""
        return bool(self.arguments.accelerators) and has_only_sampling_nodes(self.scopes)


def serialized(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model.

    Raises:
        GridSampleError: protobuf cannot serialize so large a model.
    """
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError) as error:  # the latter by protobuf in pure Python
        raise _too_large(str(error)) from error


def too_large_to_pickle() -> GridSampleError:
    """Return the error of a session whose model protobuf cannot serialize."""
    return _too_large("the session cannot be pickled")


def _too_large(reason: str) -> GridSampleError:
    found = f"a ModelProto of more than 2 GiB ({reason})"
    how = "onnx.save with save_as_external_data=True"
    expected = f"the path of a model that was saved with external data ({how})"
    return GridSampleError("InferenceSession", "the model", found, expected)
