"""Compiled ops with the types, inputs and attributes of other packages' nodes.

The execution provider has them, so that models with such nodes run without a patch:
OpenMMLab's grid_sampler, and nodes that are a whole deformable attention
(:data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`).
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...dialects.table import OPENMMLAB
from ...functions.validation import LEVEL_STARTS_MISMATCH, ErrorTemplate
from ...kernels.pointers import array_at, c_string, local_record, record_at
from ...kernels.structs import ATTENTION_LAUNCH, Address, RecordRef
from ...kernels.tap_plans import PADDING_CODES, TAPS
from . import attention, sampling
from .catalog import Fields, OpImplementation
from .creation import (
    close_node,
    create_single_state,
    destroy,
    integer_attribute,
    is_good,
    open_node,
)
from .requests import (
    Status,
    alloc,
    alloc_int64s,
    copy_input,
    free_blocks,
    open_request,
    set_shape,
    shape_of,
)
from .sentences import (
    NO_MEMORY_INDEX,
    SentenceTable,
    encode,
    error_with_number,
    error_with_shape,
    error_with_shapes,
)
from .structs import FOREIGN_ATTENTION, NODE, OP, REQUEST

# --- grid_sampler ---

#: GridSample's attributes, as OpenMMLab's packages spell them.
_SPELLINGS = OPENMMLAB[0].attributes


def _coded_values(attribute: str) -> list[str]:
    """Return the names of an attribute of GridSample in the order of their codes, from 0 on."""
    values = {code: value for value, code in _SPELLINGS[attribute].values.items()}
    return [str(values[code]) for code in range(len(values))]


def _attribute_rows() -> dict[str, bytes]:
    """Encode the error messages for attributes, by the attribute's name and what is wrong."""
    rows = {}
    for attribute, spelling in _SPELLINGS.items():
        for problem, found in (("wrong", "{number}"), ("missing", "missing")):
            template = ErrorTemplate(spelling.name, found, spelling.choices_text())
            rows[f"{attribute} {problem}"] = encode(template)
    return rows


#: The error messages of the op: those of GridSample, then two for each attribute.
_CODED_TABLE = SentenceTable(_attribute_rows(), after=sampling.SENTENCES)

# The indices of the last sentences, as numbers: compiled code reads no dictionary.
_MODE_WRONG_INDEX = _CODED_TABLE.index("mode wrong")
_MODE_MISSING_INDEX = _CODED_TABLE.index("mode missing")
_PADDING_WRONG_INDEX = _CODED_TABLE.index("padding_mode wrong")
_PADDING_MISSING_INDEX = _CODED_TABLE.index("padding_mode missing")
_ALIGNMENT_WRONG_INDEX = _CODED_TABLE.index("align_corners wrong")
_ALIGNMENT_MISSING_INDEX = _CODED_TABLE.index("align_corners missing")
#: The value of an attribute that the node does not have.
_MISSING = -(1 << 62)

#: The index of the mode and of the padding of each code.
_MODES = tuple(list(TAPS).index(name) for name in _coded_values("mode"))
_PADDINGS = tuple(list(PADDING_CODES).index(name) for name in _coded_values("padding_mode"))

# The names of the attributes, as texts: compiled code reads no dictionary.
_MODE = _SPELLINGS["mode"].name
_PADDING = _SPELLINGS["padding_mode"].name
_ALIGNMENT = _SPELLINGS["align_corners"].name


