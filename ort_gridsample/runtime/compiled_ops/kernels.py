"""A node's kernel: its attributes and the compiled functions that it needs, as one piece of memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import checks, spec
from ...errors import where
from . import structs
from .c_api import Api, RefusedError

if TYPE_CHECKING:
    from ...core.compilation import Part  # which imports Numba

#: Field -> a number, or what :func:`_laid` lays behind.
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Kernel:
    """What a node's kernel is made of.

    Attributes:
        compute: the address of its KernelComputeV2.
        record: the type of its state, one of :mod:`.structs`.
        fields: the state's fields but for ``api`` and ``shape_of``, see :func:`_laid`.
    """

    compute: int
    record: np.dtype[Any]
    fields: Fields

    def memory(self, at: int, api: Api) -> bytes:
        """The bytes of the state at address ``at``, followed by everything that its fields point to."""
        known = {"api": api.table, "shape_of": api.shape_of}
        kernel = self.fields.get("kernel")
        own = {"kernel": {**kernel, **known}} if isinstance(kernel, dict) else known
        return _laid((self.record, {**self.fields, **own}), at)


def _laid(value: Any, at: int) -> bytes:
    """The bytes of ``value`` at address ``at``, followed by everything that it points to.

    ``value`` is an array; a list of sentences, laid out as TEXTs; or a record type and its fields. A field is a number,
    the fields of a nested record, or a value of these kinds, to which the field then points.
    """
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list):
        texts = np.zeros(len(value), structs.TEXT)
        behind = b""
        for number, text in enumerate(value):
            texts[number] = at + texts.nbytes + len(behind), len(text)
            behind += text + b"\0"
        return texts.tobytes() + behind
    record, fields = value
    state, behind = np.zeros((), record), b""
    for name, field in fields.items():
        if isinstance(field, dict):
            for each, number in field.items():
                state[name][each] = number
        elif isinstance(field, int):
            state[name] = field
        else:
            state[name] = at + state.nbytes + len(behind)
            behind += _laid(field, at + state.nbytes + len(behind))
            behind += bytes(-len(behind) % 8)
    return state.tobytes() + behind


def grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node, for X and grid of ``types``.

    Raises:
        GridSampleError: an attribute is not one of its values.
        Exception: whatever Numba raises.
    """
    return _sampling(where("GridSample", _label(api, info)), api, info, types[0], Grid(types[1]))


