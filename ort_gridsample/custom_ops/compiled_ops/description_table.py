"""The functions that describe an op to ONNX Runtime, by their fields in the struct OrtCustomOp."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .c_api import ELEMENT_TYPES

#: The ``ONNXTensorElementDataType`` of the status output.
INT64 = ELEMENT_TYPES["int64"]

#: ``OrtCustomOpInputOutputCharacteristic`` of an input.
_REQUIRED = 0
_VARIADIC = 2

#: Field -> the function. Its arguments are a record :data:`.structs.OP` and, for some, an index.
#: For ops that are compiled on demand these functions are called as Python. For a library and for
#: the execution provider they are compiled.
DESCRIPTION_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "GetName": lambda op: op.name,
    "GetExecutionProviderType": lambda op: 0,  # null: the CPU's
    "GetInputType": lambda op, index: op.types[index],
    "GetInputTypeCount": lambda op: op.n_inputs,
    "GetOutputType": lambda op, index: op.types[0] if index == 0 else INT64,
    "GetOutputTypeCount": lambda op: op.n_outputs,
    "GetInputCharacteristic": lambda op, index: _VARIADIC if index == op.variadic else _REQUIRED,
    "GetOutputCharacteristic": lambda op, index: _REQUIRED,
    "GetInputMemoryType": lambda op, index: 0,
    "GetVariadicInputMinArity": lambda op: 1,
    "GetVariadicInputHomogeneity": lambda op: 1,
}
