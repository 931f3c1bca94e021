"""Coordinates that the conversion of a model to float16 would round, although the nodes around them are listed.

``onnxconverter_common.float16`` casts the outputs of a listed node to float16, and back before another listed node. It
drops the two Casts again unless several inputs read the value, or the node is a Constant. These values are written as
float64 here, which it does not convert, with a Cast to float32 for each input that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..detection.helpers import lowered_from
from ..graph.scope import Names, Scope, domain_of, scopes
from ..inference.types import Inference, Probe
from .coordinate_nodes import coordinates_read


def keep_coordinates(model: onnx.ModelProto, probe: Probe | None) -> None:
    """Write the float32 coordinates of ``model`` that the conversion would round so that it leaves them alone."""
    found = scopes(model)
    coordinates = [(scope, _rounded(scope, read)) for scope, read in coordinates_read(found)]
    inference = Inference(model, found, probe, {id(scope): names for scope, names in coordinates})
    float32 = [
        (scope, [name for name in names if inference.known(scope, name).type == "float32"])
        for scope, names in coordinates
    ]
    names = Names(model, found)
    for scope, values in reversed(float32):  # inner graphs first: a list of nodes that was rewritten holds copies
        if values:
            _write_as_float64(scope, values, names)


def _rounded(scope: Scope, read: Mapping[int, Sequence[str]]) -> list[str]:
    """The values of ``scope`` that only coordinate nodes make and read, and that the conversion would round."""
    rounded = []
    for index in read:
        node = scope.nodes[index]
        for name in scope.outputs[index]:
            readers = scope.readers.get(name, set())
            if not readers or not all(name in read.get(reader, ()) for reader in readers):
                continue
            origins = {lowered_from(scope.nodes[reader]) for reader in readers}
            if lowered_from(node) is not None and origins == {lowered_from(node)}:
                continue  # inside one lowered node, whose form is chosen for this already
            count = sum(scope.inputs[reader].count(name) for reader in readers)
            if count > 1 or (node.op_type == "Constant" and not domain_of(node.domain)):
                rounded.append(name)
    return rounded


def _write_as_float64(scope: Scope, values: Sequence[str], names: Names) -> None:
    """Let each input that reads one of ``values`` read a float32 Cast of a float64 value."""
    before = defaultdict[int, list[onnx.NodeProto]](list)
    after = defaultdict[int, list[onnx.NodeProto]](list)
    for name in values:
        maker = scope.makers[name]
        wide = names.new(f"{name}_float64")
        unused = [name]  # by the name of the value, if nothing else makes it
        if scope.nodes[maker].op_type == "Constant":
            constant = np.asarray(scope.constant(name), np.float64)
            scope.nodes[maker].output[0] = wide
            del scope.nodes[maker].attribute[:]
            value = helper.make_attribute("value", numpy_helper.from_array(constant))
            scope.nodes[maker].attribute.append(value)
        else:
            unused = []
            after[maker].append(_cast(name, wide, names.new(f"{name}_to_float64"), TensorProto.DOUBLE))
        for reader in sorted(scope.readers[name]):
            node = scope.nodes[reader]
            for position, source in enumerate(scope.inputs[reader]):
                if source == name:
                    narrow = unused.pop() if unused else names.new(f"{name}_float32")
                    node.input[position] = narrow
                    cast_name = names.new(f"{name}_to_float32")
                    before[reader].append(_cast(wide, narrow, cast_name, TensorProto.FLOAT))
    changed = before.keys() | after.keys()
    scope.replace({at: [*before[at], scope.nodes[at], *after[at]] for at in changed})


def _cast(source: str, output: str, name: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [output], name, to=to)
