"""What the specification requires of a case, and the outcome of a run."""

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample import GridSampleError
from support import oracle
from support.compare import assert_matches, finfo, type_name
from support.models import tensor_type
from support.paths import HAS_PYTHON_OPS, NO_PYTHON_OPS, run

from .inputs import FLOATS, MODES, PADDING, Case, Tensor, array

#: Larger arrays, in bytes, are only claimed and never filled.
FILLED = 1 << 28
#: Of an output with more elements than this, some are checked.
CHECKED = 1 << 12
ANSWER = "answer"
REFUSAL = "refusal"
EITHER = "either"
UNTRIED = "untried"
#: The arguments that an error may name.
ARGUMENTS = {
    "GridSample": ("X", "grid", "Y", "mode", "padding_mode"),
    "AffineGrid": ("theta", "size", "grid"),
}
IN_MODELS = (
    "align_corners",
    "attribute",
    "interpolation_mode",
    "opset",
    "the number of inputs",
    "the number of outputs",
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        kind: ANSWER, REFUSAL, UNTRIED or "abort".
        text: the type and shape of the output, or the error.
        wrong: what is wrong with the outcome, or "".
    """

    kind: str
    text: str
    wrong: str = ""


def must(case: Case) -> str:
    """Return what the specification requires of ``case``: ANSWER, REFUSAL or EITHER."""
    is_grid_sample = case.operator == "GridSample"
    if case.route != "function":
        first_opset = 16 if is_grid_sample else 20
        if case.is_coded:
            first_opset = 0
        if case.slip or case.opset < first_opset:
            return REFUSAL
        if case.align_corners not in (0, 1) or case.first.type.startswith("complex"):
            return REFUSAL
    is_valid = _grid_sample_is_valid(case) if is_grid_sample else _affine_grid_is_valid(case)
    if not is_valid:
        return REFUSAL
    if _bytes(case) > FILLED:
        return EITHER  # a machine may have the memory
    if case.route != "function":
        has_bfloat16 = "bfloat16" in (case.first.type, case.second.type)
        is_newer_type = has_bfloat16 and is_grid_sample and case.opset < 22
        if is_newer_type or case.declared == "another":
            return EITHER
    return ANSWER


def _grid_sample_is_valid(case: Case) -> bool:
    X = case.first.shape
    grid = case.second.shape
    modes = (
        ("linear", "nearest", "cubic") if case.opset >= 20 else ("bilinear", "nearest", "bicubic")
    )
    if case.route == "function" or case.is_coded:
        modes = MODES
    mode, padding_mode = case.attributes
    if mode not in modes or padding_mode not in PADDING or case.second.type not in FLOATS:
        return False
    if case.first.type == "str" and mode != "nearest":
        return False
    if len(X) < 3 or len(grid) != len(X) or grid[-1] != len(X) - 2 or grid[0] != X[0]:
        return False
    has_pixels = 0 not in X[2:]
    is_empty = 0 in (*X[:2], *grid[1:-1])
    return padding_mode == "zeros" or has_pixels or is_empty


def _affine_grid_is_valid(case: Case) -> bool:
    theta = case.first.shape
    size = case.size
    if case.first.type not in FLOATS or (case.second.type != "int64" and case.route != "function"):
        return False
    if case.second.type == "float32" or len(theta) != 3 or theta[1:] not in ((2, 3), (3, 4)):
        return False
    return len(size) == theta[1] + 2 and size[0] == theta[0] and all(d >= 0 for d in size)


def _bytes(case: Case) -> int:
    """Return a bound for the bytes of the largest array of ``case``."""
    Y: tuple[int, ...] = (*case.size, 3)
    if case.operator == "GridSample":
        Y = (*case.first.shape[:2], *case.second.shape[1:-1])
    # NumPy also multiplies the other lengths of an array without elements.
    sizes = [
        math.prod(max(length, 1) for length in shape)
        for shape in (case.first.shape, case.second.shape, Y)
    ]
    return 16 * max(sizes)


def outcome(case: Case) -> Outcome:
    """Run ``case``, and compare its output or error with the specification."""
    halves = {"float16", "bfloat16"}.intersection([case.first.type, case.second.type])
    if halves and case.route != "function" and _bytes(case) > FILLED:
        # Nothing checks the memory for an op's copy of the output of a model's own Cast. The
        # process ends if there is none (.github/docs/TESTS.md: What is not guaranteed).
        return Outcome(UNTRIED, "too large for the Casts")
    if case.first.type == "str" and case.route != "function" and not HAS_PYTHON_OPS:
        return Outcome(UNTRIED, NO_PYTHON_OPS)
    try:
        first, second = _arrays(case)
    except (ValueError, MemoryError, OverflowError) as error:
        # NumPy has no such array.
        return Outcome(REFUSAL, f"no such feed: {error}")
    expected = must(case)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", module="ort_gridsample")
            Y = _run(case, first, second)
    except Exception as error:
        return _refusal(case, error, expected)
    text = f"{Y.dtype} {Y.shape}"
    if expected == REFUSAL:
        return Outcome(ANSWER, text, "answered what the specification does not allow")
    try:
        _check(case, first, second, Y)
    except AssertionError as error:
        return Outcome(ANSWER, text, f"wrong answer: {error}")
    return Outcome(ANSWER, text)


def _arrays(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(case.seed)
    first = array(case.first, rng, coordinates=case.operator == "AffineGrid")
    if case.operator == "GridSample":
        return first, array(case.second, rng, coordinates=True)
    return first, np.array(case.size, np.int64).astype(case.second.type)


def _refusal(case: Case, error: Exception, expected: str) -> Outcome:
    wrong = ""
    if expected == ANSWER:
        wrong = "refused what the specification allows"
    elif not _names_node_and_argument(case, error):
        wrong = "does not name the node or the argument"
    return Outcome(REFUSAL, f"{type(error).__name__}: {error}", wrong)


def _run(case: Case, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if case.route == "function" and case.operator == "AffineGrid":
        return ogs.affine_grid(first, second, bool(case.align_corners))
    if case.route == "function":
        attributes = case.mode, case.padding_mode, bool(case.align_corners)
        return ogs.grid_sample(first, second, *attributes)  # type: ignore[arg-type]
    session = _session(case)
    if case.slip == "no second input":
        return run(session, first.dtype, first)[0]
    if _is_planar(case):
        second = np.ascontiguousarray(np.moveaxis(second, -1, 1))
    return run(session, first.dtype, first, second)[0]


def _session(case: Case) -> onnxruntime.InferenceSession:
    model = _model(case)
    providers = ["CPUExecutionProvider"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    if case.route == "session":
        return ogs.InferenceSession(model, options, providers, nodes="all")
    is_compiled = ogs.get_ops() == "compiled" and case.first.type != "str"
    patched = ogs.patch_model(model, target="compiled" if is_compiled else "ort_gridsample")
    # Only this package's sessions check the memory for a Python op's copy of a feed. In a plain
    # session, the process ends if there is none.
    opener = onnxruntime if _bytes(case) <= FILLED else ogs
    return opener.InferenceSession(patched.SerializeToString(), ogs.register(options), providers)


def _is_planar(case: Case) -> bool:
    """Whether the coordinates are in axis 1 of the grid, and a session fuses the Transpose."""
    if case.route != "session" or case.operator != "GridSample" or case.slip:
        return False
    if case.second.type not in ("float32", "float64") or len(case.second.shape) <= 2:
        return False
    return case.seed % 2 == 1


def _model(case: Case) -> onnx.ModelProto:
    """Return the model of ``case``: Casts from and to bfloat16, steps of the grid, and the node."""
    builder = _ModelBuilder()
    first = builder.input("first", case.first, _declared(case, "first", case.first))
    if _is_planar(case):
        second = _add_planar_grid(builder, case)
    else:
        second = builder.input("second", case.second, _declared(case, "second", case.second))
    inputs = [first, second]
    if case.slip == "no second input":
        inputs = [first]
        del builder.inputs[1:]
    elif case.slip == "third input":
        inputs.append("first")
    builder.nodes.append(_node(case, inputs))

    Y_type = case.first.type
    if Y_type == "bfloat16":
        Y_type = "float32"
        builder.nodes.append(helper.make_node("Cast", ["half"], ["Y"], to=TensorProto.FLOAT))
    Y = helper.make_tensor_value_info("Y", tensor_type(Y_type), None)
    graph = helper.make_graph(builder.nodes, "fuzz", builder.inputs, [Y], builder.constants)
    opsets = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@dataclass
class _ModelBuilder:
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def input(self, name: str, tensor: Tensor, declared: Sequence[object] | None) -> str:
        """Add an input, and return its name, or that of its Cast to bfloat16."""
        if tensor.type != "bfloat16":
            elem_type = tensor_type(tensor.type)
            self.inputs.append(helper.make_tensor_value_info(name, elem_type, declared))
            return name
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
        cast = f"{name} as bfloat16"
        self.nodes.append(helper.make_node("Cast", [name], [cast], to=TensorProto.BFLOAT16))
        return cast


def _declared(case: Case, name: str, tensor: Tensor) -> list[object] | None:
    """Return the shape that the model declares for an input."""
    match case.declared:
        case "exact":
            return list(tensor.shape)
        case "names":
            return [f"{name}_{axis}" for axis in range(len(tensor.shape))]
        case "another":
            return [length + 1 for length in tensor.shape]
    return None


def _add_planar_grid(builder: _ModelBuilder, case: Case) -> str:
    """Add a grid with its coordinates in axis 1, and nodes that change no value.

    A session fuses these nodes: Mul, Add and Transpose.
    """
    n, *outputs, r = case.second.shape
    planar = replace(case.second, shape=(n, r, *outputs))
    declared = _declared(case, "second", planar)
    if declared is not None:
        declared[1] = r  # or the nodes are not fused
    name = builder.input("second", planar, declared)
    addend_shape = (1, *planar.shape[1:]) if case.declared == "exact" else ()
    for op_type, constant in (
        ("Mul", np.full((), 1.0, planar.type)),
        ("Add", np.full(addend_shape, -0.0, planar.type)),
    ):
        builder.constants.append(numpy_helper.from_array(constant, op_type))
        output = f"second {op_type}"
        builder.nodes.append(helper.make_node(op_type, [name, op_type], [output]))
        name = output
    perm = [0, *range(2, len(planar.shape)), 1]
    builder.nodes.append(helper.make_node("Transpose", [name], ["grid"], perm=perm))
    return "grid"


def _node(case: Case, inputs: list[str]) -> onnx.NodeProto:
    """Return the node of the operator. ``make_node`` leaves out attributes that are None."""
    node = helper.make_node(
        case.operator,
        inputs,
        _outputs(case),
        case.name,
        align_corners=case.align_corners,
        mode=case.mode,
        padding_mode=case.padding_mode,
    )
    if case.slip == "attribute":
        node.attribute.append(helper.make_attribute("antialias", 1))
    elif case.slip == "kind of attribute":
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("align_corners", [1.0]))
    return node


def _outputs(case: Case) -> list[str]:
    Y = "half" if case.first.type == "bfloat16" else "Y"
    return [Y, "Z"] if case.slip == "second output" else [Y]


def _names_node_and_argument(case: Case, error: Exception) -> bool:
    node = f"{case.operator} node {case.name!r}"
    if not case.name:
        node = f"{case.operator} node with output {', '.join(_outputs(case))!r}"
    arguments = ARGUMENTS[case.operator]
    if isinstance(error, GridSampleError):
        if case.route == "function":
            return error.where in ("grid_sample", "affine_grid") and error.argument in arguments
        is_one_line = "\n" not in str(error)
        is_named = error.where == node and error.argument in arguments + IN_MODELS
        return is_named and is_one_line
    if isinstance(error, MemoryError):
        return _bytes(case) > FILLED
    if case.route == "function":
        return False
    messages = (f"rejected the input of {node}", f"{node}: ")
    if case.route == "patched" and any(message in str(error) for message in messages):
        return True
    # onnxruntime compares a feed with the declared shape, and allocates outputs.
    is_onnxruntimes = case.declared == "another" or _bytes(case) > FILLED
    pattern = "invalid dimensions|[Ii]nvalid rank|first|second|allocate"
    return is_onnxruntimes and bool(re.search(pattern, str(error)))


def _check(case: Case, first: np.ndarray, second: np.ndarray, Y: np.ndarray) -> None:
    """Assert that ``Y`` has the right shape, type and, if it is not too large, values."""
    is_affine_grid = case.operator == "AffineGrid"
    shape: tuple[int, ...] = (*first.shape[:2], *second.shape[1:-1])
    if is_affine_grid:
        shape = (case.size[0], *case.size[2:], len(case.size) - 2)
    assert Y.shape == shape, f"shape {Y.shape} instead of {shape}"
    assert type_name(Y.dtype) == type_name(first.dtype), f"type {Y.dtype}"
    if Y.size == 0 or _bytes(case) > FILLED:
        return
    if is_affine_grid:
        _check_affine_grid(case, first, Y)
    else:
        _check_grid_sample(case, first, second, Y)


def _check_grid_sample(case: Case, X: np.ndarray, grid: np.ndarray, Y: np.ndarray) -> None:
    if Y.size > CHECKED:
        # Batches, channels and positions are independent, and the oracle is slow.
        few = (slice(4),) * Y.ndim
        X = X[few[:2]]
        grid = grid[few[:-1]]
        Y = Y[few]
    mode, padding_mode = map(str, case.attributes)
    mode = mode.removeprefix("bi")
    with np.errstate(all="ignore"):
        expected = oracle.grid_sample(X, grid, mode, padding_mode, bool(case.align_corners))
    if mode != "nearest" and Y.dtype.kind not in "biuO":
        # Infinity times the weight 0 is NaN, or nothing if the tap is left out.
        is_defined = np.isfinite(expected.values)
        Y = np.where(is_defined, Y, Y.dtype.type(0))
        expected = oracle.Expected(
            values=np.where(is_defined, expected.values, 0),
            scale=np.where(is_defined, expected.scale, 0),
        )
    # With any padding, the distance to a pixel is rounded like a reflected coordinate.
    assert_matches(Y, expected, grid.dtype, mode, "reflection")


def _check_affine_grid(case: Case, theta: np.ndarray, grid: np.ndarray) -> None:
    wide_theta = theta.astype(np.float64)
    if not np.isfinite(wide_theta).all():
        return
    values = grid.astype(np.float64)
    expected = oracle.affine_grid(theta, case.size, bool(case.align_corners))
    compute_type = np.float64 if theta.dtype == np.float64 else np.float32
    compute = np.finfo(compute_type)
    axes = len(case.size) - 2
    scale = abs(wide_theta).sum(-1).reshape(len(theta), *(1,) * axes, -1)
    error = 4 * float(compute.eps) * scale
    info = finfo(theta.dtype)
    if info.bits < 32:
        error = error + float(info.eps) / 2 * abs(expected)
        expected = np.where(abs(expected) > float(info.max), values, expected)
    # A sum that overflows the compute type may be infinite or NaN.
    overflows = abs(expected) > float(compute.max)
    is_wrong = ~(abs(values - expected) <= error) & ~overflows
    assert not is_wrong.any() or np.isinf(values[is_wrong]).all(), (
        f"{grid[is_wrong]} instead of {expected[is_wrong]}"
    )
