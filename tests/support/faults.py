"""What the tests allow for: faults of older onnxruntimes and onnx, each seen in the release before the one that is
named, and what these refuse for their age.
"""

from types import ModuleType

import onnx
import onnxruntime
import pytest
from packaging.version import Version


def before(release: str, of: ModuleType = onnxruntime) -> bool:
    """Whether the installed onnxruntime, or the package ``of``, is older than ``release``."""
    return Version(of.__version__) < Version(release)


#: The newest opset of the operators that is read.
OPSET = 20 if before("1.21") else 22
#: The newest opset and version of a model that is read, of those that the tests write.
MOST_OPSET = 20 if before("1.21") else 99
MOST_IR_VERSION = 9 if before("1.18") else 99

#: An output that finds no room in NumPy ends the process.
OUTPUT_CRASHES = before("1.19")
#: The shapes behind a Reshape to computed numbers are not inferred.
FEW_SHAPES = before("1.20")
#: External data of a model that comes as bytes is not found.
NO_EXTERNAL_FOLDER = before("1.21")
#: An error in a model may come without a word.
NO_WORDS = before("1.24")
#: The native AffineGrid computes float64 in float32.
SINGLE_AFFINE_GRID = before("1.25")
#: A transposed MatMul in float64 is fused into an op that has no kernel for it.
FUSED_WITHOUT_KERNEL = before("1.26")
#: A function that calls itself ends the process.
RECURSION_CRASHES = before("1.27")
#: A product with a constant of no elements is taken for its other factor.
EMPTY_CONSTANTS = before("1.27")
#: The time to make a session doubles with every If around an If.
SLOW_NESTED_IFS = before("1.29")
#: onnx's evaluator computes with bfloat16 as records of bits, and truncates to them.
NO_BFLOAT16_ARRAYS = before("1.19", onnx)
#: onnx's converter has no way down for some operators, among them If, Loop and Scan.
NO_ADAPTERS = before("1.21", onnx)
#: onnx's evaluator hides from the body of a Scan what is outside.
SCAN_SEES_NOTHING = before("1.22", onnx)

needs_named_nodes = pytest.mark.skipif(
    before("1.18", onnx), reason="onnx's parser reads no names of nodes yet"
)
needs_adapters = pytest.mark.skipif(
    NO_ADAPTERS, reason="onnx's converter has no way down for these yet"
)


def skip_unread(model: onnx.ModelProto) -> None:
    """Skip the test that asks for a session of ``model`` where onnxruntime does not read its opset or version yet."""
    opset = max((each.version for each in model.opset_import if not each.domain), default=0)
    if opset > MOST_OPSET:
        pytest.skip(f"onnxruntime reads no opset {opset} yet")
    if model.ir_version > MOST_IR_VERSION:
        pytest.skip(f"onnxruntime reads no models of IR version {model.ir_version} yet")
