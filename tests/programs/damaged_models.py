"""Open damaged models; print as JSON how often calls returned, or raised which errors.

Bits of serialized models are flipped, or their ends are cut off. The process may address 8 GiB.
Arguments: a seed, and the number of models.
"""

import json
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnxruntime
from onnx import parser

import ort_gridsample as ogs
from support import faults
from support.graphs import MODELS


def is_allowed(error: Exception, function: Callable[[Path], object]) -> bool:
    """Whether a damaged model may raise this error.

    InferenceSession may raise onnxruntime's own errors, and onnxruntime cannot describe a session
    with text that is not UTF-8.
    """
    if isinstance(error, ogs.GridSampleError):
        return True
    is_of_onnxruntime = type(error).__module__.startswith("onnxruntime")
    if function is not ogs.InferenceSession:
        return False
    if not is_of_onnxruntime and not isinstance(error, UnicodeDecodeError):
        return False
    return bool(str(error)) or faults.NO_WORDS


def result_of(function: Callable[[Path], object], path: Path) -> str:
    """Call a function of a path, and return how it ended."""
    try:
        function(path)
    except Exception as error:
        if is_allowed(error, function):
            return "allowed error"
        return f"{function.__name__}: {type(error).__name__}: {error}"
    return "returned"


def damage(rng: random.Random, model: bytes) -> bytes:
    """Return a copy with up to three flipped bits, which may be shorter."""
    data = bytearray(model)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    if data:
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


seed, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
onnxruntime.set_default_logger_severity(4)
rng = random.Random(seed)
models = [parser.parse_model(text).SerializeToString() for text in MODELS.values()]
results = Counter[str]()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "damaged.onnx"
    for _ in range(count):
        path.write_bytes(damage(rng, rng.choice(models)))
        for function in (ogs.inspect_model, ogs.patch_model, ogs.InferenceSession):
            results[result_of(function, path)] += 1
print(json.dumps(results))
