"""What must come of a case, and what does."""

import math
import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample import GridSampleError
from support import oracle
from support.compare import assert_matches, finfo, type_name
from support.models import tensor_type
from support.paths import run

from .inputs import FLOATS, MODES, PADDING, Case, array

#: Arrays of more bytes than this are claimed, never filled; of answers with more elements, some are checked.
FILLED, CHECKED = 1 << 28, 1 << 12
ANSWER, REFUSAL, EITHER, UNTRIED = "answer", "refusal", "either", "untried"
#: What an exception may name as the argument.
ARGUMENTS = {
    "GridSample": ("X", "grid", "Y", "mode", "padding_mode"),
    "AffineGrid": ("theta", "size", "grid"),
}
IN_MODELS = ("align_corners", "attribute", "inputs", "interpolation_mode", "outputs", "opset")


@dataclass(frozen=True)
class Outcome:
    """What came of a case, the kind of end, what was said, and what is wrong with that (nothing if empty)."""

    kind: str
    text: str
    wrong: str = ""


def must(case: Case) -> str:
    """Whether the specification gives ``case`` an answer, by its text alone."""
    if case.route != "function":
        first = 0 if case.is_coded else 16 if case.operator == "GridSample" else 20
        if case.slip or case.opset < first:
            return REFUSAL
        if case.align_corners not in (0, 1) or case.first.type.startswith("complex"):
            return REFUSAL
    if not (_grid_sample_is_valid if case.operator == "GridSample" else _affine_grid_is_valid)(
        case
    ):
        return REFUSAL
    if _bytes(case) > FILLED:
        return EITHER  # a machine may be large enough
    if case.route != "function":
        newer = (
            "bfloat16" in (case.first.type, case.second.type)
            and case.opset < 22
            and case.operator == "GridSample"
        )
        if newer or case.declared == "another":
            return EITHER
    return ANSWER


def _grid_sample_is_valid(case: Case) -> bool:
    X, grid = case.first.shape, case.second.shape
    modes = MODES[:3] if case.opset >= 20 else ("bilinear", "nearest", "bicubic")
    modes = MODES if case.route == "function" or case.is_coded else modes
    mode, padding_mode = case.attributes
    if mode not in modes or padding_mode not in PADDING or case.second.type not in FLOATS:
        return False
    if case.first.type == "str" and mode != "nearest":
        return False
    if len(X) < 3 or len(grid) != len(X) or grid[-1] != len(X) - 2 or grid[0] != X[0]:
        return False
    return padding_mode == "zeros" or 0 not in X[2:] or 0 in (*X[:2], *grid[1:-1])


def _affine_grid_is_valid(case: Case) -> bool:
    theta, size = case.first.shape, case.size
    if case.first.type not in FLOATS or (case.second.type != "int64" and case.route != "function"):
        return False
    if case.second.type == "float32" or len(theta) != 3 or theta[1:] not in ((2, 3), (3, 4)):
        return False
    return len(size) == theta[1] + 2 and size[0] == theta[0] and all(d >= 0 for d in size)


def _bytes(case: Case) -> int:
    """A bound for the bytes of the largest array that ``case`` is about."""
    Y = (
        (*case.first.shape[:2], *case.second.shape[1:-1])
        if case.operator == "GridSample"
        else (*case.size, 3)
    )
    # An array without elements claims bytes too: numpy multiplies its other axes.
    return 16 * max(
        math.prod(max(d, 1) for d in shape) for shape in (case.first.shape, case.second.shape, Y)
    )


def outcome(case: Case) -> Outcome:
    halves = {"float16", "bfloat16"}.intersection([case.first.type, case.second.type])
    if halves and case.route != "function" and _bytes(case) > FILLED:
        # Nobody asks for the room of an op's copy of what the model's own Casts make: where there is none the process
        # ends, as with any Python op (README: what it does not promise).
        return Outcome(UNTRIED, "too large for the Casts")
    rng = np.random.default_rng(case.seed)
    try:
        first = array(case.first, rng, coordinates=case.operator == "AffineGrid")
        if case.operator == "GridSample":
            second = array(case.second, rng, coordinates=True)
        else:
            second = np.array(case.size, np.int64).astype(case.second.type)
    except (
        ValueError,
        MemoryError,
        OverflowError,
    ) as error:  # numpy's own limits: there is no such array
        return Outcome(REFUSAL, f"no such feed: {error}")
    expected = must(case)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", module="ort_gridsample")
            Y = _run(case, first, second)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if expected == ANSWER:
            return Outcome(REFUSAL, text, "refused what the specification allows")
        return Outcome(
            REFUSAL, text, "" if _says_where_and_what(case, error) else "does not say where or what"
        )
    if expected == REFUSAL:
        return Outcome(
            ANSWER, f"{Y.dtype} {Y.shape}", "answered what the specification does not allow"
        )
    try:
        _check(case, first, second, Y)
    except AssertionError as error:
        return Outcome(ANSWER, f"{Y.dtype} {Y.shape}", f"wrong answer: {error}")
    return Outcome(ANSWER, f"{Y.dtype} {Y.shape}")


