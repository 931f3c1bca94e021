"""What all ops do first and last: take their inputs from ONNX Runtime, and give them back."""

from __future__ import annotations

from numba.extending import register_jitable

from ...core.pointers import call, load, store
from .calls import function

get_input = function("KernelContext_GetInput")
get_data = function("GetTensorMutableData")
get_info = function("GetTensorTypeAndShape")
get_axes = function("GetDimensionsCount")
get_lengths = function("GetDimensions")
release_info = function("ReleaseTensorTypeAndShapeInfo")

#: What is known of an input, in bytes from its place: where its elements lie, its type and shape where they had to be
#: made an object of, how many axes, and where else their lengths lie.
DATA, INFO, AXES, LENGTHS, SIZE = range(0, 40, 8)


@register_jitable
def open_inputs(api: int, shape_of: int, context: int, at: int, count: int) -> int:
    """Put what is known of the ``count`` inputs ``at``; answers with a status.

    ``shape_of`` is the address of the function that says a shape without an object, or 0.
    """
    for index in range(count):
        store(at + index * SIZE + INFO, 0)
    status = 0
    for index in range(count):
        place = at + index * SIZE
        if status == 0:
            status = get_input(api, (context, index, place))
        value = load(place)
        if status == 0:
            status = get_data(api, (value, place))
        if status == 0 and shape_of != 0:
            status = call(shape_of, (value, place + INFO, place + LENGTHS, place + AXES))
            store(place + INFO, 0)  # the type, which is known
        elif status == 0:
            status = get_info(api, (value, place + INFO))
            if status == 0:
                status = get_axes(api, (load(place + INFO), place + AXES))
    return status


@register_jitable
def copy_shape(api: int, place: int, to: int) -> int:
    """Put the lengths of the axes of the input at ``place`` where ``to`` says; answers with a status."""
    info, axes = load(place + INFO), load(place + AXES)
    if info != 0:
        return get_lengths(api, (info, to, axes))
    for axis in range(axes):
        store(to + 8 * axis, load(load(place + LENGTHS) + 8 * axis))
    return 0


@register_jitable
def close_inputs(api: int, at: int, count: int) -> None:
    """Give back what :func:`open_inputs` took."""
    for index in range(count):
        info = load(at + index * SIZE + INFO)
        if info != 0:
            release_info(api, (info,))
