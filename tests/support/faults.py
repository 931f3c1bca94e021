"""The faults and limits of the installed onnxruntime and onnx that the tests allow for.

Each fault was seen in the release before the one that is named.
"""

from types import ModuleType

import onnx
import onnxruntime
import pytest
from packaging.version import Version


def before(release: str, package: ModuleType = onnxruntime) -> bool:
    """Whether the installed ``package`` is older than ``release``."""
    return Version(package.__version__) < Version(release)


#: The newest opset of the operators that onnxruntime reads.
OPSET = 20 if before("1.21") else 22
#: The newest opset and IR version of the tests' models that onnxruntime reads.
MAX_OPSET = 20 if before("1.21") else 99
MAX_IR_VERSION = 9 if before("1.18") else 99

#: The process ends if there is no memory for a NumPy output.
OUTPUT_CRASHES = before("1.19")
#: The shape after a Reshape to a computed shape is not inferred.
FEW_SHAPES = before("1.20")
#: The external data of a model that is given as bytes is not found.
NO_EXTERNAL_FOLDER = before("1.21")
#: The error for an invalid model may have no message.
NO_WORDS = before("1.24")
#: onnxruntime's AffineGrid computes float64 in float32.
SINGLE_AFFINE_GRID = before("1.25")
#: A transposed MatMul in float64 is fused into an op that has no kernel for it.
FUSED_WITHOUT_KERNEL = before("1.26")
#: A function that calls itself ends the process.
RECURSION_CRASHES = before("1.27")
#: The product of a value and an empty constant is replaced by the value.
EMPTY_CONSTANTS = before("1.27")
#: The time to create a session doubles with each If in the body of an If.
SLOW_NESTED_IFS = before("1.29")
#: onnx's evaluator computes with bfloat16 as records of bits, and truncates to them.
NO_BFLOAT16_ARRAYS = before("1.19", onnx)
#: onnx's version converter cannot lower the opset of some operators, such as If, Loop and Scan.
NO_ADAPTERS = before("1.21", onnx)
#: In onnx's evaluator, the body of a Scan cannot read values of the outer graph.
SCAN_SEES_NOTHING = before("1.22", onnx)

needs_named_nodes = pytest.mark.skipif(
    before("1.18", onnx), reason="this onnx's parser reads no names of nodes"
)
needs_adapters = pytest.mark.skipif(
    NO_ADAPTERS, reason="this onnx's version converter cannot lower the opset of these operators"
)


def skip_unread(model: onnx.ModelProto) -> None:
    """Skip the test if onnxruntime does not read the opset or the IR version of ``model``."""
    opset = max((entry.version for entry in model.opset_import if not entry.domain), default=0)
    if opset > MAX_OPSET:
        pytest.skip(f"this onnxruntime does not read opset {opset}")
    if model.ir_version > MAX_IR_VERSION:
        pytest.skip(f"this onnxruntime does not read models of IR version {model.ir_version}")
