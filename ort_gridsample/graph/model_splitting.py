"""Read a model without the values of its large initializers.

The message is split by the offsets of its fields, so that protobuf never parses these values.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from os import PathLike

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto

from .message_fields import Buffer, fields_of, mapped_file
from .model_source import ModelSource
from .placeholders import is_placeholder, make_placeholder
from .weights import ARRAY_DTYPES, SeparateWeights, SerializedWeights, Span, values_bytes

#: Serialized models of fewer bytes are parsed as a whole.
MIN_MODEL_BYTES = 1 << 24
#: Tensors of at most this many bytes are parsed.
MAX_PARSED_TENSOR_BYTES = 1 << 16
#: The numbers of the fields of a ModelProto, of a GraphProto and of a TensorProto.
_GRAPH_FIELD = 7
_INITIALIZER_FIELD = 5
_RAW_DATA_FIELD = 9


def split_proto(model: onnx.ModelProto) -> ModelSource:
    """Return a copy of ``model`` whose large initializers lack their values.

    These stay in ``model``.
    """
    copy = onnx.ModelProto()
    _copy_fields(model, copy, excluded="graph")
    _copy_fields(model.graph, copy.graph, excluded="initializer")
    # onnxruntime decides which of several initializers of one name it takes.
    n_tensors = Counter(tensor.name for tensor in model.graph.initializer)
    kept_names = _inputs_and_outputs(model.graph)
    kept_names.update(name for name, number in n_tensors.items() if number > 1)
    tensors = dict[str, TensorProto]()
    for tensor in model.graph.initializer:
        new_tensor = copy.graph.initializer.add()
        if tensor.name in kept_names or not _is_large_array(tensor):
            new_tensor.CopyFrom(tensor)
            continue
        _copy_fields(tensor, new_tensor, excluded="raw_data")
        make_placeholder(new_tensor)
        tensors[tensor.name] = tensor
    return ModelSource(copy, SeparateWeights(tensors))


def _copy_fields(source: Message, target: Message, excluded: str) -> None:
    """Copy the fields of a message that are set, except the field named ``excluded``."""
    # Not ListFields, which would copy the bytes of the excluded field.
    for descriptor in source.DESCRIPTOR.fields:
        name = descriptor.name
        if name == excluded:
            continue
        value = getattr(source, name)
        if not isinstance(value, (Message, str, bytes, int, float)):
            getattr(target, name).extend(value)
        elif source.HasField(name):
            if isinstance(value, Message):
                getattr(target, name).CopyFrom(value)
            else:
                setattr(target, name, value)


def _is_large_array(tensor: TensorProto) -> bool:
    """Whether ``tensor`` is large and has its values as bytes that onnxruntime can use."""
    if tensor.data_type not in ARRAY_DTYPES or min(tensor.dims, default=1) <= 0:
        return False
    if values_bytes(tensor) <= MAX_PARSED_TENSOR_BYTES:
        return False
    return tensor.HasField("raw_data") and not _has_other_data(tensor)


def _has_other_data(tensor: TensorProto) -> bool:
    """Whether the values of ``tensor`` are external data, or a part of a larger tensor."""
    has_external_data = bool(tensor.external_data) or is_placeholder(tensor)
    return has_external_data or tensor.HasField("segment")


def _inputs_and_outputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs and outputs of ``graph``, which cannot be weights.

    onnxruntime takes no values from options for initializers that are inputs or outputs.
    """
    return {value.name for value in (*graph.input, *graph.output)}


def split_source(source: bytes | str | PathLike[str]) -> ModelSource | None:
    """Read a model without the values of its large initializers.

    Args:
        source: the bytes of a model, or a path.

    Returns:
        The model. None if it must be parsed as a whole: it is small, has no such initializers, or
        cannot be read, which parsing explains by an error.
    """
    try:
        if isinstance(source, bytes):
            return _split_buffer(source, source) if len(source) >= MIN_MODEL_BYTES else None
        if not isinstance(source, (str, PathLike)):
            return None  # an integer would be a file descriptor of the caller
        if os.stat(source).st_size < MIN_MODEL_BYTES:
            return None
        with mapped_file(source) as buffer:
            return _split_buffer(buffer, source)
    except (OSError, ValueError, DecodeError):
        return None


def _split_buffer(
    buffer: Buffer,
    source: bytes | str | PathLike[str],
) -> ModelSource | None:
    """Read a model from ``buffer``, as :func:`split_source`.

    Raises:
        ValueError: the buffer is not a model.
        DecodeError: a part of it is not a message of its type.
    """
    graph_fields = [
        model_field
        for model_field in fields_of(buffer, 0, len(buffer))
        if model_field.number == _GRAPH_FIELD and model_field.has_length
    ]
    if len(graph_fields) != 1:
        return None
    (graph_field,) = graph_fields
    model = onnx.ModelProto.FromString(buffer[: graph_field.start] + buffer[graph_field.end :])
    spans = _parse_graph(buffer, graph_field.content_start, graph_field.end, model.graph)
    if not spans:
        return None
    n_names = len({tensor.name for tensor in model.graph.initializer})
    if n_names < len(model.graph.initializer):
        return None
    split = ModelSource(model, SerializedWeights(source, spans))
    split.restore(_inputs_and_outputs(model.graph))
    return split


def _parse_graph(buffer: Buffer, start: int, end: int, graph: onnx.GraphProto) -> dict[str, Span]:
    """Parse the graph between two offsets of ``buffer`` to ``graph``, without large initializers.

    Returns:
        The name of a large initializer -> where its values are.

    Raises:
        ValueError: the bytes are not a graph.
        DecodeError: a part of them is not a message of its type.
    """
    spans: dict[str, Span] = {}
    parsed_end = start
    for graph_field in fields_of(buffer, start, end):
        is_initializer = graph_field.number == _INITIALIZER_FIELD and graph_field.has_length
        length = graph_field.end - graph_field.content_start
        if not is_initializer or length <= MAX_PARSED_TENSOR_BYTES:
            continue
        weight = _parse_weight(buffer, graph_field.content_start, graph_field.end)
        if weight is None:
            continue
        tensor, span = weight
        spans[tensor.name] = span
        # protobuf merges the parts of a message.
        graph.MergeFromString(buffer[parsed_end : graph_field.start])
        graph.initializer.append(tensor)
        parsed_end = graph_field.end
    if spans:
        graph.MergeFromString(buffer[parsed_end:end])
    return spans


def _parse_weight(buffer: Buffer, start: int, end: int) -> tuple[TensorProto, Span] | None:
    """Parse the tensor between two offsets of ``buffer``, without its values.

    Returns:
        The tensor, and where its values are. None if its values are not the bytes of an array of
        its shape.

    Raises:
        ValueError: the bytes are not a tensor.
        DecodeError: a part of them is not a message of its type.
    """
    data_fields = [
        tensor_field
        for tensor_field in fields_of(buffer, start, end)
        if tensor_field.number == _RAW_DATA_FIELD and tensor_field.has_length
    ]
    if len(data_fields) != 1:
        return None
    (data_field,) = data_fields
    span = Span(data_field.content_start, data_field.end - data_field.content_start)
    tensor = TensorProto.FromString(buffer[start : data_field.start] + buffer[data_field.end : end])
    dtype = ARRAY_DTYPES.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=1) <= 0 or _has_other_data(tensor):
        return None
    if math.prod(tensor.dims) * dtype.itemsize != span.length:
        return None
    make_placeholder(tensor)
    return tensor, span
