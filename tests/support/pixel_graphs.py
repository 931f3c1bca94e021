"""Models that compute a grid from pixel coordinates, built node by node."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.cases import Attributes

Shape = tuple[int, ...]

#: The operators of arithmetic, which are fused.
OPERATIONS = ("Add", "Sub", "Mul", "Div")
#: With this padding no coordinate is outside.
NEVER_OUTSIDE = Attributes("linear", "reflection")


@dataclass
class GraphBuilder:
    """A graph that is built node by node and ends in a GridSample, with random inputs.

    Attributes:
        type: the floating-point type of the inputs and constants, a name of NumPy.
        opset: the opset of the model.
        nodes: the nodes before the GridSample.
        constants: the initializers.
        feeds: the inputs of the model.
    """

    type: str = "float32"
    opset: int = 20
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def add_input(self, name: str, *shape: int) -> str:
        """Add a random input, and return its name."""
        rng = np.random.default_rng(len(self.feeds))
        self.feeds[name] = rng.uniform(-3, 12, shape).astype(self.type)
        return name

    def add_constant(self, value: object, dtype: str = "") -> str:
        """Add an initializer, by default of the graph's floating-point type; return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype or self.type), name))
        return name

    def add_multi(
        self, op_type: str, *inputs: object, outputs: int, **attributes: object
    ) -> list[str]:
        """Add a node with several outputs, and return their names.

        An input that is not a name becomes a constant: of the graph's floating-point type if the
        operator is arithmetic, else of int64.
        """
        name = f"{op_type}{len(self.nodes)}"
        constant_type = "" if op_type in OPERATIONS else "int64"
        input_names = [
            value if isinstance(value, str) else self.add_constant(value, constant_type)
            for value in inputs
        ]
        output_names = [f"{name}_{i}" for i in range(outputs)]
        node = helper.make_node(op_type, input_names, output_names, name, **attributes)
        self.nodes.append(node)
        return output_names

    def add(self, op_type: str, *inputs: object, **attributes: object) -> str:
        """Add a node with one output, and return its name. Inputs are those of add_multi."""
        return self.add_multi(op_type, *inputs, outputs=1, **attributes)[0]

    def apply(self, value: str, *steps: tuple[str, object]) -> str:
        """Apply binary operators one after the other, each to the value and an operand."""
        for op_type, operand in steps:
            value = self.add(op_type, value, operand)
        return value

    def model(
        self,
        grid: str,
        X_shape: Shape,
        attributes: Attributes = NEVER_OUTSIDE,
        unknown_lengths: bool = False,
    ) -> onnx.ModelProto:
        """Return the model that samples X at ``grid``, and add X to the feeds.

        Args:
            grid: the name of the grid.
            X_shape: the shape of X.
            attributes: those of the GridSample.
            unknown_lengths: whether the inputs have no lengths but those that can be a number of
                coordinates.
        """
        max_coordinates = max(len(X_shape) - 2, 1)
        elem_type = TensorProto.DOUBLE if self.type == "float64" else TensorProto.FLOAT
        self.feeds.pop("X", None)
        known_X = [None] * len(X_shape) if unknown_lengths else X_shape
        inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, known_X)]
        for name, array in self.feeds.items():
            dims = [
                None if unknown_lengths and length > max_coordinates else length
                for length in array.shape
            ]
            inputs.append(helper.make_tensor_value_info(name, elem_type, dims))
        self.feeds["X"] = np.random.default_rng(1).normal(size=X_shape).astype(np.float32)
        sample = helper.make_node("GridSample", ["X", grid], ["Y"], "sample", **asdict(attributes))
        Y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * len(X_shape))
        graph = helper.make_graph([*self.nodes, sample], "pixels", inputs, [Y], self.constants)
        opset_import = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset_import], ir_version=9)


#: Adds nodes to a graph, and returns the name of the grid.
GridFunction = Callable[[GraphBuilder], str]


def build_graph(
    inputs: Mapping[str, Shape], make_grid: GridFunction
) -> tuple[GraphBuilder, onnx.ModelProto]:
    """Build a graph whose inputs are ``coords`` and others, and its model."""
    graph = GraphBuilder()
    shapes = {"coords": (2, 3, 4, 2), **inputs}
    for name, shape in shapes.items():
        graph.add_input(name, *shape)
    batch, *others = shapes["coords"]
    X_shape = (batch, 1, *[5 for _ in others[1:]])
    return graph, graph.model(make_grid(graph), X_shape)
