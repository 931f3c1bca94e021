"""GridSamples that the provider runs as one node, together with the nodes that compute the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...detection.match import FusedGrid, Match
from ...detection.programs import to_rows
from ...detection.records import NodeRecord
from ...dialects.table import FUSED
from ...graph.scope import Scope
from ...graph.use_def import UseDef
from ...kernels.program_codes import MAX_STEPS
from ...kernels.structs import record
from ...kernels.tap_plans import COMPILED_MODES, PADDING_CODES
from ..compiled_ops import affine
from ..compiled_ops.catalog import Fields, Op, find_op
from ..compiled_ops.fused_types import source_types, state_index
from ..compiled_ops.record_image import RecordImage, Relocation
from ..compiled_ops.structs import GRID_SAMPLE, PROGRAM, PROGRAMS
from .definitions import DOMAINS, GRID_OPERATORS
from .factory_image import set_rows
from .fused_grid import PROGRAM_SENTENCES, compute_grid_sample
from .fused_subgraph import (
    FusedSubgraph,
    NotFusedError,
    add_errors,
    common_fields,
    nodes_to_fuse,
    text_fields,
)
from .structs import FUSED_GRID, WORD


@dataclass(frozen=True, kw_only=True)
class FusedGridSample(FusedSubgraph):
    """A GridSample and the nodes that compute its grid.

    Attributes:
        sample: the GridSample.
        grid: the computation of its grid.
        op: the compiled op.
        op_types: the types of the op's inputs.
    """

    sample: NodeRecord
    grid: FusedGrid
    op: Op
    op_types: tuple[str, ...]

    @property
    def compute(self) -> Callable[..., int]:
        return compute_grid_sample

    def info_fields(
        self, image: RecordImage, input_indices: Mapping[str, int], api: int
    ) -> dict[str, Any]:
        implementation = self.op.load()
        _, initial_states = implementation.states(*self.op_types)
        initial_state = initial_states[state_index(self.sample, self.grid)]
        kernel = {
            **initial_state["kernel"],
            "align_corners": bool(self.sample.align_corners),
            "padding": PADDING_CODES[str(self.sample.padding_mode)],
        }
        has_programs = self.grid.affine_grid is None
        sentences = image.add_texts(PROGRAM_SENTENCES if has_programs else implementation.sentences)
        errors = add_errors(image, sentences, self.sample.where)
        op_inputs = []
        for name in _op_inputs(self.sample, self.grid):
            # The scalars of programs are an input of the op, but not of the fused node.
            op_inputs.append(input_indices[name] if name else -1)
        state = {
            "sample": {
                **initial_state,
                **common_fields(kernel, errors, api),
                "n_inputs": len(op_inputs),
                **self._affine_fields(image, sentences),
            },
            "op_inputs": _add_integers(image, op_inputs),
            **self._scalar_fields(image, input_indices),
        }
        offset = image.add_records(FUSED_GRID, state)
        if has_programs:
            self._set_programs(image, offset)
        return {"state": offset}

    def _affine_fields(self, image: RecordImage, sentences: Relocation) -> dict[str, Any]:
        """Return the fields of a GRID_SAMPLE for an AffineGrid."""
        if self.grid.affine_grid is None:
            return {}
        affine_grid = self.grid.affine_grid.record
        affine_sentences = Relocation(sentences + affine.AFFINE_OFFSET)
        return {
            "affine_align_corners": bool(affine_grid.align_corners),
            "affine_errors": add_errors(image, affine_sentences, affine_grid.where),
        }

    def _scalar_fields(self, image: RecordImage, input_indices: Mapping[str, int]) -> Fields:
        """Return the fields of a FUSED_GRID for the scalars of programs."""
        if self.grid.affine_grid is not None:
            return {}
        scalars = self.grid.scalars
        constants = [0.0 if isinstance(scalar, str) else scalar for scalar in scalars]
        dtype = np.dtype(self.grid.type)
        return {
            "scalars": image.add_records(
                record(("value", dtype)),
                *({"value": value} for value in constants),
            ),
            "scalar_size": dtype.itemsize,
            "scalar_inputs": _add_integers(
                image,
                [input_indices[name] if isinstance(name, str) else -1 for name in scalars],
            ),
        }

    def _set_programs(self, image: RecordImage, offset: int) -> None:
        """Set the programs of the FUSED_GRID at ``offset``."""
        grid = self.grid
        rows = []
        for source, axis, index, length, *steps in to_rows(grid.programs, grid.sources):
            fields = {
                "source": source,
                "axis": axis,
                "index": index,
                "length": length,
                "n_steps": len(steps),
                "steps": steps + [0] * (MAX_STEPS - len(steps)),
            }
            rows.append(fields)
        programs = {
            "n_scalars": len(grid.scalars),
            "r": len(grid.programs),
            "n_programs": len(rows),
            "programs": image.add_records(PROGRAM, *rows),
            "n_sources": len(grid.sources),
        }
        names = [text_fields(image, repr(name)) for name in grid.sources]
        _, sample_offset, *_ = FUSED_GRID.fields["sample"]  # type: ignore[index]
        _, programs_offset, *_ = GRID_SAMPLE.fields["programs"]  # type: ignore[index]
        start = offset + sample_offset + programs_offset
        image.set_fields(start, PROGRAMS, programs)
        set_rows(image, start, PROGRAMS, "names", names)


def values_of_grids(use_def: UseDef) -> Iterator[str]:
    """Yield the outputs of GridSamples, and the values from which their grids may be computed."""
    scope = use_def.scope
    for index, op_type in enumerate(scope.op_types):
        if op_type == "GridSample":
            yield scope.outputs[index][0]
            yield from use_def.backward_closure(scope.inputs[index][1:2], GRID_OPERATORS)


def fuse_grid_sample(match: Match) -> FusedGridSample | None:
    """Return the nodes of a GridSample with a computed grid that become one node.

    Return None if the match is no GridSample with a computed grid.

    Raises:
        NotFusedError: the nodes that compute the grid cannot be fused, there is no compiled op for
            them, or one of their values is also read by other nodes.
    """
    grid = match.fused_grid
    sample = match.record
    if grid is None:
        _check_grid_is_not_computed(match)
        return None
    _check_kernel(match)
    if grid.affine_grid is not None:
        _check_kernel(grid.affine_grid)
    all_types = (sample.types["X"], *source_types(grid))
    if any(len(types) != 1 for types in all_types):
        raise NotFusedError("the type of X or of what the grid is computed from is not known")
    op_types = tuple(type_ for types in all_types for type_ in types)
    op = find_op(FUSED, op_types)
    if op is None:
        raise NotFusedError(f"there is no compiled op for the types {', '.join(op_types)}")
    scalars = {scalar for scalar in grid.scalars if isinstance(scalar, str)}
    for name in scalars:
        if _may_have_batches(match.scope, name):
            raise NotFusedError(f"{name!r} may have an element for each batch")
    inputs = scalars.union(name for name in _op_inputs(sample, grid) if name)
    required = {match.index}
    if grid.affine_grid is not None:
        required.add(grid.affine_grid.index)
    nodes = nodes_to_fuse(
        match.scope,
        required=required,
        candidates=set(grid.nodes),
        inputs=inputs,
        output=sample.output,
    )
    return FusedGridSample(
        nodes=nodes,
        inputs=frozenset(inputs),
        output=sample.output,
        sample=sample,
        grid=grid,
        op=op,
        op_types=op_types,
    )


def _check_grid_is_not_computed(match: Match) -> None:
    """Check that a match without a fused grid is no GridSample whose grid nodes compute.

    Raises:
        NotFusedError: it is one.
    """
    grid = match.record.values.get("grid", "")
    scope = match.scope
    if match.record.operator != "GridSample" or grid not in scope.makers:
        return
    if len(scope.readers.get(grid, ())) > 1:
        raise NotFusedError(f"other nodes read its grid {grid!r}")
    maker = scope.nodes[scope.makers[grid]]
    raise NotFusedError(
        f"no nodes that can be fused compute its grid {grid!r}, the output of {maker.op_type}: the "
        "provider does not search for operators that are decomposed to basic ones"
    )


def _check_kernel(match: Match) -> None:
    """Check that the provider has a kernel for the single node of ``match``.

    Raises:
        NotFusedError: it has none.
    """
    node = match.record
    if node.error is not None:
        raise NotFusedError(str(node.error))
    if node.domain not in DOMAINS:
        raise NotFusedError(f"nodes of the domain {node.domain!r} are not fused")
    if node.operator == "AffineGrid":
        return
    if node.mode not in COMPILED_MODES or node.padding_mode not in PADDING_CODES:
        raise NotFusedError(f"no compiled op has mode {node.mode}, padding {node.padding_mode}")


def _may_have_batches(scope: Scope, scalar: str) -> bool:
    """Whether a scalar has several axes. The first one may be the axis of batches.

    A model may declare one batch, and run with more. Then the value has an element per batch, which
    the nodes of the graph broadcast, but a program reads only one element.
    """
    graph = scope.container
    assert isinstance(graph, onnx.GraphProto)
    for value in (*graph.input, *graph.value_info):
        if value.name == scalar:
            return len(value.type.tensor_type.shape.dim) > 1
    return False


def _op_inputs(sample: NodeRecord, grid: FusedGrid) -> list[str]:
    """Return the values that the compiled op reads, in order; "" for the scalars of programs."""
    X = sample.values["X"]
    if grid.affine_grid is None:
        return [X, "", *grid.sources]
    values = grid.affine_grid.record.values
    return [X, values["size"], values["theta"]]


def _add_integers(image: RecordImage, values: list[int]) -> Relocation:
    """Append an array of int64, and return its offset."""
    return image.add_records(WORD, *({"value": value} for value in values))
