"""Test that inputs that do not fit the operators are errors on every op and in every target."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from support import faults
from support.built_library import needs_linker
from support.compare import refusal
from support.models import parsed
from support.paths import (
    HAS_PYTHON_OPS,
    LIBRARY,
    NO_PYTHON_OPS,
    OPENERS,
    Open,
    open_library,
    open_patched_file,
    quiet_options,
)
from support.runtime_forms import RUNTIME_FORMS

#: Declared shapes of X and grid with known ranks and unknown lengths.
OPEN = {"X": "a, b, c, d", "G": "e, f, g, h"}
OPEN_3D = {"X": "a, b, c, d, e", "G": "f, g, h, i, j"}
OPEN_1D = {"X": "a, b, c", "G": "e, f, g"}
THETA = {"T": "n, 2, 3", "S": "4"}


@dataclass(frozen=True)
class Wrong:
    """Inputs that are wrong for a node.

    Attributes:
        declared: the shapes that the model declares, so loose that only a run can find the mistake.
        fed: the shape of each input, which is fed zeros; for the input ``S`` its numbers.
        attributes: those of the node.
        has_empty: whether a length is 0, which the forms for some runtimes do not support.
    """

    declared: dict[str, str]
    fed: dict[str, tuple[int, ...]]
    attributes: dict[str, str] = field(default_factory=dict)
    has_empty: bool = False

    @property
    def operator(self) -> str:
        return "GridSample" if "X" in self.fed else "AffineGrid"

    def model(self) -> onnx.ModelProto:
        kinds = {name: "int64" if name == "S" else "float" for name in self.declared}
        inputs = ", ".join(f"{kinds[name]}[{dims}] {name}" for name, dims in self.declared.items())
        attributes = {"mode": "linear", **self.attributes} if self.operator == "GridSample" else {}
        written = ", ".join(f'{name} = "{value}"' for name, value in attributes.items())
        row = ""
        if "S" not in self.declared and "S" in self.fed:
            row = f"S = Constant <value_ints = [{', '.join(map(str, self.fed['S']))}]> ()"
        node = f"{self.operator} {f'<{written}>' if written else ''} ({', '.join(self.fed)})"
        model = parsed(f"g ({inputs}) => (float[] Y) {{ {row} Y = {node} }}")
        model.graph.node[-1].name = "warp"
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            name: np.array(self.fed[name]) if name == "S" else np.zeros(self.fed[name], np.float32)
            for name in self.declared
        }

    def argument_names(self) -> tuple[str, str]:
        """Return the names of the arguments that an error may be about."""
        return ("X", "grid") if self.operator == "GridSample" else ("theta", "size")

    def error(self) -> ogs.GridSampleError:
        """Return the error of the function for the inputs."""
        where = f"{self.operator} node 'warp'"
        if self.operator == "AffineGrid":
            theta = np.zeros(self.fed["T"], np.float32)
            return refusal(ogs.affine_grid, theta, self.fed["S"], where=where)
        X, grid = (np.zeros(self.fed[name], np.float32) for name in ("X", "G"))
        return refusal(ogs.grid_sample, X, grid, where=where, **self.attributes)


def _samples(
    declared: dict[str, str], X: tuple[int, ...], G: tuple[int, ...], **attributes: str
) -> Wrong:
    return Wrong(declared, {"X": X, "G": G}, attributes, has_empty=0 in (*X, *G))


def _grids(declared: dict[str, str], T: tuple[int, ...], *S: int) -> Wrong:
    return Wrong(declared, {"T": T, "S": S})


WRONG = {
    "fewer batches of grid": _samples(OPEN, (12, 1, 5, 7), (10, 9, 9, 2)),
    "one batch of grid": _samples(OPEN, (12, 1, 5, 7), (1, 9, 9, 2)),
    "one batch of X": _samples(OPEN, (1, 1, 5, 7), (3, 9, 9, 2)),
    "no batch of grid": _samples(OPEN, (3, 1, 5, 7), (0, 9, 9, 2)),
    "no batch of X": _samples(OPEN, (0, 1, 5, 7), (3, 9, 9, 2)),
    "other batches, no channel": _samples(OPEN, (3, 0, 5, 7), (2, 9, 9, 2)),
    "other batches, no position": _samples(OPEN, (3, 1, 5, 7), (2, 9, 0, 2)),
    "other batches, no pixel": _samples(OPEN, (3, 1, 0, 7), (2, 9, 9, 2)),
    "other batches, both open": _samples(
        {"X": "n, 1, 5, 7", "G": "m, 9, 9, 2"}, (12, 1, 5, 7), (10, 9, 9, 2)
    ),
    "other batches, border": _samples(
        {"X": "n, 4, 5, 7", "G": "m, 9, 9, 2"}, (10, 4, 5, 7), (12, 9, 9, 2), padding_mode="border"
    ),
    "other batches, nearest": _samples(
        {"X": "n, 4, h, w", "G": "m, 9, 9, 2"},
        (12, 4, 5, 7),
        (10, 9, 9, 2),
        mode="nearest",
        padding_mode="border",
    ),
    "other batches of X than declared": _samples(
        {"X": "n, 1, h, w", "G": "10, 9, 9, 2"}, (12, 1, 5, 5), (10, 9, 9, 2)
    ),
    "batches of X by a known image": _samples(
        {"X": "n, 1, 5, 7", "G": "10, 9, 9, 2"}, (12, 1, 5, 7), (10, 9, 9, 2)
    ),
    "other batches of grid than of X": _samples(
        {"X": "12, 1, 5, 7", "G": "n, 9, 9, 2"}, (12, 1, 5, 7), (10, 9, 9, 2)
    ),
    "three coordinates": _samples(OPEN, (2, 1, 5, 7), (2, 9, 8, 3)),
    "four coordinates": _samples(
        {"X": "1, 1, h, w", "G": "1, p, q, k"}, (1, 1, 5, 7), (1, 9, 8, 4)
    ),
    "one coordinate": _samples(OPEN, (2, 1, 5, 7), (2, 9, 8, 1)),
    "three coordinates, no position": _samples(OPEN, (2, 1, 5, 7), (2, 0, 8, 3)),
    "X of five axes": _samples({"X": "", "G": "e, f, g, 2"}, (2, 1, 5, 7, 1), (2, 9, 8, 2)),
    "X of three axes": _samples({"X": "", "G": "e, f, g, 2"}, (2, 1, 5), (2, 9, 8, 2)),
    "grid of five axes": _samples({"X": "a, b, c, d", "G": ""}, (2, 1, 5, 7), (2, 9, 4, 2, 2)),
    "grid of three axes": _samples({"X": "a, b, c, d", "G": ""}, (2, 1, 5, 7), (2, 9, 2)),
    "no pixel, border": _samples(OPEN, (2, 1, 0, 7), (2, 3, 3, 2), padding_mode="border"),
    "no pixel, reflection": _samples(OPEN, (2, 1, 5, 0), (2, 3, 3, 2), padding_mode="reflection"),
    "other batches of one axis": _samples(OPEN_1D, (12, 1, 5), (10, 12, 1)),
    "other batches of one axis than of X": _samples(
        {"X": "12, b, c", "G": "e, f, g"}, (12, 1, 5), (10, 12, 1)
    ),
    "two coordinates of one axis": _samples(OPEN_1D, (2, 1, 5), (2, 6, 2)),
    "other batches of three axes": _samples(OPEN_3D, (4, 1, 5, 4, 4), (2, 3, 3, 3, 3)),
    "two coordinates of three axes": _samples(OPEN_3D, (2, 1, 5, 4, 4), (2, 3, 3, 3, 2)),
    "more batches of theta": _grids(THETA, (3, 2, 3), 2, 1, 4, 5),
    "fewer batches of theta": _grids(THETA, (1, 2, 3), 2, 1, 4, 5),
    "no batch of size": _grids(THETA, (3, 2, 3), 0, 1, 4, 5),
    "other batches, no row": _grids(THETA, (3, 2, 3), 2, 1, 0, 5),
    "other batches of theta than of a constant size": _grids(
        {"T": "n, 2, 3"}, (3, 2, 3), 2, 1, 4, 5
    ),
    "no batch of a constant size": _grids({"T": "n, 2, 3"}, (3, 2, 3), 0, 1, 4, 5),
    "a negative height": _grids(THETA, (3, 2, 3), 3, 1, -4, 5),
    "a negative batch": _grids(THETA, (3, 2, 3), -3, 1, 4, 5),
    "theta of three axes": _grids({"T": "n, a, b", "S": "4"}, (3, 3, 4), 6, 1, 4, 5),
    "theta of another height": _grids({"T": "n, a, b", "S": "4"}, (3, 3, 2), 3, 1, 4, 5),
    "theta of four axes": _grids({"T": "", "S": "4"}, (3, 2, 3, 1), 3, 1, 4, 5),
    "a size of five numbers": _grids({"T": "n, 2, 3", "S": "k"}, (3, 2, 3), 3, 1, 4, 5, 6),
    "a size of three numbers": _grids({"T": "n, 2, 3", "S": "k"}, (3, 2, 3), 3, 1, 4),
}
#: onnxruntime's AffineGrid accepts this size, and this package refuses it.
NEGATIVE_CHANNELS = _grids(THETA, (3, 2, 3), 3, -1, 4, 5)

#: Inputs of ranks that a lowering needs to know, and numbers that no runtime computes with.
ONLY_OPS = {
    "negative channels": NEGATIVE_CHANNELS,
    "X and grid of two axes": _samples({"X": "", "G": ""}, (1, 2), (1, 3)),
    "X and grid without axes": _samples({"X": "", "G": ""}, (), ()),
    "theta of two axes": _grids({"T": "", "S": "4"}, (2, 3), 1, 1, 2, 3),
    "the least height": _grids({"T": "n, 3, 4", "S": "5"}, (1, 3, 4), 1, 1, 2, -(2**63), 3),
}

#: The name of a lowering -> the arguments of ``patch_model``.
LOWERED: dict[str, dict[str, object]] = {
    "primitives, opset 11": {"target": "primitives", "opset": 11},
    "primitives, opset 13": {"target": "primitives", "opset": 13},
    "primitives, opset 16": {"target": "primitives", "opset": 16},
    "primitives, opset 20": {"target": "primitives", "opset": 20},
    "primitives, functions": {"target": "primitives", "functions": True},
    "ai.onnx": {"target": "ai.onnx"},
    "ai.onnx-2d": {"target": "ai.onnx-2d"},
    "com.microsoft": {"target": "com.microsoft"},
}
for _runtime in RUNTIME_FORMS:
    LOWERED[f"primitives for {_runtime}"] = {"target": "primitives", "for_runtime": _runtime}
#: The lowerings to basic operators or to 4-D GridSamples.
REWRITTEN = [name for name in LOWERED if "primitives" in name or "2d" in name]

#: The targets whose sampling nodes run on kernels of onnxruntime.
NATIVE = ("ai.onnx", "ai.onnx-2d", "com.microsoft")


#: Parts of the names of lowerings that do not support lengths that are 0 at run time.
NEEDS_ELEMENTS = ("iree", "tvm")


def run_lowered(model: onnx.ModelProto, lowering: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Lower the model, run it in plain onnxruntime, and return its first output."""
    patched = ogs.patch_model(model, **LOWERED[lowering])  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(
        patched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def raises_and_names_the_node(
    lowering: str, pattern: str = "warp"
) -> AbstractContextManager[object]:
    """Expect an exception that names the node, or any exception if nodes are function calls.

    A function has no name of a single node. onnxruntime raises exceptions of its own types.
    """
    is_shared = LOWERED[lowering].get("functions", False)
    return pytest.raises(Exception, match=None if is_shared else pattern)


with_every_opener = pytest.mark.parametrize(
    "open_model",
    [
        *sorted(OPENERS - {open_library}, key=lambda opener: opener.__name__),
        pytest.param(open_library, marks=() if LIBRARY else needs_linker),
    ],
)


def skip_without_python_ops(open_model: Open) -> None:
    if not HAS_PYTHON_OPS and "compiled" not in open_model.__name__:
        pytest.skip(NO_PYTHON_OPS)


# GridSample and AffineGrid

ALL_WRONG = WRONG | ONLY_OPS


@with_every_opener
@pytest.mark.parametrize("wrong", ALL_WRONG.values(), ids=ALL_WRONG)
def test_ops_of_wrong_inputs_have_the_error_of_the_function(wrong: Wrong, open_model: Open) -> None:
    """A file of Python ops has only the node's name. Of onnxruntime's errors, only the text."""
    skip_without_python_ops(open_model)
    session = open_model(wrong.model())
    expected = wrong.error()
    for _ in range(2):  # the session continues
        with pytest.raises(Exception, match="warp") as raised:
            session.run(None, wrong.feeds())
        if open_model is not open_patched_file:
            assert str(expected) in str(raised.value)
        if isinstance(raised.value, ogs.GridSampleError):
            assert raised.value.args == expected.args


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_lowered_model_of_wrong_inputs_raises_and_names_the_node(wrong: Wrong, name: str) -> None:
    if wrong.has_empty and any(runtime in name for runtime in NEEDS_ELEMENTS):
        pytest.skip("this form does not support lengths that are 0 at run time")
    ends_process = faults.OUTPUT_CRASHES and name in NATIVE
    if ends_process and (wrong.has_empty or wrong.operator == "AffineGrid"):
        pytest.skip("kernels of this onnxruntime end the process for such inputs")
    with raises_and_names_the_node(name):
        run_lowered(wrong.model(), name, wrong.feeds())


@pytest.mark.parametrize("name", ["primitives, opset 20", "primitives, functions"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_lowered_model_of_wrong_inputs_in_a_session_raises_the_error_of_a_check_or_op(
    wrong: Wrong, name: str
) -> None:
    patched = ogs.patch_model(wrong.model(), **LOWERED[name])  # type: ignore[arg-type]
    session = ogs.InferenceSession(patched, quiet_options())
    error = refusal(session.run, None, wrong.feeds())
    assert error.where.startswith(wrong.operator)
    assert error.argument in wrong.argument_names()


@pytest.mark.parametrize("name", REWRITTEN)
def test_lowered_affine_grid_of_negative_channels_raises(name: str) -> None:
    with pytest.raises(Exception, match="size contains a negative length"):
        run_lowered(NEGATIVE_CHANNELS.model(), name, NEGATIVE_CHANNELS.feeds())


@pytest.mark.parametrize("name", REWRITTEN)
@pytest.mark.parametrize("batches", [0, 1, 3])
@pytest.mark.parametrize("declared", [OPEN, OPEN_1D, OPEN_3D], ids=["2-D", "1-D", "3-D"])
def test_lowered_model_of_any_batches_agrees_with_the_function(
    declared: dict[str, str], batches: int, name: str
) -> None:
    is_excluded = any(runtime in name for runtime in (*NEEDS_ELEMENTS, "onnx2torch"))
    if batches == 0 and (is_excluded or name.endswith(("opset 11", "opset 13"))):
        pytest.skip("this form does not support lengths that are 0 at run time")
    r = len(declared["X"].split(",")) - 2
    rng = np.random.default_rng(batches)
    X = rng.standard_normal((batches, 2, *(5, 6, 4)[:r]), "float32")
    grid = rng.uniform(-1, 1, (batches, *(3, 2, 4)[:r], r)).astype("float32")
    model = _samples(declared, X.shape, grid.shape).model()
    Y = run_lowered(model, name, {"X": X, "G": grid})
    np.testing.assert_allclose(Y, ogs.grid_sample(X, grid), rtol=0, atol=1e-5)


# Deformable attention

#: Shapes that fit: B = 2, levels of 2×3 and 1×2 pixels, Q = 5, H = 4, D = 3, P = 6.
ATTENTION_SHAPES = {
    "value": (2, 8, 4, 3),
    "sampling_locations": (2, 5, 4, 2, 6, 2),
    "attention_weights": (2, 5, 4, 2, 6),
}
LEVELS = ((2, 3), (1, 2))


@dataclass(frozen=True)
class WrongAttention:
    """Inputs that are wrong for deformable attention.

    Attributes:
        shapes: the shapes that differ from ``ATTENTION_SHAPES``.
        levels: the lengths of each level.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    levels: tuple[tuple[int, ...], ...] = LEVELS

    def arrays(self) -> dict[str, np.ndarray]:
        shapes = ATTENTION_SHAPES | self.shapes
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def feeds(self, *, are_levels_fed: bool) -> dict[str, np.ndarray]:
        if not are_levels_fed:
            return self.arrays()
        return self.arrays() | {"levels": np.array(self.levels), "starts": self.starts()}

    def starts(self) -> np.ndarray:
        areas = np.prod(self.levels, axis=1, dtype=np.int64)
        return np.cumsum(areas) - areas

    def model(self, *, are_levels_fed: bool) -> onnx.ModelProto:
        """Return a model of one node as in MMCV. Only ranks are declared, where they fit."""
        inputs = []
        for name, shape in ATTENTION_SHAPES.items():
            has_rank = len(self.shapes.get(name, shape)) == len(shape)
            dims = ", ".join(f"{name}{axis}" for axis in range(len(shape))) if has_rank else ""
            inputs.append(f"float[{dims}] {name}")
        if are_levels_fed:
            # A lowered model needs the number of levels.
            inputs += ["int64[2, 2] levels", "int64[m] starts"]
        operands = "value, levels, starts, sampling_locations, attention_weights"
        node = f"mmcv.MMCVMultiScaleDeformableAttention ({operands})"
        model = parsed(f"g ({', '.join(inputs)}) => (float[] Y) {{ Y = {node} }}", opset=17)
        model.graph.node[0].name = "warp"
        if not are_levels_fed:
            levels = onnx.numpy_helper.from_array(np.array(self.levels, np.int64), "levels")
            model.graph.initializer.extend(
                [levels, onnx.numpy_helper.from_array(self.starts(), "starts")]
            )
        return model

    def call(self) -> np.ndarray:
        value, locations, weights = self.arrays().values()
        return ogs.deformable_attention(value, np.array(self.levels), locations, weights)


def _attention(**shapes: tuple[int, ...]) -> WrongAttention:
    return WrongAttention(shapes)


WRONG_ATTENTION = {
    "value of three axes": _attention(value=(2, 8, 12)),
    "value of five axes": _attention(value=(2, 8, 4, 3, 1)),
    "fewer batches of value": _attention(value=(1, 8, 4, 3)),
    "more batches of value": _attention(value=(4, 8, 4, 3)),
    "no batch of value": _attention(value=(0, 8, 4, 3)),
    "fewer pixels": _attention(value=(2, 7, 4, 3)),
    "more pixels": _attention(value=(2, 9, 4, 3)),
    "fewer heads of value": _attention(value=(2, 8, 2, 6)),
    "one head of value": _attention(value=(2, 8, 1, 12)),
    "locations of five axes": _attention(sampling_locations=(2, 5, 4, 12, 2)),
    "one batch of locations": _attention(sampling_locations=(1, 5, 4, 2, 6, 2)),
    "one query of locations": _attention(sampling_locations=(2, 1, 4, 2, 6, 2)),
    "one head of locations": _attention(sampling_locations=(2, 5, 1, 2, 6, 2)),
    "heads and queries of locations exchanged": _attention(sampling_locations=(2, 4, 5, 2, 6, 2)),
    "levels and points of locations exchanged": _attention(sampling_locations=(2, 5, 4, 6, 2, 2)),
    "more levels of locations": _attention(
        sampling_locations=(2, 5, 4, 3, 4, 2), attention_weights=(2, 5, 4, 3, 4)
    ),
    "three coordinates": _attention(sampling_locations=(2, 5, 4, 2, 6, 3)),
    "one coordinate": _attention(sampling_locations=(2, 5, 4, 2, 6, 1)),
    "weights of four axes": _attention(attention_weights=(2, 5, 4, 12)),
    "one batch of weights": _attention(attention_weights=(1, 5, 4, 2, 6)),
    "one query of weights": _attention(attention_weights=(2, 1, 4, 2, 6)),
    "one head of weights": _attention(attention_weights=(2, 5, 1, 2, 6)),
    "one point of weights": _attention(attention_weights=(2, 5, 4, 2, 1)),
    "levels and points of weights exchanged": _attention(attention_weights=(2, 5, 4, 6, 2)),
    "other pixels in all levels": WrongAttention(levels=((2, 3), (2, 2))),
    "a negative length": WrongAttention(levels=((-2, -3), (1, 2))),
    "one level": WrongAttention(levels=((2, 4),)),
    "three levels": WrongAttention(levels=((2, 2), (1, 2), (1, 2))),
    "levels of three axes": WrongAttention(levels=((2, 3, 1), (1, 2, 1))),
    "locations of seven axes": _attention(sampling_locations=(2, 5, 4, 2, 6, 2, 1)),
    "weights of one axis": _attention(attention_weights=(480,)),
}


@pytest.mark.parametrize("wrong", WRONG_ATTENTION.values(), ids=WRONG_ATTENTION)
def test_attention_function_of_wrong_inputs_raises(wrong: WrongAttention) -> None:
    with pytest.raises(ogs.GridSampleError):
        wrong.call()


def test_attention_function_of_the_right_shapes_answers() -> None:
    assert WrongAttention().call().shape == (2, 5, 12)


@pytest.mark.parametrize("are_levels_fed", [False, True], ids=["constant levels", "fed levels"])
@with_every_opener
@pytest.mark.parametrize("wrong", WRONG_ATTENTION.values(), ids=WRONG_ATTENTION)
def test_attention_ops_of_wrong_inputs_raise_and_name_the_node(
    wrong: WrongAttention, open_model: Open, are_levels_fed: bool
) -> None:
    skip_without_python_ops(open_model)
    feeds = wrong.feeds(are_levels_fed=are_levels_fed)
    # onnxruntime raises exceptions of its own types, and checks the declared shape of levels.
    with pytest.raises(Exception, match=r"warp|for input: levels"):
        open_model(wrong.model(are_levels_fed=are_levels_fed)).run(None, feeds)


#: In the default run, there is one target of sampling nodes and one of basic operators.
ATTENTION_LOWERED = [
    name
    if name in ("ai.onnx", "primitives, opset 13")
    else pytest.param(name, marks=pytest.mark.sweep)
    for name in LOWERED
]
constant_or_fed = pytest.mark.parametrize(
    "are_levels_fed", [False, True], ids=["constant levels", "fed levels"]
)


@constant_or_fed
@pytest.mark.parametrize("name", ATTENTION_LOWERED)
def test_lowered_attention_of_the_right_shapes_answers(name: str, are_levels_fed: bool) -> None:
    right = WrongAttention()
    feeds = right.feeds(are_levels_fed=are_levels_fed)
    Y = run_lowered(right.model(are_levels_fed=are_levels_fed), name, feeds)
    assert Y.shape == (2, 5, 12)


@constant_or_fed
@pytest.mark.parametrize("name", ATTENTION_LOWERED)
@pytest.mark.parametrize("wrong", WRONG_ATTENTION.values(), ids=WRONG_ATTENTION)
def test_lowered_attention_of_wrong_inputs_raises_and_names_the_node(
    wrong: WrongAttention, name: str, are_levels_fed: bool
) -> None:
    model = wrong.model(are_levels_fed=are_levels_fed)
    feeds = wrong.feeds(are_levels_fed=are_levels_fed)
    with raises_and_names_the_node(name, r"warp|for input: levels"):
        run_lowered(model, name, feeds)
