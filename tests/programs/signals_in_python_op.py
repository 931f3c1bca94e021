"""Send this process signals from inside a Python op; print what the handlers and the runs did.

Arguments: names of functions in support.paths, or ``open_ort_format``. The result for each opener
has one item for each function of ``SCENARIOS``. A handler that raised an exception inside the op
would end the process.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import onnx
import onnxruntime

import ort_gridsample as ogs
from ort_gridsample.functions import sampling
from support import paths
from support.programs import GRID, X, open_sampling, restore_interrupt_handler, shape_or_error

Result = list[object]


def open_ort_format(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Open a patched file in onnxruntime's own format, which onnx cannot read."""
    options = ogs.register()
    options.add_session_config_entry("session.save_model_format", "ORT")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patched.ort"
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(ogs.patch_model(model).SerializeToString(), options)
        return ogs.InferenceSession(path)


def run_with(
    session: onnxruntime.InferenceSession,
    signums: Sequence[int],
    action: Callable[[], object] = lambda: None,
) -> tuple[int, ...] | str:
    """Run a session whose op sends this process ``signums`` and then calls ``action``."""
    original = sampling.grid_sample

    def grid_sample(*args: object, **kwargs: object) -> object:
        for signum in signums:
            signal.raise_signal(signum)
        action()
        return original(*args, **kwargs)

    with patch.object(sampling, "grid_sample", grid_sample):
        return shape_or_error(session, X, GRID)


def handler_names() -> list[str]:
    """Return the names of the handlers of SIGINT and SIGTERM."""
    handlers = (signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM))
    return [getattr(handler, "__name__", "no function") for handler in handlers]


def signal_sent_three_times(session: onnxruntime.InferenceSession) -> Result:
    calls: list[object] = []

    def handler(signum: int, frame: object) -> None:
        calls.append(["handler", signum, frame is not None])

    signal.signal(signal.SIGTERM, handler)
    shape = run_with(session, [signal.SIGTERM] * 3, lambda: calls.append("op"))
    return [shape, *calls]


def interrupt(session: onnxruntime.InferenceSession) -> Result:
    try:
        return ["not interrupted", run_with(session, [signal.SIGINT])]
    except KeyboardInterrupt:
        return ["KeyboardInterrupt", shape_or_error(session, X, GRID)]


def handlers_after_registration_and_run(session: onnxruntime.InferenceSession) -> Result:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = handler_names()
    ogs.register()
    after_registration = handler_names()
    shape_or_error(session, X, GRID)
    return [before, after_registration, handler_names()]


def handlers_that_raise(session: onnxruntime.InferenceSession) -> Result:
    """A handler raises an exception while other handlers are not restored yet."""
    calls: list[object] = []

    def terminate(signum: int, frame: object) -> None:
        calls.append([signum, frame is not None])
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, terminate)
    results: Result = []
    for signums in [signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]:
        calls.clear()
        try:
            run_with(session, signums)
        except BaseException as error:
            results.append([type(error).__name__, handler_names(), calls.copy()])
    return results


def fork_in_another_thread(session: onnxruntime.InferenceSession) -> Result:
    """The child lacks the thread of the run, which would restore the handlers at its end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    expected = handler_names()
    is_running = threading.Event()
    has_forked = threading.Event()
    statuses: list[int] = []

    def fork() -> None:
        is_running.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(int(handler_names() != expected))
        has_forked.set()
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def wait_for_fork() -> None:
        is_running.set()
        has_forked.wait(60)

    thread = threading.Thread(target=fork)
    thread.start()
    shape = run_with(session, [], wait_for_fork)
    thread.join()
    return [shape, *statuses]


def handler_set_in_op(session: onnxruntime.InferenceSession) -> Result:
    def new_handler(signum: int, frame: object) -> None:
        pass

    run_with(session, [], lambda: signal.signal(signal.SIGTERM, new_handler))
    return handler_names()


def handler_of_event_loop(session: onnxruntime.InferenceSession) -> Result:
    calls: Result = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: calls.append("called"))
        calls.append(run_with(session, [signal.SIGTERM]))
        await asyncio.sleep(0.2)

    asyncio.run(main())
    return calls


SCENARIOS = (
    signal_sent_three_times,
    interrupt,
    handlers_after_registration_and_run,
    handlers_that_raise,
    fork_in_another_thread,
    handler_set_in_op,
    handler_of_event_loop,
)


def main(openers: list[str]) -> None:
    restore_interrupt_handler()
    for name in openers:
        is_ort_format = name == "open_ort_format"
        session = open_sampling(open_ort_format if is_ort_format else getattr(paths, name))
        results = {scenario.__name__: scenario(session) for scenario in SCENARIOS}
        print(json.dumps([name, results]), flush=True)


main(sys.argv[1:])