def _run(case: Case, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if case.route == "function" and case.operator == "AffineGrid":
        return ogs.affine_grid(first, second, bool(case.align_corners))
    if case.route == "function":
        return ogs.grid_sample(
            first, second, case.mode, case.padding_mode, bool(case.align_corners)
        )  # type: ignore[arg-type]
    model, options = _model(case), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if case.route == "session":
        session = ogs.InferenceSession(model, options, ["CPUExecutionProvider"], nodes="all")
    else:
        target = (
            "compiled"
            if ogs.get_ops() == "compiled" and case.first.type != "str"
            else "ort_gridsample"
        )
        patched = ogs.patch_model(model, target=target).SerializeToString()
        # Where there is no room for the op's copy of a feed, a plain session ends the process, as any Python op's does:
        # only this package's asks before.
        opener = onnxruntime if _bytes(case) <= FILLED else ogs
        session = opener.InferenceSession(patched, ogs.register(options), ["CPUExecutionProvider"])
    second = np.ascontiguousarray(np.moveaxis(second, -1, 1)) if _is_planar(case) else second
    return run(
        session, first.dtype, *([first] if case.slip == "no second input" else [first, second])
    )[0]


def _is_planar(case: Case) -> bool:
    """Whether the grid comes in planes, and a session takes in the nodes that move them."""
    is_fused = (
        case.route == "session"
        and case.operator == "GridSample"
        and not case.slip
        and case.seed % 2
    )
    return (
        bool(is_fused) and case.second.type in ("float32", "float64") and len(case.second.shape) > 2
    )


def _model(case: Case) -> onnx.ModelProto:
    inputs, nodes, names, constants = [], [], [], []
    second = case.second
    if _is_planar(case):
        second = replace(second, shape=(second.shape[0], second.shape[-1], *second.shape[1:-1]))
    for name, tensor in (("first", case.first), ("second", second)):
        fed = "float32" if tensor.type == "bfloat16" else tensor.type
        declared = {
            **{
                "exact": list(tensor.shape),
                "names": [f"{name}_{i}" for i in range(len(tensor.shape))],
            },
            **{"unknown": None, "another": [d + 1 for d in tensor.shape]},
        }[case.declared]
        if tensor is not case.first and tensor is not case.second and declared is not None:
            declared[1] = tensor.shape[1]  # or nothing is taken in
        inputs.append(helper.make_tensor_value_info(name, tensor_type(fed), declared))
        names.append(name)
        if fed != tensor.type:
            names[-1] = f"{name} as {tensor.type}"
            nodes.append(helper.make_node("Cast", [name], names[-1:], to=TensorProto.BFLOAT16))
    if _is_planar(case):  # and by arithmetic that leaves every number as it is
        each = (1, *second.shape[1:]) if case.declared == "exact" else ()
        for op_type, number, shape in (("Mul", 1.0, ()), ("Add", -0.0, each)):
            constants.append(numpy_helper.from_array(np.full(shape, number, second.type), op_type))
            nodes.append(helper.make_node(op_type, [names[-1], op_type], [f"second {op_type}"]))
            names[-1] = f"second {op_type}"
        nodes.append(
            helper.make_node(
                "Transpose", names[-1:], ["grid"], perm=[0, *range(2, len(second.shape)), 1]
            )
        )
        names[-1] = "grid"
    half = case.first.type == "bfloat16"
    names = (
        names[:1]
        if case.slip == "no second input"
        else names + ["first"] * (case.slip == "third input")
    )
    attributes = {
        "align_corners": case.align_corners,
        "mode": case.mode,
        "padding_mode": case.padding_mode,
    }
    node = helper.make_node(
        case.operator, names, _outputs(case), case.name, **attributes
    )  # without those of None
    if case.slip == "attribute":
        node.attribute.append(helper.make_attribute("antialias", 1))
    elif case.slip == "kind of attribute":
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("align_corners", [1.0]))
    nodes.append(node)
    if half:
        nodes.append(helper.make_node("Cast", ["half"], ["Y"], to=TensorProto.FLOAT))
    Y = helper.make_tensor_value_info(
        "Y", tensor_type("float32" if half else case.first.type), None
    )
    graph = helper.make_graph(
        nodes, "fuzz", inputs[:1] if case.slip == "no second input" else inputs, [Y], constants
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9
    )


