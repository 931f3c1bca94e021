"""What an op answers ONNX Runtime when it is registered: functions of :data:`.structs.OP`'s record, by their fields.

They are Python for ops that are compiled when they are needed, and compiled code in a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

ANSWERS: Mapping[str, Callable[..., int]] = {
    "GetName": lambda op: op.name,
    "GetExecutionProviderType": lambda op: 0,  # the CPU's
    "GetInputType": lambda op, index: op.types[index],
    "GetInputTypeCount": lambda op: op.n_inputs,
    "GetOutputType": lambda op, index: op.types[0],
    "GetOutputTypeCount": lambda op: 1,
    "GetInputCharacteristic": lambda op, index: 2 if index == op.variadic else 0,  # 2: several, of one type
    "GetOutputCharacteristic": lambda op, index: 0,
    "GetInputMemoryType": lambda op, index: 0,
    "GetVariadicInputMinArity": lambda op: 1,
    "GetVariadicInputHomogeneity": lambda op: 1,
}
