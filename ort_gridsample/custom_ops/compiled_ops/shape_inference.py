"""Inference of output shapes by the compiled ops.

A shape is an int64 array (2, n_axes): the lengths (-1: unknown), and the addresses of the names of
the axes. It is (2, 0) if the shape is unknown or there is not enough memory.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import (
    array_at,
    field_address,
    local_record,
    memset,
    record_at,
    returns_array,
)
from ...kernels.structs import Address, ArrayRef, RecordRef
from . import requests
from .api_functions import api_function
from .c_api import STRING_ATTRIBUTE
from .creation import release_status, word_index
from .sentences import strlen
from .structs import OP, OP_CONTEXT, TEXT

get_input_type = api_function("ShapeInferContext_GetInputTypeShape", 1)
get_element_type = api_function("GetTensorElementType", 1)
get_names = api_function("GetSymbolicDimensions")
make_type = api_function("CreateTensorTypeAndShapeInfo", 1)
set_element_type = api_function("SetTensorElementType")
set_lengths = api_function("SetDimensions")
set_names = api_function("SetSymbolicDimensions")
get_attribute = api_function("ShapeInferContext_GetAttribute", 1)
read_attribute = api_function("ReadOpAttr")
set_output_type = api_function("ShapeInferContext_SetOutputTypeShape")


@register_jitable
def open_inference(node: RecordRef, op_address: Address, context: Address) -> bool:
    """Initialize ``node``, whose shapes are inferred.

    Returns:
        Whether the OrtApi is known already.
    """
    # ONNX Runtime passes the first of all overloads of the op: only its OP_CONTEXT is that of the
    # node.
    node.api = record_at(record_at(op_address, OP).op_context, OP_CONTEXT).api
    node.info = context
    node.blocks = 0
    return node.api != 0


@returns_array
def alloc_shape(node: RecordRef, n_axes: int) -> ArrayRef:
    """Return an array (2, n_axes) for a shape; (2, 0) without memory."""
    memory = requests.alloc(node, 16 * n_axes)
    return array_at(memory, (2, n_axes if memory != 0 else 0), np.int64)


@register_jitable
def inferred_shape(node: RecordRef, index: int) -> Any:
    """Return the element type and the shape of an input during shape inference."""
    api = node.api
    n_axes = 0
    element_type = 0
    status, info = get_input_type(api, (node.info, index))
    if status == 0:
        status, element_type = get_element_type(api, (info,))
    if status == 0:
        status, n_axes = requests.get_n_axes(api, (info,))
    memory = alloc_shape(node, n_axes)
    lengths = np.int64(memory.ctypes.data)
    names = lengths + 8 * n_axes
    is_known = status == 0 and memory.shape[1] == n_axes
    if is_known:
        status = requests.get_lengths(api, (info, lengths, n_axes))
        status = status or get_names(api, (info, names, n_axes))
    if status != 0:
        release_status(api, (status,))
        is_known = False
    # ONNX Runtime writes 32 bits of the element type.
    return element_type & 0xFFFFFFFF, array_at(lengths, (2, n_axes if is_known else 0), np.int64)


@register_jitable
def inferred_choice(node: RecordRef, name: Address, words: Address, default: int) -> int:
    """Return the index of the attribute ``name`` among ``words`` during shape inference.

    Args:
        words: the address of characters: words, each followed by a blank.
        default: the result if the node has no such attribute.

    Returns:
        The index; -1 if the attribute is none of ``words``, or without memory.
    """
    status, attribute = get_attribute(node.api, (node.info, name))
    if status != 0:
        release_status(node.api, (status,))
        return default
    word = local_record(TEXT)
    nbytes = strlen(words) + 1
    word.data = requests.alloc(node, nbytes)
    if word.data == 0:
        return -1
    memset(word.data, np.int32(0), nbytes)  # ONNX Runtime writes no terminating 0
    size_address = field_address(word, "length")
    arguments = (attribute, STRING_ATTRIBUTE, word.data, nbytes, size_address)
    status = read_attribute(node.api, arguments)
    if status != 0:
        release_status(node.api, (status,))
        return -1
    word.length = strlen(word.data)
    return word_index(words, word)


@register_jitable
def set_inferred_shape(node: RecordRef, element_type: int, shape: ArrayRef) -> None:
    """Set the type and the shape of the output, if each axis has a length or a name."""
    api = node.api
    n_axes = shape.shape[1]
    if n_axes == 0:
        return
    for axis in range(n_axes):
        if shape[0, axis] < 0 and strlen(shape[1, axis]) == 0:
            return
    lengths = np.int64(shape.ctypes.data)
    names = lengths + 8 * n_axes
    status, info = make_type(api, ())
    status = status or set_element_type(api, (info, element_type))
    status = status or set_lengths(api, (info, lengths, n_axes))
    status = status or set_names(api, (info, names, n_axes))
    status = status or set_output_type(api, (node.info, 0, info))
    if status != 0:
        release_status(api, (status,))
    if info != 0:
        requests.release_info(api, (info,))
