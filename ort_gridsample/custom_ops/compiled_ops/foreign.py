"""Compiled ops with the types, inputs and attributes of other packages' nodes.

The execution provider has them, so that models with such nodes run without a patch:
OpenMMLab's grid_sampler, and nodes that are a whole deformable attention
(:data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`).
"""

from typing import Any

from numba.extending import register_jitable

from ... import spec
from ...functions.validation import ErrorTemplate, join_choices
from ...kernels.pointers import c_string, local_record, record_at
from ...kernels.structs import Address, RecordRef
from ...kernels.tap_plans import PADDING_CODES, TAPS
from . import attention, sampling
from .c_api import ELEMENT_TYPES
from .catalog import Fields, OpImplementation
from .creation import close_node, integer_attribute, is_good, open_node
from .requests import Status
from .sentences import SentenceTable, encode, error_with_number
from .structs import NODE, OP

# --- grid_sampler ---

#: The modes and the paddings in the order of their codes, which count from 0.
_CODED_MODES = sorted(spec.PYTORCH_MODES, key=lambda mode: spec.PYTORCH_MODES[mode])
_CODED_PADDINGS = sorted(
    spec.PYTORCH_PADDING_MODES, key=lambda padding: spec.PYTORCH_PADDING_MODES[padding]
)
#: Attribute -> the texts of its values in an error message.
_ATTRIBUTE_VALUES = {
    "interpolation_mode": [f"{code} ({mode})" for code, mode in enumerate(_CODED_MODES)],
    "padding_mode": [f"{code} ({padding})" for code, padding in enumerate(_CODED_PADDINGS)],
    "align_corners": ["0", "1"],
}


def _attribute_rows() -> dict[str, bytes]:
    """Encode the error messages for attributes, by the attribute's name and what is wrong."""
    rows = {}
    for attribute, values in _ATTRIBUTE_VALUES.items():
        for problem, found in (("wrong", "{number}"), ("missing", "missing")):
            template = ErrorTemplate(attribute, found, join_choices(values))
            rows[f"{attribute} {problem}"] = encode(template)
    return rows


#: The error messages of the op: those of GridSample, then two for each attribute.
_CODED_TABLE = SentenceTable(_attribute_rows(), after=sampling.SENTENCES)

# The indices of the last sentences, as numbers: compiled code reads no dictionary.
_MODE_WRONG_INDEX = _CODED_TABLE.index("interpolation_mode wrong")
_MODE_MISSING_INDEX = _CODED_TABLE.index("interpolation_mode missing")
_PADDING_WRONG_INDEX = _CODED_TABLE.index("padding_mode wrong")
_PADDING_MISSING_INDEX = _CODED_TABLE.index("padding_mode missing")
_ALIGNMENT_WRONG_INDEX = _CODED_TABLE.index("align_corners wrong")
_ALIGNMENT_MISSING_INDEX = _CODED_TABLE.index("align_corners missing")
#: The value of an attribute that the node does not have.
_MISSING = -(1 << 62)

#: The index of the mode and of the padding of each code.
_MODES = tuple(list(TAPS).index(name) for name in _CODED_MODES)
_PADDINGS = tuple(list(PADDING_CODES).index(name) for name in _CODED_PADDINGS)


def create_coded(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of a grid_sampler, whose attributes are PyTorch's integers."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    prefix = c_string("grid_sampler node ")
    errors_address = open_node(node, op, api, info, prefix, sampling.WRONG_INTERFACE_INDEX)
    name = c_string("interpolation_mode")
    mode = _code(node, name, len(_MODES), errors_address, _MODE_WRONG_INDEX, _MODE_MISSING_INDEX)
    name = c_string("padding_mode")
    padding = _code(
        node, name, len(_PADDINGS), errors_address, _PADDING_WRONG_INDEX, _PADDING_MISSING_INDEX
    )
    name = c_string("align_corners")
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


def _implementation(n_output_axes: int) -> OpImplementation:
    """Return the op of a node whose output has so many axes."""

    def states(
        value_type: str,
        lengths_type: str,
        starts_type: str,
        locations_type: str,
        weights_type: str,
    ) -> tuple[Any, list[Fields]]:
        dtype, (fields,) = attention.states(value_type, lengths_type, locations_type, weights_type)
        operands = {
            **fields["operands"],
            "starts": 2,
            "locations": 3,
            "weights": 4,
            "lengths_type": ELEMENT_TYPES[lengths_type],
            "n_output_axes": n_output_axes,
        }
        return dtype, [{**fields, "operands": operands}]

    return attention.IMPLEMENTATION._replace(states=states, infer=None)


MERGED_HEADS = _implementation(3)
SEPARATE_HEADS = _implementation(4)
