"""A script, run in a process of its own, which a provider may end: what a model answers on execution providers alone.

It reads pickles of a model, the providers, their options and the feeds, and writes one of each model's first output, or
of why there is none.
"""

import os
import pickle
import sys
from typing import Any

import onnxruntime


def answer(model: bytes, providers: list[str], options: list[dict[str, str]], feeds: dict[str, Any]) -> Any:
    """The first output of ``model``, or what onnxruntime says against it."""
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 4
    session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        return onnxruntime.InferenceSession(model, session_options, providers, options).run(None, feeds)[0]
    except Exception as error:
        return " ".join(str(error).split())


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a provider prints is no answer
    while True:  # until it is killed
        pickle.dump(answer(*pickle.load(sys.stdin.buffer)), output)
        output.flush()
