"""The memory of OrtNodeComputeInfos, which are the functions and the states of fused nodes."""

import numpy as np

from ...kernels.pointers import array_at, call, free, malloc, record_at
from ...kernels.structs import Address
from ..compiled_ops.api_functions import write_word
from .structs import COMPUTE_INFO


def allocate_block(nbytes: int) -> int:
    """Return the address of memory that :func:`release_compute_infos` frees; 0 on failure."""
    return malloc(nbytes)


def release_compute_infos(ep_address: Address, infos: int, count: int) -> int:
    """ReleaseNodeComputeInfos.

    All data of a COMPUTE_INFO are in one block of memory, except the state of its op.
    """
    addresses = array_at(infos, (count,), np.int64)
    for index in range(count):
        info = record_at(addresses[index], COMPUTE_INFO)
        call(info.destroy, (info.state,))
        free(addresses[index])
    return 0


def create_state(info_address: Address, context: Address, out: Address) -> int:
    """CreateState of OrtNodeComputeInfo."""
    write_word(out, record_at(info_address, COMPUTE_INFO).state)
    return 0


def compute_as_op(info_address: Address, state_address: Address, context: Address) -> int:
    """Compute of OrtNodeComputeInfo: call KernelComputeV2 of the op."""
    return call(record_at(info_address, COMPUTE_INFO).compute, (state_address, context))
