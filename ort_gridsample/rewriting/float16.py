"""Protect coordinates from the conversion of a model to float16.

``onnxconverter_common.float16`` casts the outputs of a listed node to float16, and back before
another listed node. It drops the two Casts again unless several inputs read the value, or the node
is a Constant. Such values are written as float64, which the converter does not convert, with a Cast
to float32 for each input that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..detection.lowered_names import lowered_from
from ..errors import GridSampleError, where_node
from ..graph.new_names import Names
from ..graph.scope import Scope, display_name, domain_of, scopes_of
from ..graph.tensors import dense_tensor, has_data
from ..inference.probe import Probe
from ..inference.types import Inference
from ..reference.arrays import Array
from .coordinate_nodes import coordinates_read


def keep_coordinates(model: onnx.ModelProto, probe: Probe | None) -> None:
    """Write as float64 the float32 coordinates of ``model`` that the conversion would round.

    Args:
        model: the model, which is changed.
        probe: returns types that onnx does not infer.

    Raises:
        GridSampleError: a coordinate is a Constant whose values are external data that was not
            loaded.
    """
    all_scopes = scopes_of(model)
    values_by_scope = [
        (scope, _values_to_protect(scope, read)) for scope, read in coordinates_read(all_scopes)
    ]
    values_to_infer = {id(scope): values for scope, values in values_by_scope}
    inference = Inference(model, all_scopes, probe, values_to_infer)
    # All types are read before a scope is rewritten.
    float32_by_scope = []
    for scope, values in values_by_scope:
        in_float32 = [
            name for name in values if inference.value_in_all_calls(scope, name).type == "float32"
        ]
        float32_by_scope.append((scope, in_float32))
    names = Names(model, all_scopes)
    # Inner graphs first: a list of nodes that was rewritten holds copies.
    for scope, values in reversed(float32_by_scope):
        if values:
            _write_as_float64(scope, values, names)


def _values_to_protect(scope: Scope, read: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the coordinates of ``scope`` that the conversion would round.

    Args:
        scope: the list of nodes to search.
        read: the index of a coordinate node -> the coordinates that it reads.
    """
    values = []
    for index in read:
        node = scope.nodes[index]
        for name in scope.outputs[index]:
            readers = scope.readers.get(name, set())
            if not readers or not all(name in read.get(reader, ()) for reader in readers):
                continue
            origins = {lowered_from(scope.nodes[reader]) for reader in readers}
            if lowered_from(node) is not None and origins == {lowered_from(node)}:
                continue  # inside one lowered node, which is written in a form for the converter
            n_inputs = sum(scope.inputs[reader].count(name) for reader in readers)
            is_constant = node.op_type == "Constant" and not domain_of(node.domain)
            if n_inputs > 1 or is_constant:
                values.append(name)
    return values


def _write_as_float64(scope: Scope, values: Sequence[str], names: Names) -> None:
    """Write ``values`` as float64, and a Cast to float32 for each input that reads one of them."""
    before = defaultdict[int, list[onnx.NodeProto]](list)
    after = defaultdict[int, list[onnx.NodeProto]](list)
    for name in values:
        maker = scope.makers[name]
        wide = names.new(f"{name}_float64")
        is_constant = scope.nodes[maker].op_type == "Constant"
        if is_constant:
            _write_constant_as_float64(scope, name, wide)
        else:
            cast_name = names.new(f"{name}_to_float64")
            after[maker].append(_cast(name, wide, cast_name, TensorProto.DOUBLE))
        is_name_free = is_constant  # the first Cast of a Constant makes the value ``name``
        for reader in sorted(scope.readers[name]):
            node = scope.nodes[reader]
            for input_index, source in enumerate(scope.inputs[reader]):
                if source != name:
                    continue
                narrow = name if is_name_free else names.new(f"{name}_float32")
                is_name_free = False
                node.input[input_index] = narrow
                cast_name = names.new(f"{name}_to_float32")
                before[reader].append(_cast(wide, narrow, cast_name, TensorProto.FLOAT))
    replaced = {}
    for index in before.keys() | {scope.makers[name] for name in values}:
        replaced[index] = [*before[index], scope.nodes[index], *after[index]]
    scope.replace_nodes(replaced)


def _write_constant_as_float64(scope: Scope, name: str, wide: str) -> None:
    """Let the Constant that makes ``name`` make a float64 value ``wide`` instead.

    Raises:
        GridSampleError: the model lacks the values of the Constant.
    """
    node = scope.nodes[scope.makers[name]]
    constant = scope.constant_value(name)
    if constant is None:
        constant = _dense_value(node)
    if constant is None:
        where = where_node("Constant", display_name(node))
        raise GridSampleError(where, "value", "external data", "data in the model itself")
    node.output[0] = wide
    del node.attribute[:]
    value = helper.make_attribute("value", numpy_helper.from_array(constant.astype(np.float64)))
    node.attribute.append(value)


def _dense_value(node: onnx.NodeProto) -> Array | None:
    """Return the sparse value of a Constant as an array; None if the Constant has none."""
    for attribute in node.attribute:
        if attribute.name == "sparse_value" and has_data(attribute.sparse_tensor):
            return numpy_helper.to_array(dense_tensor(attribute.sparse_tensor))
    return None


def _cast(source: str, output: str, name: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [output], name, to=to)
