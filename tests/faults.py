"""What the tests allow for: faults of older onnxruntimes and onnx, each seen in the release before the one that is
named, what these refuse for their age, and what there is none of without onnxruntime-extensions.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import onnx
import onnxruntime
from packaging.version import Version


def before(release: str, of: ModuleType = onnxruntime) -> bool:
    """Whether the installed onnxruntime, or the package ``of``, is older than ``release``."""
    return Version(of.__version__) < Version(release)


#: The newest opset of the operators that is read.
OPSET = 20 if before("1.21") else 22

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
#: onnx's evaluator hides from the body of a Scan what is outside.
SCAN_SEES_NOTHING = before("1.22", onnx)

#: What a test that fails may say, and why it is no failure.
ALLOWED: dict[str, str] = {}
if before("1.21"):
    ALLOWED["Current official support for domain ai.onnx is till opset"] = "onnxruntime reads no such opset yet"
    ALLOWED["Could not find an implementation for Equal(13)"] = "onnxruntime compares no int8 yet"
if FUSED_WITHOUT_KERNEL:
    ALLOWED["Failed to find kernel for com.microsoft.FusedMatMul"] = "onnxruntime fuses what it has no kernel for"
if before("1.18"):
    ALLOWED["Unsupported model IR version: 10, max supported IR version: 9"] = "onnxruntime reads no such models yet"
if before("1.21", onnx):
    ALLOWED["No Adapter From Version"] = "onnx's version converter has no way down for this operator yet"
if before("1.18", onnx):
    ALLOWED["Expected character = not found."] = "onnx's parser reads no names of nodes yet"
if importlib.util.find_spec("onnxruntime_extensions") is None:
    for said in ("ort_gridsample's ops need onnxruntime-extensions", "No module named 'onnxruntime_extensions'"):
        ALLOWED[said] = "there is no onnxruntime-extensions"


def allowed(text: str) -> str:
    """Why a test that failed with ``text`` is no failure here; empty where it is one."""
    return next((reason for said, reason in ALLOWED.items() if said in text), "")
