"""Casts between the integers of a shape computation."""

import pytest
from onnx import TensorProto

from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.use_def import UseDef
from ort_gridsample.inference.lengths import Length, ScopeLengths
from ort_gridsample.inference.types import Inference
from support.models import parsed

BATCH = Length(unknown=(("X", 0),))


@pytest.mark.parametrize(
    ("type_name", "elements"),
    [
        ("INT64", [BATCH, Length(300)]),
        ("INT32", [BATCH, Length(300)]),
        ("FLOAT", [BATCH, Length(300)]),
        ("DOUBLE", [BATCH, Length(300)]),
        ("BOOL", [None, None]),
        ("INT8", [None, None]),
        ("UINT8", [None, None]),
        ("FLOAT16", [None, None]),
    ],
)
def test_cast_keeps_lengths_only_in_types_that_have_them(
    type_name: str, elements: list[Length | None]
) -> None:
    to = TensorProto.DataType.Value(type_name)
    model = parsed(f"""g (float[N, 300] X) => (int64[2] Y) {{
        shape = Shape (X)
        other = Cast <to = {to}> (shape)
        Y = Cast <to = 7> (other) }}""")
    (scope,) = scopes = scopes_of(model)
    inference = Inference(model, scopes, requested_names={id(scope): ["X", *scope.makers]})
    cast = ScopeLengths(UseDef(scope), inference, {}).elements("Y")
    assert cast is not None
    assert list(cast) == elements
