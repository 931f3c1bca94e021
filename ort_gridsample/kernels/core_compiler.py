"""What :mod:`.jit_core` needs of Numba: the functions of calls, and their compilation."""

from . import helper_threads, simd
from .attention import attention_functions
from .compilation import FunctionSpec, addresses, missing_on_disk
from .kernel_factories import kernel_constants, kernel_functions

__all__ = [
    "HELPER_FUNCTIONS",
    "POSITION_WORK",
    "addresses",
    "attention_functions",
    "kernel_constants",
    "kernel_functions",
    "missing_on_disk",
]

#: The work of a launch is counted in taps. To compute those of a position takes as long as to read
#: this many.
POSITION_WORK = 4 if simd.CPU_HAS_FAST_VECTORS else 8

#: The functions of helper threads, by field of :class:`.jit_core._CoreFunctions`.
HELPER_FUNCTIONS: dict[str, FunctionSpec] = {
    "offer_task": (helper_threads.offer_task,),
    "withdraw_and_wait": (helper_threads.withdraw_and_wait,),
    "helper_loop": (helper_threads.helper_loop,),
}
