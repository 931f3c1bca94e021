"""The execution of a launch on ONNX Runtime's threads."""

import numpy as np
from numba.extending import register_jitable

from ...kernels import workers
from ...kernels.pointers import address_of, call, memset
from ...kernels.structs import END, NEW, ArrayRef, RecordRef
from . import requests
from .requests import Status
from .sentences import no_memory


@register_jitable
def fill_output(
    state: RecordRef, request: RecordRef, launch: RecordRef, Y_shape: ArrayRef, has_samples: bool
) -> Status:
    """Create the output, and fill it on ONNX Runtime's threads.

    Args:
        request: a REQUEST.
        launch: a LAUNCH, or an ATTENTION_LAUNCH.
        Y_shape: the shape of the output.
        has_samples: False: nothing can be read, and the output is 0.
    """
    status, launch.Y = requests.make_output(request, Y_shape)
    nbytes = state.kernel.X_size * requests.count_elements(Y_shape)
    if status != 0 or nbytes == 0:
        return status
    if not has_samples:
        memset(launch.Y, np.int32(0), nbytes)
        return status
    launch.workers = max(workers.DEFAULT_WORKERS, state.kernel.cpus)
    launch.must_pause = 0
    launch.arena.nbytes = 0
    launch.progress.phase = NEW
    while True:
        count = call(state.kernel.proceed, (address_of(launch),))
        if count < 0:
            return no_memory(request.api, state.errors, launch.plan.scratch_bytes)
        if count == 0:
            return status
        arguments = (request.context, state.kernel.process_items, count, 0, address_of(launch))
        status = requests.parallel_for(request.api, arguments)
        if status != 0:
            launch.progress.phase = END