def _outputs(case: Case) -> list[str]:
    return ["half" if case.first.type == "bfloat16" else "Y"] + ["Z"] * (
        case.slip == "second output"
    )


def _says_where_and_what(case: Case, error: Exception) -> bool:
    label = case.name or f"({', '.join(_outputs(case))})"
    node = f"{case.operator} node {label!r}"
    if isinstance(error, GridSampleError):
        if case.route == "function":
            return (
                error.where in ("grid_sample", "affine_grid")
                and error.argument in ARGUMENTS[case.operator]
            )
        named = error.where == node and "\n" not in str(error)
        return named and error.argument in ARGUMENTS[case.operator] + IN_MODELS
    if isinstance(error, MemoryError):
        return _bytes(case) > FILLED
    if case.route == "function":
        return False
    if case.route == "patched" and any(
        words in str(error) for words in (f"rejected the input of {node}", f"{node}: ")
    ):
        return True
    # onnxruntime itself compares a feed with its declaration.
    elsewhere = case.declared == "another" or _bytes(case) > FILLED
    return elsewhere and bool(
        re.search("invalid dimensions|[Ii]nvalid rank|first|second|allocate", str(error))
    )


def _check(case: Case, first: np.ndarray, second: np.ndarray, Y: np.ndarray) -> None:
    affine = case.operator == "AffineGrid"
    shape = (
        (case.size[0], *case.size[2:], len(case.size) - 2)
        if affine
        else (*first.shape[:2], *second.shape[1:-1])
    )
    assert Y.shape == shape, f"shape {Y.shape} instead of {shape}"
    assert type_name(Y.dtype) == type_name(first.dtype), f"type {Y.dtype}"
    if Y.size == 0 or _bytes(case) > FILLED:
        return
    if affine:
        _check_affine(case, first, Y)
        return
    if Y.size > CHECKED:  # images, channels and positions are independent, and the oracle is slow
        few = (slice(4),) * Y.ndim
        first, second, Y = first[few[:2]], second[few[:-1]], Y[few]
    mode, padding_mode = map(str, case.attributes)
    mode = mode.removeprefix("bi")
    with np.errstate(all="ignore"):
        expected = oracle.grid_sample(first, second, mode, padding_mode, bool(case.align_corners))
    if mode != "nearest" and Y.dtype.kind not in "biuO":
        # An infinity times a weight of 0 is no number, or nothing at all where the tap is left out.
        read = np.isfinite(expected.values)
        Y = np.where(read, Y, Y.dtype.type(0))
        expected = replace(
            expected,
            values=np.where(read, expected.values, 0),
            scale=np.where(read, expected.scale, 0),
        )
    # With any padding the distance to a pixel is rounded as the coordinate is, like a reflection.
    assert_matches(Y, expected, second.dtype, mode, "reflection")


def _check_affine(case: Case, theta: np.ndarray, grid: np.ndarray) -> None:
    if not np.isfinite(theta.astype(np.float64)).all():
        return
    expected = oracle.affine_grid(theta, case.size, bool(case.align_corners))
    compute = np.float64 if theta.dtype == np.float64 else np.float32
    scale = (
        abs(theta.astype(np.float64)).sum(-1).reshape(len(theta), *(1,) * (len(case.size) - 2), -1)
    )
    error = 4 * float(np.finfo(compute).eps) * scale
    if finfo(theta.dtype).bits < 32:
        error = error + float(finfo(theta.dtype).eps) / 2 * abs(expected)
        expected = np.where(
            abs(expected) > float(finfo(theta.dtype).max), grid.astype(np.float64), expected
        )
    off = ~(abs(grid.astype(np.float64) - expected) <= error) & ~(
        abs(expected) > float(np.finfo(compute).max)
    )
    assert not off.any() or np.isinf(grid.astype(np.float64)[off]).all(), (
        f"{grid[off]} instead of {expected[off]}"
    )
