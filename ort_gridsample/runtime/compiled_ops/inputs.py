"""What all ops do first and last: take their inputs from ONNX Runtime, and give them back."""

from __future__ import annotations

from numba.extending import register_jitable

from .pointers import function, load, store

get_input = function("KernelContext_GetInput")
get_data = function("GetTensorMutableData")
get_info = function("GetTensorTypeAndShape")
get_axes = function("GetDimensionsCount")
release_info = function("ReleaseTensorTypeAndShapeInfo")

#: What is known of an input, in bytes from its place: where its elements lie, its type and shape, and how many axes.
DATA, INFO, AXES, SIZE = 0, 8, 16, 24


@register_jitable
def open_inputs(api: int, context: int, at: int, count: int) -> int:
    """Put what is known of the ``count`` inputs ``at``; answers with a status."""
    for index in range(count):
        store(at + index * SIZE + INFO, 0)
    status = 0
    for index in range(count):
        place = at + index * SIZE
        if status == 0:
            status = get_input(api, (context, index, place))
        value = load(place)
        if status == 0:
            status = get_info(api, (value, place + INFO))
        if status == 0:
            status = get_data(api, (value, place))
        if status == 0:
            status = get_axes(api, (load(place + INFO), place + AXES))
    return status


@register_jitable
def close_inputs(api: int, at: int, count: int) -> None:
    """Give back what :func:`open_inputs` took."""
    for index in range(count):
        info = load(at + index * SIZE + INFO)
        if info != 0:
            release_info(api, (info,))
