"""A script that runs models on execution providers only. A provider may crash its process.

It writes READY, reads pickles of the arguments of :func:`answer`, and writes a pickle of each
result.
"""

import os
import pickle
import sys
import time
from typing import Any

#: The bytes before the first result. Python's start may print something before them.
READY = b"\0ort_gridsample's probe is ready\n"


def answer(
    model: bytes,
    providers: list[str],
    provider_options: list[dict[str, str]],
    plugins: list[tuple[str, str]],
    devices: dict[str, list[int]] | None,
    feeds: list[dict[str, Any]],
    optimized: bool,
    is_timed: bool,
) -> list[list[Any]] | float | str:
    """Return all outputs of ``model`` for each of ``feeds``, or onnxruntime's error.

    Return the seconds of a run with the first of ``feeds`` instead of outputs if ``is_timed``.

    ``plugins`` are the names and paths of libraries to register. ``devices`` are the indices of
    devices to use, by provider; None lets onnxruntime find the providers by their names.
    """
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
        _register(onnxruntime, plugins)
        if devices is None:
            session = session_class(model, options, providers, provider_options)
        else:
            for name, values in zip(providers, provider_options, strict=True):
                _add_provider(onnxruntime, options, name, values, devices.get(name))
            session = session_class(model, options)
        if is_timed:
            return seconds_of_run(session, feeds[0])
        return [session.run(None, run_feeds) for run_feeds in feeds]
    except Exception as error:
        return " ".join(str(error).split())


#: The numbers of runs and the seconds after which no other run is timed.
_MAX_RUNS = 30
_MAX_SECONDS = 0.2


def seconds_of_run(session: Any, feeds: Any) -> float:
    """Return the seconds of the fastest of some runs of a session, after one that does not count.

    Other programs only make runs slower.
    """
    session.run(None, feeds)
    seconds: list[float] = []
    while len(seconds) < _MAX_RUNS and sum(seconds) < _MAX_SECONDS:
        start = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


#: The names of the libraries that are registered.
_registered: set[str] = set()


def _register(onnxruntime: Any, plugins: list[tuple[str, str]]) -> None:
    """Register libraries, each once."""
    for name, path in plugins:
        if name not in _registered:
            onnxruntime.register_execution_provider_library(name, path)
            _registered.add(name)


def _add_provider(
    onnxruntime: Any,
    options: Any,
    name: str,
    provider_options: dict[str, str],
    indices: list[int] | None,
) -> None:
    """Add a provider to the options of a session: all its devices, or those with ``indices``."""
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    if not any("library_path" in device.ep_metadata for device in devices):  # it is no plugin
        options.add_provider(name, provider_options)
        return
    chosen = devices if indices is None else [devices[index] for index in indices]
    options.add_provider_for_devices(chosen, provider_options)


def main() -> None:
    """Answer until the process is killed."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # onnxruntime or a provider may print to stdout
    output.write(READY)
    output.flush()
    while True:
        arguments = pickle.load(sys.stdin.buffer)
        pickle.dump(answer(*arguments), output)
        output.flush()


if __name__ == "__main__":
    main()