def fused_grid_sample(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a GridSample node and what computes its grid, for X, scalars or size, and sources of ``types``.

    Raises: as :func:`grid_sample`; of a node that no session wrote whatever reading it does.
    """
    here = where("GridSample", _label(api, info))
    grid = (_theta if types[1] == "int64" else _programs)(api, info, here, types[2])
    return _sampling(here, api, info, types[0], grid)


def _theta(api: Api, info: int, here: str, theta_type: str) -> Grid:
    """An AffineGrid's grid."""
    from . import affine

    grid_type = _attribute(api.text, info, "grid_type", theta_type)
    fields = {
        "align_corners": _attribute(api.integer, info, "affine_grid_align_corners", 0),
        "sentences": _theta_sentences(where("AffineGrid", _attribute(api.text, info, "affine_grid_node", ""))),
    }
    functions = (affine.measure,), (affine.coordinates_for, theta_type, grid_type)
    return Grid(grid_type, 3, *functions, affine.MOST_COLUMNS, (structs.THETA, fields))


def _programs(api: Api, info: int, here: str, grid_type: str) -> Grid:
    """A grid that programs compute."""
    from . import program_grids

    coordinates, sources = (json.loads(api.text(info, name)) for name in ("coordinates", "sources"))
    fields = program_grids.descriptor(here, grid_type, coordinates, sources)
    functions = (program_grids.measure,), (program_grids.coordinates_for, grid_type)
    return Grid(grid_type, 2 + len(sources), *functions, source=(structs.PROGRAMS, fields))


@dataclass(frozen=True)
class Grid:
    """Where the coordinates come from: the second input, or what is fused.

    Attributes:
        type: the grid's type.
        n_inputs: the number of inputs.
        measure: what finds its shape from the inputs; None where it is one.
        coordinates: what computes the coordinates of a tile; None where they are read.
        columns: see :data:`ort_gridsample.core.structs.KERNEL`.
        source: what these two know: a record and its fields, see :func:`_laid`; 0 where there is nothing to know.
    """

    type: str
    n_inputs: int = 2
    measure: Part | None = None
    coordinates: Part | None = None
    columns: int = 0
    source: Any = 0


def _sampling(here: str, api: Api, info: int, X_type: str, grid: Grid) -> Kernel:
    mode = spec.mode_of(_attribute(api.text, info, "mode", spec.MODES[1]))
    padding_mode = _attribute(api.text, info, "padding_mode", spec.PADDING_MODES[0])
    checks.mode_and_padding(here, mode, padding_mode, X_type)
    aligned = _attribute(api.integer, info, "align_corners", 0)
    return grid_sample_kernel(here, mode, padding_mode, bool(aligned), X_type, grid)


def grid_sample_kernel(here: str, mode: str, padding_mode: str, aligned: bool, X_type: str, grid: Grid) -> Kernel:
    """The kernel that samples so; compiled now, if no other was made of the same functions before."""
    from ...core import variants
    from . import sampling, sentences

    entry = [(sampling.compute,), *([] if grid.measure is None else [grid.measure])]
    (compute, *measure), kernel = variants.descriptor(
        X_type, grid.type, mode, padding_mode, aligned,
        entry=entry, coordinates=grid.coordinates, columns=grid.columns,
    )  # fmt: skip
    texts = [sentences.as_bytes(sentence, here, padding_mode=padding_mode) for sentence in sampling.SENTENCES]
    fields = {"kernel": kernel, "measure": sum(measure), "n_inputs": grid.n_inputs, "sentences": texts}
    return Kernel(compute, structs.GRID_SAMPLE, {**fields, "source": grid.source})


def affine_grid(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of an AffineGrid node, for theta of the first of ``types``."""
    aligned = _attribute(api.integer, info, "align_corners", 0)
    return affine_grid_kernel(where("AffineGrid", _label(api, info)), bool(aligned), types[0])


def affine_grid_kernel(here: str, aligned: bool, theta_type: str) -> Kernel:
    """The kernel that makes grids so; compiled now, if no other was made of the same functions before."""
    from ...core import compilation, halves, threads
    from . import affine

    compute, fill = compilation.addresses([(affine.compute,), (affine.fill_for, theta_type)])
    fields = {
        "fill": fill,
        "align_corners": int(aligned),
        "theta_size": halves.stored(theta_type).itemsize,
        "cpus": threads.available_cpus(),
        "sentences": _theta_sentences(here),
    }
    return Kernel(compute, structs.AFFINE_GRID, fields)


def deformable_attention(api: Api, info: int, types: Sequence[str]) -> Kernel:
    """The kernel of a DeformableAttention node, for value, levels, locations and weights of ``types``."""
    aligned = _attribute(api.integer, info, "align_corners", 0)
    return deformable_attention_kernel(
        where("DeformableAttention", _label(api, info)), bool(aligned), types[0], types[2]
    )


def deformable_attention_kernel(here: str, aligned: bool, value_type: str, locations_type: str) -> Kernel:
    """The kernel that adds samples up so; compiled now, if no other was made of the same functions before."""
    from ...core import compilation, halves, threads
    from ...core.attention import parts
    from . import attention, sentences

    compute, proceed, worker = compilation.addresses([(attention.compute,), *parts(value_type, locations_type)])
    fields = {
        "proceed": proceed,
        "worker": worker,
        "align_corners": int(aligned),
        "value_size": halves.stored(value_type).itemsize,
        "cpus": threads.available_cpus(),
        "sentences": [sentences.as_bytes(sentence, here) for sentence in attention.SENTENCES],
    }
    return Kernel(compute, structs.DEFORMABLE_ATTENTION, fields)


def _theta_sentences(here: str) -> list[bytes]:
    """The sentences of the AffineGrid ``here``, for 2 and for 3 spatial axes."""
    from . import affine, sentences

    return [
        sentences.as_bytes(sentence, here, axes=axes, type="int64")
        for axes in checks.SIZE.values()
        for sentence in affine.SENTENCES
    ]


def _label(api: Api, info: int) -> str:
    """How errors name the node."""
    return _attribute(api.text, info, "node", "") or api.node_name(info)


def _attribute(ask: Any, info: int, attribute: str, default: Any) -> Any:
    try:
        return ask(info, attribute)
    except RefusedError:  # it has none
        return default
