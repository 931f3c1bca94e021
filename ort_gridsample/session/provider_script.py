"""A script that runs models on execution providers only. A provider may crash its process.

It writes READY, reads pickles of the arguments of :func:`answer`, and writes a pickle of each
result.
"""

import os
import pickle
import sys
from typing import Any

#: The bytes before the first result. Python's start may print something before them.
READY = b"\0ort_gridsample's probe is ready\n"


def answer(
    model: bytes,
    providers: list[str],
    provider_options: list[dict[str, str]],
    feeds: list[dict[str, Any]],
    optimized: bool,
) -> list[list[Any]] | str:
    """Return all outputs of ``model`` for each of ``feeds``, or onnxruntime's error."""
    import onnxruntime  # not before stdout is redirected, as this may print

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if not optimized:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    try:
        # Not the attribute, which `ort-gridsample exec` replaces in this process as well.
        session_class = vars(onnxruntime)["InferenceSession"]
        session = session_class(model, options, providers, provider_options)
        return [session.run(None, run_feeds) for run_feeds in feeds]
    except Exception as error:
        return " ".join(str(error).split())


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # onnxruntime or a provider may print to stdout
    output.write(READY)
    output.flush()
    while True:  # until the process is killed
        arguments = pickle.load(sys.stdin.buffer)
        pickle.dump(answer(*arguments), output)
        output.flush()
