"""What every op does when a session is made: it reads a node's attributes, and makes the state of its kernel.

A state and all that it points to is memory of a NODE's, which is freed where the kernel cannot be made, or with it.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ...functions import validation
from ...kernels.pointers import address, array, chars, copy, local, sizeof, struct
from .c_api import INVALID_ARGUMENT
from .catalog import INTERFACE
from .requests import free_blocks, function, keep, reserve
from .sentences import as_bytes, complain, create_status, length_of, quoted
from .structs import BLOCK, ERRORS, LIBRARY, NODE, OP, PLAIN, TEXT

get_integer = function("KernelInfoGetAttribute_int64", 1)
get_text, get_name = function("KernelInfoGetAttribute_string"), function("KernelInfo_GetNodeName")
row_size, get_row = function("KernelInfoGetAttributeArray_int64", 1), function("KernelInfoGetAttributeArray_int64")
release_status = function("ReleaseStatus")
#: memcmp and strcspn of C: 0 where so many bytes are the same; and how many come before one of a set.
_compare: Any = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))
span: Any = types.ExternalFunction("strcspn", types.int64(types.int64, types.int64))
#: What may be wrong with any node: it is of other ops, or of a kind that a library was made without.
OTHER_INTERFACE = validation.ErrorTemplate(
    "interface", "{nbytes}", f"{INTERFACE}: the model is of another ort-gridsample's ops"
)
LACKING = validation.ErrorTemplate(
    "library", "made without {what}{value}", "one that was made for this model, or for all"
)
#: Of an op of one state.
LAST = [as_bytes(OTHER_INTERFACE), as_bytes(LACKING, what="")]


@register_jitable
def close_node(node: Any, state: int, out: int) -> int:
    """Answer with the ``state`` at ``out``; or with the node's status, and nothing."""
    if node.status == 0:
        array(out, (1,), np.int64)[0] = state
    else:
        free_blocks(node.blocks)
    return node.status


def destroy(state: int) -> int:
    """KernelDestroy: free a state, the last thing that its node kept, and what was kept before."""
    free_blocks(state - sizeof(BLOCK))
    return 0


@register_jitable
def begin_state(node: Any, op: Any, number: int, dtype: Any, errors: int, lacking: int) -> int:
    """The address of a new state, a record of ``dtype``, as the op's of this ``number``; 0: the node has a status.

    It is the last that the node keeps. Where there is no such state, the status is the sentence ``lacking``, or what
    CreateKernelV2 answers to have it made.
    """
    origin, library = array(op.states, (number + 1,), np.int64)[number], struct(op.library, LIBRARY)
    at = reserve(node, sizeof(dtype))
    if node.status == 0 and node.lacks_memory != 0:
        node.status = create_status(node.api, (INVALID_ARGUMENT, chars("there is no memory for a kernel")))
    elif node.status == 0 and origin == 0 and library.makes != 0:
        node.status = number + 1
    elif node.status == 0 and origin == 0:
        about = struct(errors, ERRORS)
        about.value.at, about.value.length = op.described, length_of(op.described)
        node.status = complain(node.api, errors, lacking, 0)
    if node.status != 0:
        return 0
    copy(at, origin, sizeof(dtype))
    made = struct(at, dtype)
    made.api, made.shape_of, made.sentences = node.api, library.shape_of, errors
    made.kernel.cpus, made.kernel.align_corners = library.cpus, integer(node, chars("align_corners"), 0) != 0
    return at


@register_jitable
def create_plain(op_at: int, api: int, info: int, out: int, operator: int, other: int) -> int:
    """CreateKernelV2 of an ``operator`` of one PLAIN state; its last two sentences begin at ``other``."""
    op, node = struct(op_at, OP), local(NODE)
    errors = open_node(node, op, api, info, operator, other)
    return close_node(node, begin_state(node, op, 0, PLAIN, errors, other + 1), out)


@register_jitable
def integer(node: Any, name: int, default: int) -> int:
    """The node's attribute ``name``, an integer; ``default`` where it has none."""
    status, value = get_integer(node.api, (node.info, name))
    if status != 0:
        release_status(node.api, (status,))
        return default
    return value


@register_jitable
def integers(node: Any, name: int) -> Any:
    """The node's attribute ``name``, a row of integers; empty where it has none."""
    status, count = row_size(node.api, (node.info, name, 0))
    memory = keep(node, 1 + count)  # its length, and it
    if status == 0 and len(memory) > 0:
        memory[0], at = count, np.int64(memory.ctypes.data)
        status = get_row(node.api, (node.info, name, at + 8, at))
    if status != 0:
        release_status(node.api, (status,))
    return memory[1:] if status == 0 else memory[:0]


@register_jitable
def text(node: Any, get: Any, key: Any, found: Any) -> None:
    """Set the TEXT ``found`` to what ``get``, ONNX Runtime's, answers to the ``key``; length -1: nothing."""
    found.length, size_at = 0, address(found) + 8  # the size, with the 0 at its end, is written to the length
    status = get(node.api, key + (0, size_at))  # noqa: RUF005  (Numba adds tuples)
    found.at = reserve(node, found.length + 1)
    if status == 0 and found.at != 0:
        status = get(node.api, key + (found.at, size_at))  # noqa: RUF005
    found.length = found.length - 1 if status == 0 and found.at != 0 else -1
    if status != 0:
        release_status(node.api, (status,))


@register_jitable
def index_among(words: int, found: Any) -> int:
    """The index of the TEXT ``found`` among ``words``, each with a blank behind it; -1 where it is none of them."""
    index = 0
    while length_of(words) != 0:
        length = span(words, chars(" "))
        if length == found.length and _compare(words, found.at, length) == 0:
            return index
        words, index = words + length + 1, index + 1
    return -1


@register_jitable
def choice(node: Any, name: int, words: int, default: int, errors: int, wrong: int) -> int:
    """The index of the node's attribute ``name`` among ``words``; any, with the sentence ``wrong``, if it is none."""
    found = local(TEXT)
    text(node, get_text, (node.info, name), found)
    if found.length < 0:
        return default
    index = index_among(words, found)
    if index < 0 and is_good(node):
        quoted(node, chars(""), found, struct(errors, ERRORS).value)
        node.status = complain(node.api, errors, wrong, 0)
    return max(index, 0)


@register_jitable
def errors_of(node: Any, operator: int, label: int, sentences: int) -> int:
    """The address of new ERRORS of an ``operator``, named by the attribute ``label`` or as the node; 0: no memory."""
    at, name = reserve(node, sizeof(ERRORS)), local(TEXT)
    if at == 0:
        return 0
    errors = struct(at, ERRORS)
    text(node, get_text, (node.info, label), name)
    if name.length <= 0:
        text(node, get_name, (node.info,), name)
    errors.sentences, errors.value.at, errors.value.length = sentences, 0, 0
    quoted(node, operator, name, errors.where)
    return at


@register_jitable
def open_node(node: Any, op: Any, api: int, info: int, operator: int, other: int) -> int:
    """Begin with a ``node``, whose status is the sentence ``other`` if it is of other ops; the address of ERRORS."""
    node.api, node.info, node.blocks, node.lacks_memory, node.status = api, info, 0, 0, 0
    errors, interface = errors_of(node, operator, chars("node"), op.sentences), integer(node, chars("interface"), 1)
    if interface != INTERFACE and is_good(node):
        node.status = complain(api, errors, other, interface)
    return errors


@register_jitable
def is_good(node: Any) -> bool:
    """Whether the ``node`` may have a kernel, as far as is known."""
    return node.status == 0 and node.lacks_memory == 0
