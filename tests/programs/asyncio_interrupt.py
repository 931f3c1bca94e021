"""Send this process SIGINT while an event loop runs; print, for each opener, what the loop does.

Arguments: names of functions in support.paths.
"""

import asyncio
import os
import signal
import sys

import ort_gridsample as ogs
from support import paths
from support.programs import (
    GRID,
    X,
    open_sampling,
    print_for_each_opener,
    restore_interrupt_handler,
    shape_or_error,
)


def is_default_handler() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def check(open_model: paths.Open) -> dict[str, object]:
    session = open_sampling(open_model)
    shape_or_error(session, X, GRID)
    ogs.register()
    results: dict[str, object] = {}

    async def main() -> None:
        results["default handler in loop"] = is_default_handler()
        try:
            shape_or_error(session, X, GRID)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            results["run after cancellation"] = shape_or_error(session, X, GRID)
            raise

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        results["default handler after interrupt"] = is_default_handler()
    return results


restore_interrupt_handler()
print_for_each_opener(check, sys.argv[1:])
