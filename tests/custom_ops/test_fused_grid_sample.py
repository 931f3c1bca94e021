"""The op FusedGridSample: the attributes that a session writes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.structs import REQUEST
from ort_gridsample.functions.validation import format_shape
from ort_gridsample.kernels.program_codes import MAX_SOURCES, MAX_STEPS, WITH_PROGRAM
from support.fused_models import needs_compiled_ops
from support.models import parsed
from support.paths import quiet_options


def test_compiled_op_has_room_for_all_sources() -> None:
    assert REQUEST["inputs"].shape == (2 + MAX_SOURCES,)


def fused_op_model(coordinates: list[int], sources: Sequence[str]) -> onnx.ModelProto:
    """Return a model of one fused op with these attributes."""
    model = parsed("""g (float[1,1,5,6] X, float[1,3,4,2] coords) => (float[N,C,h,w] Y)
        <float[1] numbers = {0}> {
            Y = ort_gridsample.compiled.FusedGridSample (X, numbers, coords) }""")
    (node,) = model.graph.node
    node.name = "sample"
    integers = onnx.AttributeProto.INTS
    node.attribute.append(helper.make_attribute("coordinates", coordinates, attr_type=integers))
    for index, source in enumerate(sources):
        node.attribute.append(helper.make_attribute(f"source{index}", repr(source)))
    return model


def open_fused_op(coordinates: list[int], sources: Sequence[str]) -> onnxruntime.InferenceSession:
    model = fused_op_model(coordinates, sources)
    return onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))


def program(
    *,
    source: int = 0,
    axis: int = 3,
    index: int = 0,
    length: int = 2,
    codes: Sequence[int] = (),
    n_steps: int | None = None,
) -> list[int]:
    """Return an encoded program. Its number of steps is that of the codes unless it is given."""
    steps = [*codes, *[0] * (MAX_STEPS - len(codes))]
    return [source, axis, index, length, len(codes) if n_steps is None else n_steps, *steps]


VALID_X = program(codes=[0])
VALID_Y = program(index=1)
INVALID_X = {
    "unknown source": program(source=1),
    "negative source": program(source=-1),
    "index beyond the length": program(index=2),
    "negative index": program(index=-1),
    "unknown axis": program(axis=9),
    "negative axis": program(axis=-2),
    "unknown code": program(codes=[16]),
    "negative code": program(codes=[-1]),
    "code after the steps": program(codes=[2], n_steps=0),
    "too many steps": program(n_steps=MAX_STEPS + 1),
    "negative number of steps": program(n_steps=-1),
    "too few numbers": program()[:-1],
    "operand without a program": program(codes=[WITH_PROGRAM]),
}
INVALID_COORDINATES = {
    **{name: [*program_of_x, *VALID_Y] for name, program_of_x in INVALID_X.items()},
    "operand of an unknown source": [
        *program(codes=[WITH_PROGRAM]),
        *VALID_Y,
        *program(source=1),
    ],
    "operand of an operand": [
        *program(codes=[WITH_PROGRAM]),
        *VALID_Y,
        *program(codes=[WITH_PROGRAM]),
        *VALID_Y,
    ],
    "three coordinates": [*VALID_X, *VALID_Y, *program(axis=5)],
    "no programs": [],
    "a number": [0],
}


@needs_compiled_ops
@pytest.mark.parametrize("coordinates", INVALID_COORDINATES.values(), ids=INVALID_COORDINATES)
def test_fused_op_with_invalid_coordinates_is_refused(coordinates: list[int]) -> None:
    with pytest.raises(Exception, match="initialization") as raised:
        open_fused_op(coordinates, ["coords"])
    assert str(raised.value).endswith(
        f"GridSample node 'sample': coordinates is {format_shape(coordinates)}, "
        "expected the programs that a session writes"
    )


FUSED_OP_FEEDS = {
    "X": np.ones((1, 1, 5, 6), np.float32),
    "coords": np.zeros((1, 3, 4, 2), np.float32),
}


@needs_compiled_ops
def test_fused_op_with_valid_coordinates_runs() -> None:
    session = open_fused_op([*VALID_X, *VALID_Y], ["coords"])
    assert session.run(None, FUSED_OP_FEEDS)[0].shape == (1, 1, 3, 4)


@needs_compiled_ops
@pytest.mark.parametrize(
    ("program_of_y", "sources"),
    [
        (program(source=1, index=1), ["coords", "more"]),
        (program(index=1, codes=[0]), ["coords"]),
    ],
    ids=["source", "number"],
)
def test_fused_op_with_a_missing_input_is_refused(
    program_of_y: list[int], sources: list[str]
) -> None:
    session = open_fused_op([*VALID_X, *program_of_y], sources)
    sentence = (
        "grid is computed from an input that is omitted, "
        f"expected {len(sources)} inputs and the scalars of their programs$"
    )
    with pytest.raises(Exception, match=sentence):
        session.run(None, FUSED_OP_FEEDS)
