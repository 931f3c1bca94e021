"""Compile a share of a library whose execution provider has another name, and refuses nodes.

It is the program of the processes that build the library of ``support.refusing_plugin``. Arguments:
the system, the processor and its features, as ``kernels.target.choose`` takes them; the name of the
provider. The task is read from stdin, as by ``ort_gridsample.library.emission``.

The provider's option ``refuses`` lists what the provider does not run, each word followed by a
blank: types of nodes, domains ("ai.onnx" is the standard's), modes, types of the first input, and
its ranks ("4-D"). The provider ends the process at a node with a word of its option ``crashes``.
"""

# ruff: noqa: E402 (the target is chosen before other modules are imported)

import json
import sys
from typing import Any

from ort_gridsample.kernels import target

system, processor, features, name = sys.argv[1:]
target.choose(system, processor, tuple(json.loads(features)))

from ort_gridsample.custom_ops.provider import definitions

definitions.NAME = name

import numpy as np
from numba.extending import register_jitable

from ort_gridsample.custom_ops.compiled_ops.api_functions import api_function, write_word
from ort_gridsample.custom_ops.compiled_ops.c_api import ELEMENT_TYPES
from ort_gridsample.custom_ops.compiled_ops.creation import word_index
from ort_gridsample.custom_ops.compiled_ops.sentences import strlen
from ort_gridsample.custom_ops.compiled_ops.structs import TEXT
from ort_gridsample.custom_ops.provider import execution_provider, factory
from ort_gridsample.custom_ops.provider.ep_api import STRING_ATTRIBUTE
from ort_gridsample.custom_ops.provider.node_kernels import element_type
from ort_gridsample.custom_ops.provider.structs import (
    BUFFER,
    EP,
    FACTORY,
    N_INPUTS,
    NODE_INPUTS,
    WORD,
)
from ort_gridsample.kernels.pointers import (
    address_of,
    array_at,
    c_string,
    call,
    local_record,
    malloc,
    memcpy,
    record_at,
    sizeof,
)

_get_num_nodes = api_function("Graph_GetNumNodes", 1)
_get_nodes = api_function("Graph_GetNodes")
_get_num_inputs = api_function("Node_GetNumInputs", 1)
_get_inputs = api_function("Node_GetInputs")
_look_up_kernel = api_function("EpGraphSupportInfo_LookUpKernel", 1)
_add_node = api_function("EpGraphSupportInfo_AddSingleNode")
_get_config_entry = api_function("GetSessionConfigEntry")
_get_domain = api_function("Node_GetDomain", 1)
_get_operator = api_function("Node_GetOperatorType", 1)
_get_attribute = api_function("Node_GetAttributeByName", 1)
_read_attribute = api_function("ReadOpAttr", 1)
_get_type = api_function("GetValueInfoTypeInfo", 1)
_as_tensor_type = api_function("CastTypeInfoToTensorInfo", 1)
_get_rank = api_function("GetDimensionsCount", 1)

#: The bytes of an option.
_OPTION = 256
_REFUSES = f"ep.{name.lower()}.refuses"
_CRASHES = f"ep.{name.lower()}.crashes"
_TYPES = sorted(ELEMENT_TYPES, key=ELEMENT_TYPES.__getitem__)
#: The names of types, each followed by a blank, in the order of their numbers.
_TYPE_NUMBERS = np.array([ELEMENT_TYPES[name] for name in _TYPES])
_TYPE_WORDS = "".join(f"{name} " for name in _TYPES)
_RANK_WORDS = "0-D 1-D 2-D 3-D 4-D 5-D 6-D 7-D "


