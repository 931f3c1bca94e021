"""The struct OrtCustomOp of an op as data, for the memory of this process or for a library.

An OP is filled in two steps, because the second one imports Numba. A library does both at once. In
this process, the second step is done when a session creates the first kernel of the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .c_api import ELEMENT_TYPES, VERSION
from .catalog import Op
from .record_image import RecordImage
from .structs import MAX_TYPED_INPUTS

#: The ``ONNXTensorElementDataType`` of strings.
_STRING = 8


def schema_fields(image: RecordImage, op: Op, types: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an OP that state its name and its schema.

    Args:
        image: the image that gets the OP.
        types: the types of its inputs.
    """
    element_types = [_STRING if name == "str" else ELEMENT_TYPES[name] for name in types]
    element_types += [0] * (MAX_TYPED_INPUTS - len(types))
    return {
        "version": VERSION,
        "name": image.add_text(op.op_type.encode()),
        "n_inputs": len(types),
        "n_outputs": op.n_outputs,
        "variadic": op.variadic,
        "types": element_types,
    }


def kernel_fields(
    image: RecordImage, op: Op, types: Sequence[str], states: Sequence[Any]
) -> dict[str, Any]:
    """Return the fields of an OP with which kernels are created and run. This imports Numba.

    Args:
        image: the image that gets the OP.
        types: the types of its inputs.
        states: the addresses of its initial states, as values of fields; 0 for a missing state.
    """
    implementation = op.load()
    return {
        **implementation.functions,
        "sentences": image.add_texts(implementation.sentences),
        "states": image.add_pointers(states),
        "description": image.add_text(op.describe(types).encode()),
    }
