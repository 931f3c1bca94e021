"""How every op that samples has ONNX Runtime's threads be the workers of a launch."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from ...core.pointers import address, call
from ...core.workers import END, NEW
from .requests import parallel_for
from .sentences import no_room


@register_jitable
def launched(request: Any, launch: Any, proceed: int, worker: int, errors: int) -> int:
    """Have ONNX Runtime's threads be the workers of all phases of a ``launch``; returns a status.

    ``proceed`` and ``worker`` are the addresses of its functions, as those of :mod:`ort_gridsample.core.workers`.
    """
    launch.own.nbytes, launch.phase, status = 0, NEW, 0
    count = call(proceed, (address(launch),))
    while count > 0:
        if count > 1:
            status = parallel_for(request.api, (request.context, worker, count, 0, address(launch)))
        else:
            call(worker, (address(launch), 0))
        if status != 0:
            launch.phase = END
        count = call(proceed, (address(launch),))
    return no_room(request.api, errors, launch.nbytes) if count < 0 else status