def create_ep(
    factory_address: Any,
    devices: int,
    metadata: int,
    n_devices: int,
    options: int,
    logger: int,
    out: Any,
) -> int:
    """CreateEp: an EP for this session, whose field ``fuse`` has the address of its options."""
    record = record_at(factory_address, FACTORY)
    memory = malloc(2 * _OPTION + sizeof(EP))
    for index in range(2):
        text = memory + index * _OPTION
        array_at(text, (_OPTION,), np.uint8)[:] = 0
        size = local_record(WORD)
        size.value = _OPTION - 1
        key = c_string(_REFUSES) if index == 0 else c_string(_CRASHES)
        _get_config_entry(record.api, (options, key, text, address_of(size)))
    ep_address = memory + 2 * _OPTION
    memcpy(ep_address, record.ep, sizeof(EP))
    record_at(ep_address, EP).fuse = memory
    write_word(out, ep_address)
    return 0


def get_capability(ep_address: Any, graph: int, support: int) -> int:
    """GetCapability: claim the nodes of types with kernels that the provider does not refuse."""
    ep = record_at(ep_address, EP)
    record = record_at(ep.factory, FACTORY)
    status, count = _get_num_nodes(record.api, (graph,))
    if status != 0 or count == 0:
        return status
    memory = malloc(8 * count)
    status = _get_nodes(record.api, (graph, memory, count))
    nodes = array_at(memory, (count,), np.int64)
    for index in range(count):
        node = nodes[index]
        if status == 0:
            arguments = (support, node)
            status, definition = _look_up_kernel(record.ep_api, arguments)
            if status == 0 and definition != 0:
                if _has_property(record, node, ep.fuse + _OPTION):
                    call(_NOWHERE, (0,))
                if not _has_property(record, node, ep.fuse):
                    status = _add_node(record.ep_api, arguments)
    return status


#: The address of no function.
_NOWHERE = 8


@register_jitable
def _has_property(record: Any, node: int, words: int) -> bool:
    """Whether a property of a node is one of ``words``, each followed by a blank."""
    _, operator = _get_operator(record.api, (node,))
    _, domain = _get_domain(record.api, (node,))
    if strlen(domain) == 0:
        domain = c_string("ai.onnx")
    if _is_word(operator, words) or _is_word(domain, words):
        return True
    status, attribute = _get_attribute(record.api, (node, c_string("mode")))
    if status == 0 and attribute != 0:
        value = local_record(BUFFER)
        value.words[:] = 0
        arguments = (attribute, STRING_ATTRIBUTE, address_of(value), sizeof(BUFFER) - 1)
        _read_attribute(record.api, arguments)
        if _is_word(address_of(value), words):
            return True
    inputs = local_record(NODE_INPUTS)
    status, count = _get_num_inputs(record.api, (node,))
    if status != 0 or count != N_INPUTS:
        return False
    _get_inputs(record.api, (node, address_of(inputs), count))
    _, type_info = _get_type(record.api, (inputs.values[0],))
    number = element_type(record.api, type_info)
    name = c_string(_TYPE_WORDS)
    for index in range(len(_TYPE_NUMBERS)):
        if _TYPE_NUMBERS[index] == number and _has_first_word(words, name):
            return True
        name += _word_length(name) + 1
    _, tensor_type = _as_tensor_type(record.api, (type_info,))
    _, rank = _get_rank(record.api, (tensor_type,))
    return _has_first_word(words, c_string(_RANK_WORDS) + 4 * rank)


@register_jitable
def _is_word(text: int, words: int) -> bool:
    word = local_record(TEXT)
    word.data = text
    word.length = strlen(text)
    return word_index(words, word) >= 0


@register_jitable
def _has_first_word(words: int, text: int) -> bool:
    """Whether the first word of a text is one of ``words``."""
    word = local_record(TEXT)
    word.data = text
    word.length = _word_length(text)
    return word_index(words, word) >= 0


@register_jitable
def _word_length(text: int) -> int:
    letters = array_at(text, (_OPTION,), np.uint8)
    length = 0
    while letters[length] != ord(" "):
        length += 1
    return length


factory.create_ep = create_ep
execution_provider.get_capability = get_capability

from ort_gridsample.library.emission import main  # uses these functions

main(sys.stdin.read())
