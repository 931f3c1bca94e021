"""Compiled ops with the types, inputs and attributes of other packages' nodes.

The execution provider has them, so that models with such nodes run without a patch:
OpenMMLab's grid_sampler, and nodes that are a whole deformable attention
(:data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`).
"""

from typing import Any

from numba.extending import register_jitable

from ...dialects.table import OPENMMLAB
from ...functions.error_templates import ErrorTemplate
from ...kernels.pointers import c_string, local_record, record_at
from ...kernels.structs import Address, RecordRef
from ...kernels.tap_plans import MODE_CODES, PADDING_CODES
from . import attention, sampling
from .c_api import ELEMENT_TYPES
from .catalog import Fields, OpImplementation
from .creation import close_node, integer_attribute, is_good, open_node
from .requests import Status
from .sentences import SentenceTable, encode, error_status, integer_argument
from .structs import NODE, OP

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
            rows[f"{attribute} {problem}"] = encode(template, "number")
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
_MODES = tuple(MODE_CODES[name] for name in _coded_values("mode"))
_PADDINGS = tuple(PADDING_CODES[name] for name in _coded_values("padding_mode"))

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
        node.status = error_status(
            node.api, errors_address, sentence_index, (integer_argument(value),)
        )
    return 0


CODED = sampling.IMPLEMENTATION._replace(create=create_coded, sentences=_CODED_TABLE.encoded)

# --- Deformable attention ---


def _implementation(output_layout: int) -> OpImplementation:
    """Return the op of a node with this layout of the output, a code of :mod:`.attention`."""

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
            "output_layout": output_layout,
        }
        return dtype, [{**fields, "operands": operands}]

    return attention.IMPLEMENTATION._replace(states=states, infer=None)


# By the names of their layouts.
BY_QUERY = _implementation(attention.OUTPUT_BY_QUERY)
BY_HEAD = _implementation(attention.OUTPUT_BY_HEAD)