def create_coded(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of a grid_sampler, whose attributes are PyTorch's integers."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    prefix = c_string("grid_sampler node ")
    errors_address = open_node(node, op, api, info, prefix, sampling.WRONG_INTERFACE_INDEX)
    name = c_string(_MODE)
    mode = _code(node, name, len(_MODES), errors_address, _MODE_WRONG_INDEX, _MODE_MISSING_INDEX)
    name = c_string(_PADDING)
    padding = _code(
        node, name, len(_PADDINGS), errors_address, _PADDING_WRONG_INDEX, _PADDING_MISSING_INDEX
    )
    name = c_string(_ALIGNMENT)
    _code(node, name, 2, errors_address, _ALIGNMENT_WRONG_INDEX, _ALIGNMENT_MISSING_INDEX)
    state_address = sampling.create_mode_state(
        node,
        op,
        errors_address,
        sampling.FIRST_GROUP,
        sampling.N_INPUTS,
        _MODES[mode],
        _PADDINGS[padding],
    )
    return close_node(node, state_address, out)


@register_jitable
def _code(
    node: RecordRef,
    name: Address,
    n_codes: int,
    errors_address: Address,
    wrong_index: int,
    missing_index: int,
) -> int:
    """Return an integer attribute of ``node``, from 0 up to, not including, ``n_codes``.

    If there is no such value, return 0, and set ``node.status`` to an error.

    Args:
        node: a NODE.
        name: the address of the attribute's name.
        n_codes: the number of values.
        errors_address: the address of the node's ERRORS.
        wrong_index: the index of the sentence for a wrong value.
        missing_index: the index of the sentence for a missing attribute.
    """
    value = integer_attribute(node, name, _MISSING)
    if 0 <= value < n_codes:
        return value
    if is_good(node):
        sentence_index = missing_index if value == _MISSING else wrong_index
        node.status = error_with_number(node.api, errors_address, sentence_index, value)
    return 0


CODED = sampling.IMPLEMENTATION._replace(create=create_coded, sentences=_CODED_TABLE.encoded)

# --- Deformable attention ---

_SHAPES = ErrorTemplate("spatial_shapes", "of shape {levels}", "shape (L, 2)")
_LOCATION_AXES = ErrorTemplate(
    "sampling_locations",
    "of shape {sampling_locations}",
    "shape (B, Q, H, L, P, 2)",
)
_ATTENTION_TABLE = SentenceTable(
    {
        "SHAPES_INVALID": encode(_SHAPES),
        "STARTS_INCONSISTENT": encode(LEVEL_STARTS_MISMATCH),
        "LOCATIONS_INVALID": encode(_LOCATION_AXES),
    },
    after=attention.SENTENCES,
)
_SHAPES_INVALID_INDEX = _ATTENTION_TABLE.index("SHAPES_INVALID")
_STARTS_INCONSISTENT_INDEX = _ATTENTION_TABLE.index("STARTS_INCONSISTENT")
_LOCATIONS_INVALID_INDEX = _ATTENTION_TABLE.index("LOCATIONS_INVALID")
_N_INPUTS = 5


def _states(
    value_type: str,
    lengths_type: str,
    starts_type: str,
    locations_type: str,
    weights_type: str,
) -> tuple[Any, list[Fields]]:
    """Return the initial state of another package's deformable attention."""
    _, (fields,) = attention.states(value_type, lengths_type, locations_type, weights_type)
    return FOREIGN_ATTENTION, [{**fields, "is_int32": int(lengths_type == "int32")}]


def create_attention(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of another package's deformable attention."""
    prefix = c_string("DeformableAttention node ")
    return create_single_state(
        op_address, api, info, out, FOREIGN_ATTENTION, prefix, attention.WRONG_INTERFACE_INDEX
    )


def compute_merged_heads(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of a node whose output is (B, Q, H·D)."""
    return _compute(state_address, context, 3)


def compute_separate_heads(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of a node whose output is (B, Q, H, D)."""
    return _compute(state_address, context, 4)


@register_jitable
def _compute(state_address: Address, context: Address, n_output_axes: int) -> Status:
    state = record_at(state_address, FOREIGN_ATTENTION)
    request = local_record(REQUEST)
    status = open_request(request, state, context, _N_INPUTS)
    status = status or _convert_inputs(state, request)
    launch = local_record(ATTENTION_LAUNCH)
    status = status or attention.attend(state, request, launch, n_output_axes)
    free_blocks(request.blocks)
    return status


@register_jitable
def _convert_inputs(state: RecordRef, request: RecordRef) -> Status:
    """Replace the inputs of ``request`` by those of DeformableAttention."""
    status = _check_shapes(state, request)
    if status != 0:
        return status
    inputs = request.inputs
    n_levels = shape_of(inputs[1])[0]
    n_points = shape_of(inputs[3])[4]
    memory = alloc(request, 24 * n_levels)
    levels_shape = alloc_int64s(request, 2)
    if memory == 0 or len(levels_shape) == 0:
        return error_with_number(request.api, state.errors, NO_MEMORY_INDEX, 24 * n_levels)
    levels = array_at(memory, (n_levels, 3), np.int64)
    start = 0
    for level in range(n_levels):
        levels[level, 0] = n_points
        for axis in range(2):
            levels[level, 1 + axis] = _integer(state, inputs[1].data, 2 * level + axis)
        if _integer(state, inputs[2].data, level) != start:
            return error_with_number(request.api, state.errors, _STARTS_INCONSISTENT_INDEX, 0)
        start += levels[level, 1] * levels[level, 2]
    levels_shape[0] = n_levels
    levels_shape[1] = 3
    inputs[1].data = memory
    set_shape(inputs[1], levels_shape)
    copy_input(inputs[2], inputs[3])
    copy_input(inputs[3], inputs[4])
    return 0


@register_jitable
def _check_shapes(state: RecordRef, request: RecordRef) -> Status:
    """Check the shapes that DeformableAttention does not check."""
    api = request.api
    lengths_shape = shape_of(request.inputs[1])
    starts_shape = shape_of(request.inputs[2])
    locations_shape = shape_of(request.inputs[3])
    weights_shape = shape_of(request.inputs[4])
    if len(lengths_shape) != 2 or lengths_shape[1] != 2:
        return error_with_shape(api, state.errors, _SHAPES_INVALID_INDEX, lengths_shape)
    if len(starts_shape) != 1 or starts_shape[0] != lengths_shape[0]:
        return error_with_number(api, state.errors, _STARTS_INCONSISTENT_INDEX, 0)
    if len(locations_shape) != 6:
        return error_with_shape(api, state.errors, _LOCATIONS_INVALID_INDEX, locations_shape)
    if len(weights_shape) != 5:
        sentence_index = attention.WEIGHTS_SHAPE_MISMATCH_INDEX
        return error_with_shapes(api, state.errors, sentence_index, weights_shape, locations_shape)
    return 0


@register_jitable
def _integer(state: RecordRef, data: Address, index: int) -> int:
    """Return an element of spatial_shapes or level_start_index, which are of one type.

    Args:
        state: a FOREIGN_ATTENTION.
        data: the address of the elements.
        index: the index of the element.
    """
    if state.is_int32 != 0:
        return array_at(data, (index + 1,), np.int32)[index]
    return array_at(data, (index + 1,), np.int64)[index]


MERGED_HEADS = OpImplementation(
    create_attention, compute_merged_heads, destroy, _ATTENTION_TABLE.encoded, _states
)
SEPARATE_HEADS = MERGED_HEADS._replace(compute=compute_separate_heads)
