"""Creation of kernels: read a node's attributes, and create the state of its kernel.

A state and all that it points to is memory of a NODE. It is freed with the kernel, or when the
kernel cannot be created.

A function ``create`` is CreateKernelV2. Its arguments are the addresses of the OrtCustomOp (an
OP), of the OrtApi, of the OrtKernelInfo, and of the variable for the kernel, which becomes the
address of a state. A function ``compute`` is KernelComputeV2. Its arguments are the addresses of
the state and of the OrtKernelContext. Both return an OrtStatus*, 0 for success.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ...functions.error_templates import ErrorTemplate
from ...kernels.compilation import compiles_in
from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    call,
    field_address,
    local_record,
    memcpy,
    record_at,
    returns_array,
    sizeof,
)
from ...kernels.structs import Address, ArrayRef, RecordRef
from .api_functions import api_function
from .c_api import INVALID_ARGUMENT
from .catalog import INTERFACE
from .requests import Status, alloc, alloc_int64s, free_blocks
from .sentences import (
    create_status,
    encode,
    error_status,
    integer_argument,
    no_memory,
    quoted_argument,
    strlen,
    text_argument,
)
from .structs import BLOCK, ERRORS, NODE, OP, OP_CONTEXT, TEXT

get_integer = api_function("KernelInfoGetAttribute_int64", 1)
get_text = api_function("KernelInfoGetAttribute_string")
get_name = api_function("KernelInfo_GetNodeName")
get_row_size = api_function("KernelInfoGetAttributeArray_int64", 1)
get_row = api_function("KernelInfoGetAttributeArray_int64")
release_status = api_function("ReleaseStatus")
#: C's memcmp: 0 if two addresses have the same bytes.
_memcmp: Any = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
#: C's strcspn: the number of characters before the first one of a set.
strcspn: Any = types.ExternalFunction("strcspn", types.int64(types.int64, types.int64))

#: The node has another version of the ops' interface.
WRONG_INTERFACE = ErrorTemplate(
    "interface", "{number}", f"{INTERFACE}: another release of ort-gridsample wrote the model"
)
#: The library has no state for the node.
MISSING_STATE = ErrorTemplate(
    "library", "built without {mode}{inputs}", "a library for this model, or for all models"
)
#: The last sentences of an op with one state, by name.
LAST_SENTENCES = {
    "WRONG_INTERFACE": encode(WRONG_INTERFACE, "number"),
    "MISSING_STATE": encode(MISSING_STATE, "inputs", mode=""),
}


# --- Nodes and states ---


@register_jitable
def open_node(
    node: RecordRef,
    op: RecordRef,
    api: Address,
    info: Address,
    prefix: Address,
    wrong_interface_index: int,
) -> Address:
    """Initialize ``node``, and check the version of its interface.

    Args:
        node: a NODE.
        op: its OP.
        api: the address of the OrtApi.
        info: the OrtKernelInfo.
        prefix: the address of the characters before the node's name in error messages.
        wrong_interface_index: the index of the sentence :data:`WRONG_INTERFACE`.

    Returns:
        The address of ERRORS; 0 without memory. ``node.status`` is an error if the interface is
        wrong.
    """
    node.api = api
    node.op_context = op.op_context
    node.info = info
    node.blocks = 0
    node.lacks_memory = 0
    node.status = 0
    errors_address = create_errors(node, prefix, c_string("node"), op.sentences)
    interface = integer_attribute(node, c_string("interface"), 1)
    if interface != INTERFACE and is_good(node):
        arguments = (integer_argument(interface),)
        node.status = error_status(api, errors_address, wrong_interface_index, arguments)
    return errors_address


@register_jitable
def close_node(node: RecordRef, state_address: Address, out: Address) -> Status:
    """Write the address ``state_address`` to ``out``, or free the memory of a node with an error.

    Returns:
        The status of the node.
    """
    if node.status == 0:
        array_at(out, (1,), np.int64)[0] = state_address
    else:
        free_blocks(node.blocks)
    return node.status


@register_jitable
def is_good(node: RecordRef) -> bool:
    """Whether ``node`` has had no error so far."""
    return node.status == 0 and node.lacks_memory == 0


@register_jitable
def create_errors(node: RecordRef, prefix: Address, label: Address, sentences: Address) -> Address:
    """Create ERRORS for ``node``.

    Args:
        node: a NODE.
        prefix: the address of the characters before the node's name.
        label: the attribute with the name of the original node. Without it, the name is the node's.
        sentences: the address of an array of TEXT.

    Returns:
        The address of ERRORS; 0 without memory.
    """
    errors_address = alloc(node, sizeof(ERRORS))
    if errors_address == 0:
        return 0
    errors = record_at(errors_address, ERRORS)
    op_context = record_at(node.op_context, OP_CONTEXT)
    errors.create_error = op_context.create_error
    errors.sentences = sentences
    errors.prefix = prefix
    read_text(node, get_text, (node.info, label), errors.name)
    if errors.name.length <= 0:
        read_text(node, get_name, (node.info,), errors.name)
    return errors_address


@register_jitable
def create_state(
    node: RecordRef,
    op: RecordRef,
    index: int,
    dtype: Any,
    errors_address: Address,
    missing_state_index: int,
) -> Address:
    """Create the state of ``node`` as a copy of one of the op's initial states.

    This is the last allocation of the node: see :func:`destroy`.

    Args:
        node: a NODE.
        op: its OP.
        dtype: the record of the state.
        errors_address: the address of the node's ERRORS.
        missing_state_index: the index of the sentence :data:`MISSING_STATE`.

    Returns:
        The address of the state; 0 if ``node.status`` is an error.
    """
    state_address = alloc(node, sizeof(dtype))
    if node.status == 0 and node.lacks_memory != 0:
        if errors_address != 0:
            node.status = no_memory(node.api, errors_address, sizeof(dtype))
        else:
            message = c_string("not enough memory to create the kernel")
            node.status = create_status(node.api, (INVALID_ARGUMENT, message))
    if node.status == 0:
        node.status = _ensure_state(node, op, index, errors_address, missing_state_index)
    if node.status != 0:
        return 0
    memcpy(state_address, _initial_state(op, index), sizeof(dtype))
    state = record_at(state_address, dtype)
    op_context = record_at(op.op_context, OP_CONTEXT)
    state.api = node.api
    state.get_shape_reference = op_context.get_shape_reference
    state.errors = errors_address
    state.kernel.cpus = op_context.cpus
    state.kernel.align_corners = integer_attribute(node, c_string("align_corners"), 0) != 0
    return state_address


@register_jitable
def _initial_state(op: RecordRef, index: int) -> Address:
    return array_at(op.states, (index + 1,), np.int64)[index]


@register_jitable
def _ensure_state(
    node: RecordRef,
    op: RecordRef,
    index: int,
    errors_address: Address,
    missing_state_index: int,
) -> Status:
    """Compile an initial state that is missing. See :func:`create_state`."""
    if _initial_state(op, index) != 0:
        return 0
    compile_state = record_at(op.op_context, OP_CONTEXT).compile_state
    if compile_state != 0:
        return call(compile_state, (address_of(op), node.api, node.info, index))
    arguments = (text_argument(op.description, strlen(op.description)),)
    return error_status(node.api, errors_address, missing_state_index, arguments)


@register_jitable
def create_single_state(
    op_address: Address,
    api: Address,
    info: Address,
    out: Address,
    dtype: Any,
    prefix: Address,
    wrong_interface_index: int,
) -> Status:
    """CreateKernelV2 of an op with one state, a record of ``dtype``.

    Its last sentences are :data:`LAST_SENTENCES`, from the index ``wrong_interface_index`` on.
    """
    op = record_at(op_address, OP)
    node = local_record(NODE)
    errors_address = open_node(node, op, api, info, prefix, wrong_interface_index)
    missing_state_index = wrong_interface_index + 1  # LAST_SENTENCES: MISSING_STATE follows
    state_address = create_state(node, op, 0, dtype, errors_address, missing_state_index)
    return close_node(node, state_address, out)


@compiles_in(0.5)
def destroy(state_address: Address) -> int:
    """KernelDestroy: free a state, and all that its node allocated before it."""
    free_blocks(state_address - sizeof(BLOCK))
    return 0


# --- Attributes ---


@register_jitable
def integer_attribute(node: RecordRef, name: Address, default: int) -> int:
    """Return the integer attribute ``name`` of ``node``; ``default`` if there is none."""
    status, value = get_integer(node.api, (node.info, name))
    if status != 0:
        release_status(node.api, (status,))
        return default
    return value


@returns_array
def integers_attribute(node: RecordRef, name: Address) -> ArrayRef:
    """Return the attribute ``name`` of ``node`` as an int64 array; empty if there is none."""
    status, count = get_row_size(node.api, (node.info, name, 0))
    memory = alloc_int64s(node, 1 + count)  # the count, and the integers
    if status == 0 and len(memory) > 0:
        memory[0] = count
        count_address = np.int64(memory.ctypes.data)
        status = get_row(node.api, (node.info, name, count_address + 8, count_address))
    if status != 0:
        release_status(node.api, (status,))
    return memory[1:] if status == 0 else memory[:0]


@register_jitable
def read_text(node: RecordRef, get: Any, arguments: Any, result: RecordRef) -> None:
    """Set the TEXT ``result`` to characters that ONNX Runtime copies to memory of ``node``.

    Args:
        node: a NODE.
        get: a function of ONNX Runtime. Its last arguments are a buffer, and a pointer to the size
            with the terminating 0. Without a buffer it sets the size.
        arguments: its first arguments.
        result: a TEXT. Its length becomes -1 if there is no text, or no memory.
    """
    result.length = 0
    size_address = field_address(result, "length")
    status = get(node.api, arguments + (0, size_address))  # noqa: RUF005  (Numba adds tuples)
    result.data = alloc(node, result.length + 1)
    if status == 0 and result.data != 0:
        status = get(node.api, arguments + (result.data, size_address))  # noqa: RUF005
    result.length = result.length - 1 if status == 0 and result.data != 0 else -1
    if status != 0:
        release_status(node.api, (status,))


@register_jitable
def choice_attribute(
    node: RecordRef,
    name: Address,
    words: Address,
    default: int,
    errors_address: Address,
    wrong_word_index: int,
) -> int:
    """Return the index of the attribute ``name`` of ``node`` among ``words``.

    Args:
        node: a NODE.
        name: the name of the attribute.
        words: the address of characters: words, each followed by a blank.
        default: the result if the node has no such attribute.
        errors_address: the address of the node's ERRORS.
        wrong_word_index: the index of a sentence that quotes the value.

    Returns:
        The index. If the attribute is none of ``words``, the result is 0, and ``node.status`` an
        error.
    """
    word = local_record(TEXT)
    read_text(node, get_text, (node.info, name), word)
    if word.length < 0:
        return default
    index = word_index(words, word)
    if index < 0 and is_good(node):
        arguments = (quoted_argument(word.data, word.length),)
        node.status = error_status(node.api, errors_address, wrong_word_index, arguments)
    return max(index, 0)


@register_jitable
def word_index(words: Address, word: RecordRef) -> int:
    """Return the index of the TEXT ``word`` among ``words``, each followed by a blank; or -1."""
    index = 0
    while strlen(words) != 0:
        length = strcspn(words, c_string(" "))
        if length == word.length and _memcmp(words, word.data, length) == 0:
            return index
        words += length + 1
        index += 1
    return -1
