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
from ort_gridsample.detection import programs
from ort_gridsample.detection.programs import MAX_SOURCES, MAX_STEPS
from ort_gridsample.functions.validation import format_shape
from ort_gridsample.rewriting.patch import rewrite_selected_nodes
from ort_gridsample.rewriting.targets.compiled_op import FusedOpTarget
from support.compare import refusal
from support.fused_models import needs_compiled_ops
from support.models import parsed
from support.paths import quiet_options
from support.pixel_graphs import GraphBuilder


def test_compiled_op_has_room_for_all_sources() -> None:
    assert REQUEST["inputs"].shape == (2 + MAX_SOURCES,)


def test_constants_of_fused_nodes_are_removed() -> None:
    """An unread initializer would cause a warning of onnxruntime."""
    graph = GraphBuilder()
    graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    grid = graph.apply(graph.add_input("coords", 1, 3, 4, 2), ("Mul", "two"), ("Sub", [1, 2]))
    model = graph.model(grid, (1, 1, 5, 6))
    (record,), _ = rewrite_selected_nodes(model, target=FusedOpTarget())
    assert record.fused == ("Mul1", "Sub2")
    assert [node.op_type for node in model.graph.node] == ["Constant", "FusedGridSample"]
    assert not model.graph.initializer


def fused_op_model(coordinates: list[int], sources: Sequence[str]) -> onnx.ModelProto:
    """Return a model of one fused op with these attributes."""
    model = parsed("""g (float[1,1,5,6] X, float[1,3,4,2] coords) => (float[N,C,h,w] Y)
        <float[1] numbers = {0}> {
            Y = ort_gridsample.compiled.FusedGridSample (X, numbers, coords) }""")
    (node,) = model.graph.node
    node.name = "sample"
    integers = onnx.AttributeProto.INTS
    node.attribute.append(helper.make_attribute("coordinates", coordinates, attr_type=integers))
    node.attribute.append(helper.make_attribute("sources", "\n".join(map(repr, sources))))
    return model


def open_fused_op(coordinates: list[int], sources: Sequence[str]) -> onnxruntime.InferenceSession:
    model = fused_op_model(coordinates, sources)
    return onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))


#: A program is a source, its length, the index of the coordinate, its axis, and steps.
VALID_X = [0, 3, 0, 2, 0]
VALID_Y = [0, 3, 1, 2]
STEP_WITH_PROGRAM = programs.WITH_PROGRAM
INVALID_X = [
    [1, 3, 0, 2],
    [0, 3, 2, 2],
    [0, 9, 0, 2],
    [0, -2, 0, 2],
    [0, 3, 0, 2, 16],
    [0, 3, 0, 2, -1],
    [0, 3, 0],
    [0, 3, 0, 2, STEP_WITH_PROGRAM],
    [0, 3, 0, 2, *[0] * (MAX_STEPS + 1)],
]
#: Programs of x, of y, and of operands.
INVALID_PROGRAMS = [
    *([program_of_x, VALID_Y] for program_of_x in INVALID_X),
    [[0, 3, 0, 2, STEP_WITH_PROGRAM], VALID_Y, [1, 3, 1, 2]],
    [[0, 3, 0, 2, STEP_WITH_PROGRAM], VALID_Y, [*VALID_Y, STEP_WITH_PROGRAM], VALID_Y],
    [[0, 3, 0, 2], VALID_Y, VALID_Y],
]
INVALID_COORDINATES = [
    *(programs.encode(rows, 2) for rows in INVALID_PROGRAMS),
    [],
    [0],
    [2, 1, 2],
    [-1, *VALID_Y, 0],
    [1, *VALID_Y, 3],
    [1, *VALID_Y, -1],
]


@needs_compiled_ops
@pytest.mark.parametrize("coordinates", INVALID_COORDINATES, ids=str)
def test_fused_op_with_invalid_coordinates_is_refused(coordinates: list[int]) -> None:
    with pytest.raises(Exception, match="initialization") as raised:
        open_fused_op(coordinates, ["coords"])
    assert str(raised.value).endswith(
        f"GridSample node 'sample': coordinates is {format_shape(coordinates)}, "
        "expected the programs that a session writes"
    )


@pytest.mark.parametrize("coordinates", INVALID_COORDINATES, ids=str)
def test_lowering_of_a_fused_op_with_invalid_coordinates_is_refused(
    coordinates: list[int],
) -> None:
    model = fused_op_model(coordinates, ["coords"])
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.argument == "the fused node"
    assert error.expected == "what a session writes"


FUSED_OP_FEEDS = {
    "X": np.ones((1, 1, 5, 6), np.float32),
    "coords": np.zeros((1, 3, 4, 2), np.float32),
}


@needs_compiled_ops
def test_fused_op_with_valid_coordinates_runs() -> None:
    session = open_fused_op(programs.encode([VALID_X, VALID_Y], 2), ["coords"])
    assert session.run(None, FUSED_OP_FEEDS)[0].shape == (1, 1, 3, 4)


@needs_compiled_ops
@pytest.mark.parametrize(
    ("program_of_y", "sources"),
    [([1, 3, 1, 2], ["coords", "more"]), ([*VALID_Y, 0], ["coords"])],
    ids=["source", "number"],
)
def test_fused_op_with_a_missing_input_is_refused(
    program_of_y: list[int], sources: list[str]
) -> None:
    session = open_fused_op(programs.encode([VALID_X, program_of_y], 2), sources)
    sentence = (
        "grid is computed from an input that is omitted, "
        f"expected {len(sources)} inputs and the scalars of their programs$"
    )
    with pytest.raises(Exception, match=sentence):
        session.run(None, FUSED_OP_FEEDS)
