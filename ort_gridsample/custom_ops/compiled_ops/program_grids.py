"""Programs as the source of the grid of a GridSample: see :mod:`ort_gridsample.detection.programs`.

Every coordinate is computed with the operations of the graph, in their order and type. Results are
equal to those of the graph to the last bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ... import spec
from ...functions.error_templates import ErrorTemplate
from ...kernels import tap_table
from ...kernels.compilation import compiles_in
from ...kernels.pointers import (
    address_of,
    array_at,
    by_types,
    c_string,
    local_record,
    memcpy,
    record_at,
    sizeof,
)
from ...kernels.program_codes import (
    MAX_STEPS,
    N_NUMBERS,
    OPERATIONS,
    PROGRAM,
    WITH_PROGRAM,
)
from ...kernels.structs import LAUNCH, Address, ArrayRef, RecordRef
from ...kernels.tap_plans import COMPILED_MODES
from ...kernels.tiles import scratch_array
from .catalog import Fields, OpImplementation
from .creation import (
    close_node,
    destroy,
    get_text,
    integers_attribute,
    is_good,
    open_node,
    read_text,
)
from .requests import Status, alloc, alloc_int64s, set_shape, shape_of
from .sampling import (
    FIRST_GROUP,
    WRONG_INTERFACE_INDEX,
    compute,
    create_sample_state,
    state_fields,
)
from .sampling import SENTENCES as SAMPLE_SENTENCES
from .sentences import (
    SentenceTable,
    axis_names,
    encode,
    error_status,
    integer_argument,
    leading_axis_names,
    no_memory,
    shape_argument,
    text_argument,
    trailing_axis_names,
)
from .structs import (
    COMPONENT,
    GRID_SAMPLE_STATE,
    NODE,
    OP,
    PROGRAMS,
    REQUEST,
)

SOURCE_MISSING = ErrorTemplate(
    "grid",
    "computed from an input that is omitted",
    "{n_sources} inputs and the scalars of their programs",
)
#: About the shape of the only source. If an axis lists coordinates, its length is between the names
#: of other axes.
SOURCE_SHAPE_INVALID = ErrorTemplate(
    "grid",
    "made of {source} of shape {shape}",
    "shape ({before}{length}{after})",
)
#: About the shape of one of several sources.
SOURCE_SHAPE_MISMATCH = replace(
    SOURCE_SHAPE_INVALID,
    expected=f"{SOURCE_SHAPE_INVALID.expected}, like the other values that the grid is made of",
)
PROGRAMS_INVALID = ErrorTemplate("coordinates", "{numbers}", "the programs that a session writes")
#: About a scalar that the execution provider reads. A model may declare another shape than that of
#: a run, and onnxruntime does not check it.
NOT_SCALAR = ErrorTemplate(
    "grid",
    "made of a value of shape {shape}",
    "one element, as the model declares",
)

#: The arguments of the error messages about the shape of a source.
_SOURCE_ARGUMENTS = ("source", "shape", "before", "length", "after")
_TABLE = SentenceTable(
    {
        "SOURCE_MISSING": encode(SOURCE_MISSING, "n_sources"),
        "SOURCE_SHAPE_INVALID": encode(SOURCE_SHAPE_INVALID, *_SOURCE_ARGUMENTS),
        "SOURCE_SHAPE_MISMATCH": encode(SOURCE_SHAPE_MISMATCH, *_SOURCE_ARGUMENTS),
        "PROGRAMS_INVALID": encode(PROGRAMS_INVALID, "numbers"),
        "NOT_SCALAR": encode(NOT_SCALAR, "shape"),
    },
    after=SAMPLE_SENTENCES,
)
#: The error messages of the op: those of a GridSample, and others.
SENTENCES = _TABLE.encoded

# The indices of the others, as numbers: compiled code reads no dictionary.
SOURCE_MISSING_INDEX = _TABLE.index("SOURCE_MISSING")
SOURCE_SHAPE_INVALID_INDEX = _TABLE.index("SOURCE_SHAPE_INVALID")
SOURCE_SHAPE_MISMATCH_INDEX = _TABLE.index("SOURCE_SHAPE_MISMATCH")
PROGRAMS_INVALID_INDEX = _TABLE.index("PROGRAMS_INVALID")
NOT_SCALAR_INDEX = _TABLE.index("NOT_SCALAR")

#: The operations of the steps.
ADD, SUB, MUL, DIV = map(OPERATIONS.index, ("Add", "Sub", "Mul", "Div"))


# --- Creation ---


def states(X_type: str, grid_type: str, _: str) -> tuple[Any, list[Fields]]:
    """Return the initial states, one per mode."""
    source: dict[str, Any] = {
        "prepare_grid": (prepare_grid,),
        "coordinates": (coordinates_for, grid_type),
    }
    return GRID_SAMPLE_STATE, [
        state_fields(X_type, grid_type, mode, **source) for mode in COMPILED_MODES
    ]


def create(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of a GridSample whose grid is computed by programs."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    errors_address = open_node(
        node, op, api, info, c_string("GridSample node "), WRONG_INTERFACE_INDEX
    )
    numbers = integers_attribute(node, c_string("coordinates"))
    program_set = local_record(PROGRAMS)
    program_set.n_sources = _read_names(node, program_set.names)
    if is_good(node) and not _set_programs(program_set, numbers):
        node.status = error_status(
            api, errors_address, PROGRAMS_INVALID_INDEX, (shape_argument(numbers),)
        )
    state_address = create_sample_state(
        node, op, errors_address, FIRST_GROUP, 2 + program_set.n_sources
    )
    if state_address != 0:
        programs_address = address_of(record_at(state_address, GRID_SAMPLE_STATE).programs)
        memcpy(programs_address, address_of(program_set), sizeof(PROGRAMS))
    return close_node(node, state_address, out)


@register_jitable
def _source_attribute(index: int) -> Address:
    """Return the name of the attribute with the name of a source, as a C string."""
    return (
        c_string("source0"),
        c_string("source1"),
        c_string("source2"),
        c_string("source3"),
        c_string("source4"),
        c_string("source5"),
    )[index]


@register_jitable
def _read_names(node: RecordRef, names: ArrayRef) -> int:
    """Set ``names``, an array of TEXT, to those of the sources; return their number."""
    for index in range(len(names)):
        read_text(node, get_text, (node.info, _source_attribute(index)), names[index])
        if names[index].length < 0:
            return index
    return len(names)


@register_jitable
def _set_programs(program_set: RecordRef, numbers: ArrayRef) -> bool:
    """Check programs, and set the fields of PROGRAMS for them.

    Args:
        program_set: PROGRAMS, whose sources are set already.
        numbers: the result of :func:`ort_gridsample.detection.programs.encode`, which stays until
            the kernel is freed.

    Returns:
        Whether the programs are valid.
    """
    if len(numbers) % N_NUMBERS != 0:
        return False
    program_set.programs = np.int64(numbers.ctypes.data)
    program_set.n_programs = len(numbers) // N_NUMBERS
    programs = array_at(program_set.programs, (program_set.n_programs,), PROGRAM)
    n_scalars = 0
    n_operands = 0
    for index in range(len(programs)):
        if programs[index].n_steps < 0 or programs[index].n_steps > MAX_STEPS:
            return False
        operands = _count_operands(programs[index])
        n_scalars += programs[index].n_steps - operands
        n_operands += operands
    program_set.n_scalars = n_scalars
    program_set.r = len(programs) - n_operands
    for index in range(len(programs)):
        # The programs of operands follow the programs of the coordinates, and have no operands
        # that are programs.
        n_codes = WITH_PROGRAM if index >= program_set.r else 2 * WITH_PROGRAM
        if not _is_valid(programs[index], n_codes, program_set.n_sources, program_set.r):
            return False
    return program_set.r > 0


@register_jitable
def _is_valid(program: RecordRef, n_codes: int, n_sources: int, r: int) -> bool:
    """Whether the fields of a PROGRAM but the number of its steps are valid.

    Args:
        program: the PROGRAM.
        n_codes: the number of codes that its steps may have.
        n_sources: the number of sources.
        r: the number of coordinates.
    """
    for step in range(MAX_STEPS):
        is_used = step < program.n_steps
        if program.steps[step] < 0 or program.steps[step] >= (n_codes if is_used else 1):
            return False
    return (
        0 <= program.source < n_sources
        and -1 <= program.axis <= r + 1
        and 0 <= program.index < program.length
    )


# --- The shape of the grid ---
#
# The shape (r + 1,) of a coordinate is N and the lengths of the grid's spatial axes.


def prepare_grid(request_address: Address) -> Status:
    """Set the shape of the grid of a GridSample, and the components of its programs.

    The second input holds the scalars. The sources follow.
    """
    request = record_at(request_address, REQUEST)
    state = record_at(request.launch.kernel, GRID_SAMPLE_STATE)
    program_set = state.programs
    if not _has_inputs(request, state):
        arguments = (integer_argument(program_set.n_sources),)
        return error_status(request.api, state.errors, SOURCE_MISSING_INDEX, arguments)
    r = program_set.r
    n_lengths = (2 + program_set.n_programs) * (r + 2)
    nbytes = program_set.n_programs * sizeof(COMPONENT)
    memory = alloc_int64s(request, n_lengths)
    request.components = alloc(request, nbytes)
    if request.lacks_memory != 0:
        return no_memory(request.api, state.errors, 8 * n_lengths + nbytes)
    grid_shape = memory[: r + 2]
    coordinate_shape = memory[r + 2 : 2 * r + 3]
    programs = array_at(program_set.programs, (program_set.n_programs,), PROGRAM)
    status = _set_grid_shape(request, state, programs, coordinate_shape, grid_shape)
    if status != 0:
        return status
    set_shape(request.grid, grid_shape)
    _set_components(request, programs, grid_shape[: r + 1], memory[2 * (r + 2) :])
    return 0


@register_jitable
def _set_components(
    request: RecordRef, programs: ArrayRef, shape: ArrayRef, memory: ArrayRef
) -> None:
    """Set the components of all programs.

    Args:
        request: a REQUEST with memory for an array of COMPONENT.
        programs: the array of PROGRAM.
        shape: the shape (r + 1,) of a coordinate.
        memory: memory for the strides: r + 2 integers for each component.
    """
    components = array_at(request.components, (len(programs),), COMPONENT)
    n_strides = len(shape) + 1
    for index in range(len(programs)):
        source = request.inputs[2 + programs[index].source]
        strides = memory[index * n_strides :]
        _set_component(components[index], source, programs[index], shape, strides)


@register_jitable
def _set_grid_shape(
    request: RecordRef,
    state: RecordRef,
    programs: ArrayRef,
    coordinate_shape: ArrayRef,
    grid_shape: ArrayRef,
) -> Status:
    """Compute the shape of the grid, which all its coordinates must have.

    Args:
        request: a REQUEST.
        state: a GRID_SAMPLE_STATE.
        programs: its array of PROGRAM: those of the coordinates, then those of operands.
        coordinate_shape: memory for the shape (r + 1,) of a coordinate.
        grid_shape: where the shape (r + 2,) is written.
    """
    r = state.programs.r
    operand = r
    for index in range(r):
        misfit = _set_coordinate_shape(request, programs, index, operand, coordinate_shape)
        if misfit >= 0:
            source = request.inputs[2 + programs[misfit].source]
            return _shape_error(request.api, state, programs[misfit], shape_of(source))
        for axis in range(r + 1):
            if index == 0:
                grid_shape[axis] = coordinate_shape[axis]
            elif coordinate_shape[axis] != grid_shape[axis]:
                return _shape_error(request.api, state, programs[index], coordinate_shape)
        operand += _count_operands(programs[index])
    grid_shape[r + 1] = r
    return 0


@register_jitable
def _set_coordinate_shape(
    request: RecordRef,
    programs: ArrayRef,
    index: int,
    first_operand: int,
    shape: ArrayRef,
) -> int:
    """Broadcast the shapes of all components that a coordinate is computed from.

    Args:
        request: a REQUEST.
        programs: an array of PROGRAM.
        first_operand: the index of the program of its first operand that has one.
        shape: where the shape (r + 1,) is written.

    Returns:
        The index of the first program whose component does not fit those before it; -1 if all fit.
    """
    for axis in range(len(shape)):
        shape[axis] = 1
    if not _broadcast(request, programs[index], shape):
        return index
    for operand in range(first_operand, first_operand + _count_operands(programs[index])):
        if not _broadcast(request, programs[operand], shape):
            return operand
    return -1


@register_jitable
def _count_operands(program: RecordRef) -> int:
    """Return the number of steps whose operand has a program."""
    count = 0
    for step in range(program.n_steps):
        if program.steps[step] >= WITH_PROGRAM:
            count += 1
    return count


@register_jitable
def _has_inputs(request: RecordRef, state: RecordRef) -> bool:
    """Whether no input is omitted, and there are enough scalars."""
    scalars = request.inputs[1]
    if scalars.n_axes != 1 or shape_of(scalars)[0] < state.programs.n_scalars:
        return False
    smallest = 0
    for index in range(state.n_inputs):
        smallest = min(smallest, request.inputs[index].n_axes)
    return smallest == 0


@register_jitable
def _shape_error(api: Address, state: RecordRef, program: RecordRef, lengths: ArrayRef) -> Status:
    """Return an OrtStatus*: the source of ``program`` has wrong ``lengths``."""
    name = state.programs.names[program.source]
    n_names = state.programs.r + 1
    axis = program.axis if program.axis >= 0 else n_names
    before = axis_names(0, axis)
    length = text_argument(0, 0)
    after = text_argument(0, 0)
    if program.axis >= 0:
        length = integer_argument(program.length)
        before = leading_axis_names(axis)
        after = trailing_axis_names(axis, n_names)
    sentence_index = SOURCE_SHAPE_MISMATCH_INDEX
    if state.programs.n_sources == 1:
        sentence_index = SOURCE_SHAPE_INVALID_INDEX
    arguments = (
        text_argument(name.data, name.length),
        shape_argument(lengths),
        before,
        length,
        after,
    )
    return error_status(api, state.errors, sentence_index, arguments)


@register_jitable
def _broadcast(request: RecordRef, program: RecordRef, coordinate: ArrayRef) -> bool:
    """Broadcast the shape ``coordinate`` with that of a component, in place.

    Args:
        request: a REQUEST.
        program: the PROGRAM that reads the component.
        coordinate: the shape (r + 1,) of a coordinate.

    Returns:
        Whether the shapes agree.
    """
    lengths = shape_of(request.inputs[2 + program.source])
    expected_axes = len(coordinate) + 1 if program.axis >= 0 else len(coordinate)
    if len(lengths) != expected_axes:
        return False
    agrees = True
    coordinate_axis = 0
    for axis in range(len(lengths)):
        length = lengths[axis]
        if axis == program.axis:
            agrees = agrees and length == program.length
        else:
            if coordinate[coordinate_axis] == 1:
                coordinate[coordinate_axis] = length
            agrees = agrees and (length == 1 or length == coordinate[coordinate_axis])
            coordinate_axis += 1
    return agrees


@register_jitable
def _set_component(
    component: RecordRef, source: RecordRef, program: RecordRef, shape: ArrayRef, strides: ArrayRef
) -> None:
    """Set a COMPONENT.

    Args:
        component: the COMPONENT.
        source: the INPUT whose elements it refers to.
        program: the PROGRAM that reads it.
        shape: the shape (r + 1,) of a coordinate.
        strides: memory (≥ r + 1,) for its strides.
    """
    lengths = shape_of(source)
    stride = 1
    first = 0
    coordinate_axis = len(shape)
    for axis in range(len(lengths) - 1, -1, -1):
        if axis == program.axis:
            first = program.index * stride
        else:
            coordinate_axis -= 1
            is_broadcast = lengths[axis] != shape[coordinate_axis]
            strides[coordinate_axis] = 0 if is_broadcast else stride
        stride *= lengths[axis]
    # Extend the run over the innermost axes, as long as its positions have a constant step.
    step = 0
    run = 1
    axis = len(shape)
    while axis > 0 and (run == 1 or shape[axis - 1] == 1 or strides[axis - 1] == step * run):
        axis -= 1
        step = strides[axis] if run == 1 else step
        run *= shape[axis]
    component.data = source.data
    component.first = first
    component.strides = np.int64(strides.ctypes.data)
    component.step = step
    component.run = run
    component.n_outer_axes = axis


# --- The coordinates of a tile ---


@compiles_in(5.7)
def coordinates_for(grid_type: str) -> Callable[..., int]:
    """Return the function that computes the coordinates of a tile from sources of ``grid_type``."""
    dtype = np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(
        launch_address: Address,
        worker_address: Address,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        request = record_at(launch_address, REQUEST)  # begins with the launch
        program_set = record_at(launch.kernel, GRID_SAMPLE_STATE).programs
        r = launch.r
        lengths = shape_of(request.grid)[: r + 1]
        first = batch * launch.positions + begin
        programs = array_at(program_set.programs, (program_set.n_programs,), PROGRAM)
        components = array_at(request.components, (program_set.n_programs,), COMPONENT)
        scalars = array_at(request.inputs[1].data, (program_set.n_scalars,), dtype)
        scalar = 0
        operand = r
        normalized = scratch_array(launch, worker_address, "coordinates", dtype)
        axis_coordinates = scratch_array(launch, worker_address, "axis_coordinates", dtype)
        operand_values = axis_coordinates[:positions]
        are_interleaved = _are_interleaved(components[:r], launch.positions)
        if are_interleaved:
            source = _element_address(components[0], lengths, first, normalized.itemsize)
            tap_table.split_axes(array_at(source, (positions, r), dtype), normalized)
        for index in range(r):
            program = programs[index]
            values = normalized[r - 1 - index, :positions]  # a grid lists the innermost axis first
            if not are_interleaved:
                _load(components[index], lengths, first, values)
            for step in range(program.n_steps):
                code = program.steps[step]
                if code < WITH_PROGRAM:
                    _apply(code, scalars[scalar], values)
                    scalar += 1
                else:
                    _load(components[operand], lengths, first, operand_values)
                    scalar = _apply_scalars(programs[operand], scalars, scalar, operand_values)
                    _apply(code - WITH_PROGRAM, operand_values, values)
                    operand += 1
        return 0

    return coordinates


@register_jitable
def _are_interleaved(components: ArrayRef, positions: int) -> bool:
    """Whether the ``components`` (r,) are stored like a grid, without gaps in a batch.

    ``positions`` is the number of positions in a batch.
    """
    base = components[0]
    result = base.run % positions == 0
    for index in range(len(components)):
        component = components[index]
        result = result and component.step == len(components) and component.run == base.run
        result = result and component.data == base.data and component.first == base.first + index
    return result


@register_jitable
def _element_address(
    component: RecordRef, lengths: ArrayRef, position: int, itemsize: int
) -> Address:
    """Return the address of the element of ``component`` at a position.

    Args:
        component: a COMPONENT.
        lengths: the shape (r + 1,) of a coordinate.
        position: the index among all positions of all batches.
    """
    strides = array_at(component.strides, (len(lengths),), np.int64)
    outer = position // component.run
    element = component.first + position % component.run * component.step
    for axis in range(component.n_outer_axes - 1, -1, -1):
        element += outer % lengths[axis] * strides[axis]
        outer //= lengths[axis]
    return component.data + element * itemsize


@register_jitable
def _load(component: RecordRef, lengths: ArrayRef, first: int, destination: ArrayRef) -> None:
    """Copy consecutive elements of ``component`` to ``destination``, from position ``first`` on."""
    step = component.step
    done = 0
    while done < len(destination):
        count = min(len(destination) - done, component.run - (first + done) % component.run)
        start = _element_address(component, lengths, first + done, destination.itemsize)
        source = array_at(start, (count,), destination.dtype)
        part = destination[done : done + count]
        if step == 1:
            for p in range(count):
                part[p] = source[p]
        else:
            for p in range(count):
                part[p] = source[np.uint64(p) * np.uint64(step)]
        done += count


@register_jitable
def _apply_scalars(program: RecordRef, scalars: ArrayRef, scalar: int, values: ArrayRef) -> int:
    """Apply a program without programs as operands; return the index of the next scalar.

    Args:
        program: the PROGRAM.
        scalars: the scalars of all programs.
        scalar: the index of the program's first scalar.
        values: the values of its component, which are overwritten.
    """
    for step in range(program.n_steps):
        _apply(program.steps[step], scalars[scalar], values)
        scalar += 1
    return scalar


@by_types
def _operand_at(operand: Any, p: int) -> Any:
    """Return the operand at position ``p``: an element of an array, or a scalar."""
    if isinstance(operand, types.Array):
        return lambda operand, p: operand[p]
    return lambda operand, p: operand


@register_jitable
def _apply(code: int, operand: Any, x: ArrayRef) -> None:
    """Apply an operation to ``x`` in place.

    Args:
        code: operation << 1 | operand_first. The operation is ADD, SUB, MUL or DIV.
        operand: a scalar, or an array like ``x``.
    """
    operation = code >> 1
    is_operand_first = code & 1 != 0
    if operation == ADD:
        for p in range(len(x)):
            x[p] += _operand_at(operand, p)
    elif operation == SUB and is_operand_first:
        for p in range(len(x)):
            x[p] = _operand_at(operand, p) - x[p]
    elif operation == SUB:
        for p in range(len(x)):
            x[p] -= _operand_at(operand, p)
    elif operation == MUL:
        for p in range(len(x)):
            x[p] *= _operand_at(operand, p)
    elif is_operand_first:
        for p in range(len(x)):
            x[p] = _operand_at(operand, p) / x[p]
    else:
        for p in range(len(x)):
            x[p] /= _operand_at(operand, p)


IMPLEMENTATION = OpImplementation(create, compute, destroy, SENTENCES, states)
