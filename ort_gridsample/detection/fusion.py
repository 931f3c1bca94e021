"""Find the computation of a GridSample's grid that can be fused into the node.

This computation is an AffineGrid, arithmetic that computes coordinates from pixels or from a flow,
or nodes that only rearrange coordinates. It is found from its end: an AffineGrid by
:mod:`.grid_rules`, and any other computation by :mod:`.coordinate_rules`, which trace each
coordinate by itself to the value that stores it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ..graph.scope import display_name
from ..graph.use_def import UseDef, unread_nodes
from ..inference.lengths import SHAPE_OPERATORS, InferredLengths, ScopeLengths
from ..inference.types import Inference
from ..inference.views import LAYOUT_OPERATORS
from ..kernels.program_codes import MAX_SOURCES
from .coordinate_rules import CoordinateTracer
from .coordinate_sources import CoordinateSource, OperatorSource, ProgramSource
from .grid_rules import trace_grid
from .match import Match
from .programs import TYPES, Component, Program

#: The layout operators whose inputs after the first one are shapes, axes and indices.
_WITH_OPERANDS = LAYOUT_OPERATORS.keys() - {"Concat"}


def find_fused_grid(
    lengths: InferredLengths,
    sample: Match,
    inference: Inference,
    grid_operators: Mapping[str, Match],
) -> CoordinateSource | None:
    """Return the source of a GridSample that is fused with the nodes of its grid, or None.

    Args:
        lengths: the lengths of the values of its scope.
        inference: an inference that includes the values from which nodes with a rule in
            :data:`.COORDINATE_RULES` compute the grid.
        grid_operators: the nodes of the scope that are grid operators by the names of their
            outputs.
    """
    use_def = lengths.use_def
    if sample.record.values["grid"] not in use_def.makers:
        return None
    source = _find_operator(use_def, sample, inference, grid_operators)
    return source or _find_programs(lengths, sample, inference)


def _find_operator(
    use_def: UseDef,
    sample: Match,
    inference: Inference,
    grid_operators: Mapping[str, Match],
) -> OperatorSource | None:
    """Return the grid operator whose output only ``sample`` reads, and the nodes between them."""
    lengths = ScopeLengths(use_def, inference, {})
    path = trace_grid(lengths, sample.record.values["grid"], grid_operators)
    if path is None or sample.record.values["X"] in path.values:
        return None
    match = grid_operators[path.start]
    operands = _operand_nodes(use_def, path.nodes)
    inside = path.nodes | operands | sample.replaced_nodes | match.replaced_nodes
    if any(not use_def.scope.readers.get(name, set()) <= inside for name in path.values):
        return None
    nodes = tuple(sorted(path.nodes))
    names = (match.record.name, *(display_name(use_def.nodes[index]) for index in nodes))
    return OperatorSource(
        nodes=(*nodes, *sorted(operands)),
        fused_names=names,
        match=match,
        cast_type=path.cast_type,
    )


def _find_programs(
    lengths: InferredLengths, sample: Match, inference: Inference
) -> ProgramSource | None:
    """Return the arithmetic that computes the grid from values of its type.

    The grid is traced again while

    - the programs read too many sources: without operands that are coordinates themselves;
    - a traced node must stay, because the graph needs its output for other nodes, too: only up to
      such outputs, which the programs then read. Their set grows with each trace.

    Return None if a coordinate cannot be traced, or if no node can be fused.
    """
    use_def = lengths.use_def
    grid = sample.record.values["grid"]
    grid_value = inference.value_in_all_calls(sample.scope, grid)
    shape = grid_value.shape
    if grid_value.type not in TYPES or shape is None or len(shape) < 3:
        return None
    r = len(shape) - 2
    if isinstance(shape[-1], int) and shape[-1] != r:
        return None
    has_known_type = bool(sample.record.types["X"])
    # A node of several sources must declare its type.
    max_sources = MAX_SOURCES if has_known_type else 1
    allow_coordinate_operands = has_known_type
    boundary: set[str] = set()
    while True:
        tracer = CoordinateTracer(lengths, grid_rank=r + 2, boundary=boundary)
        fused = _trace_once(
            tracer,
            grid,
            grid_value.type,
            allow_coordinate_operands=allow_coordinate_operands,
        )
        if allow_coordinate_operands and len(fused.values) > MAX_SOURCES:
            allow_coordinate_operands = False
            continue
        if not tracer.changes_grid or len(fused.programs) < r or len(fused.values) > max_sources:
            return None
        operands = _operand_nodes(use_def, tracer.nodes, _values_read(fused))
        outside = _values_to_keep(use_def, sample, tracer, fused, operands)
        if not outside:
            return replace(fused, nodes=(*fused.nodes, *sorted(operands)))
        boundary |= outside


def _trace_once(
    tracer: CoordinateTracer,
    grid: str,
    grid_type: str,
    *,
    allow_coordinate_operands: bool,
) -> ProgramSource:
    """Trace all coordinates of a grid. Those that cannot be traced have no program."""
    last_axis = tracer.grid_rank - 1
    programs = []
    for index in range(last_axis - 1):
        component = Component(grid, last_axis, index)
        program = tracer.trace_program(
            component, allow_coordinate_operands=allow_coordinate_operands
        )
        if program is not None:
            programs.append(program)
    return _fused_programs(tracer.use_def, tracer.nodes, grid_type, programs)


def _fused_programs(
    use_def: UseDef,
    traced_nodes: Collection[int],
    grid_type: str,
    programs: Sequence[Program],
) -> ProgramSource:
    """Return the source of ``programs``, without the nodes that compute operands for it."""
    nodes = sorted(traced_nodes)
    names = tuple(display_name(use_def.nodes[index]) for index in nodes)
    return ProgramSource(
        nodes=(*nodes,), fused_names=names, type=grid_type, programs=tuple(programs)
    )


def _values_read(source: ProgramSource) -> set[str]:
    """Return the values that a fused node of programs reads for its grid."""
    return {*source.values, *(scalar for scalar in source.scalars if isinstance(scalar, str))}


def _operand_nodes(
    use_def: UseDef, traced_nodes: Collection[int], read: Collection[str] = ()
) -> set[int]:
    """Return the nodes that compute constants, shapes and indices for ``traced_nodes`` alone.

    Args:
        read: the values that the nodes that replace them read.
    """
    scope = use_def.scope
    constants = set[int]()
    computed: list[str] = []
    for index in traced_nodes:
        has_operands = scope.op_types[index] in _WITH_OPERANDS
        for position, name in enumerate(scope.inputs[index]):
            maker = use_def.makers.get(name)
            if maker is not None and use_def.is_op(maker, ("Constant",)):
                constants.add(maker)
            elif maker is not None and has_operands and position > 0:
                computed.append(name)
    if not computed:
        return constants
    operators = SHAPE_OPERATORS | {"Constant"}
    candidates = set[int]()
    for name in use_def.backward_closure(computed, operators - {"Shape"}):
        maker = use_def.makers.get(name)
        if maker is not None and use_def.is_op(maker, operators):
            candidates.add(maker)
    return constants | unread_nodes(use_def, traced_nodes, read, candidates)


def _values_to_keep(
    use_def: UseDef,
    sample: Match,
    tracer: CoordinateTracer,
    fused: ProgramSource,
    operands: Collection[int],
) -> set[str]:
    """Return the outputs of traced nodes that cannot be fused.

    Such a node has an output that another node also reads, or it is a Concat that checks shapes of
    inputs from which no coordinate was taken.
    """
    read = {sample.record.values["X"], *_values_read(fused)}
    inside = tracer.nodes.union(operands, sample.replaced_nodes)
    kept = {name for name, inputs in tracer.unused_concat_inputs.items() if inputs}
    all_readers = use_def.scope.readers
    for index in tracer.nodes:
        outputs = [name for name in use_def.scope.outputs[index] if name]
        for name in outputs:
            if name in read or not all_readers.get(name, inside) <= inside:
                kept.update(outputs)
                break
    return kept
