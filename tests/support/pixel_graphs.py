"""Models that compute a grid from pixel coordinates, built node by node."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gridsample.detection.programs import OPERATIONS
from support.cases import Attributes

Shape = tuple[int, ...]


#: With this padding no coordinate is outside.
INSIDE = Attributes("linear", "reflection")


@dataclass
class Graph:
    """A model that is written node by node, ends in a GridSample, and is fed at random."""

    type: str = "float32"
    opset: int = 20
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def fed(self, name: str, *shape: int) -> str:
        self.feeds[name] = (
            np.random.default_rng(len(self.feeds)).uniform(-3, 12, shape).astype(self.type)
        )
        return name

    def constant(self, value: object, dtype: str = "") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype or self.type), name))
        return name

    def add_all(
        self, op_type: str, *inputs: object, outputs: int = 1, **attributes: object
    ) -> list[str]:
        """The outputs of a new node; inputs that are no names are constants: integers, but in arithmetic."""
        number, dtype = len(self.nodes), "" if op_type in OPERATIONS else "int64"
        names = [each if isinstance(each, str) else self.constant(each, dtype) for each in inputs]
        made = [f"{op_type}{number}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, names, made, f"{op_type}{number}", **attributes)
        )
        return made

    def add(self, op_type: str, *inputs: object, **attributes: object) -> str:
        return self.add_all(op_type, *inputs, **attributes)[0]

    def apply(self, value: str, *steps: tuple[str, object]) -> str:
        """The operators one after the other, each with the value so far and another."""
        for op_type, operand in steps:
            value = self.add(op_type, value, operand)
        return value

    def sampled(
        self, grid: str, X: Shape, attributes: Attributes = INSIDE, loose: bool = False
    ) -> onnx.ModelProto:
        """The model; ``loose``: whose inputs' lengths are unknown where they are no number of coordinates."""
        elem = TensorProto.DOUBLE if self.type == "float64" else TensorProto.FLOAT
        self.feeds.pop("X", None)
        inputs = [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, [None] * len(X) if loose else X)
        ]
        for name, fed in self.feeds.items():
            said = [
                None if loose and length > max(len(X) - 2, 1) else length for length in fed.shape
            ]
            inputs.append(helper.make_tensor_value_info(name, elem, said))
        self.feeds["X"] = np.random.default_rng(1).normal(size=X).astype(np.float32)
        nodes = [
            *self.nodes,
            helper.make_node("GridSample", ["X", grid], ["Y"], "sample", **asdict(attributes)),
        ]
        Y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * len(X))
        graph = helper.make_graph(nodes, "pixels", inputs, [Y], self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9
        )


Build = Callable[[Graph], str]


def made(fed: dict[str, Shape], build: Build) -> tuple[Graph, onnx.ModelProto]:
    graph, shapes = Graph(), {"coords": (2, 3, 4, 2), **fed}
    for name, shape in shapes.items():
        graph.fed(name, *shape)
    return graph, graph.sampled(
        build(graph), (shapes["coords"][0], 1, *[5] * (len(shapes["coords"]) - 2))
    )
