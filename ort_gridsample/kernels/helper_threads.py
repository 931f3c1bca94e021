"""Helper threads, which stay for a moment when they have helped: to wake one takes longer than many a launch.

A helper has a slot, which says whether a thread is there and what it is offered. Whoever has a task offers it, works
on it, takes back the offers that nobody has come to, and waits for those who came: where no helper comes nothing is
missed. All of it is compiled code, which holds nothing of Python's.
"""

from typing import Any

from numba.extending import register_jitable

from .compilation import compile_time
from .pointers import array, call, compare_and_swap, fetch_add, load_shared, sched_yield, store_shared, struct
from .structs import SLOT, TASK

#: An offer is the address of a task, until a helper comes to it.
NOTHING, TAKEN = 0, 1
#: How often a helper looks for an offer before it goes; a look takes some 0.4 µs where nobody else wants the processor.
PATIENCE = 1000


@compile_time(0.65)
def invite(task_at: int, slots_at: int, count: int) -> int:
    """Offer the task to helpers, those first who are there; answers how many are to be woken."""
    task, slots = struct(task_at, TASK), array(slots_at, (count,), SLOT)
    invited = woken = 0
    for is_there in (1, 0):
        most = task.wanted if is_there else min(task.wanted, task.woken)
        for i in range(len(slots)):
            slot = slots[i]
            if invited >= most:
                break
            if load_shared(slot, "there") == is_there:
                fetch_add(task, "expected", 1)
                if compare_and_swap(slot, "offer", NOTHING, task_at):
                    invited += 1
                    woken += 1 - is_there
                else:
                    fetch_add(task, "expected", -1)
    return woken


@compile_time(0.55)
def finish(task_at: int, slots_at: int, count: int) -> int:
    """Take back what nobody has come to, and wait for the others."""
    task, slots = struct(task_at, TASK), array(slots_at, (count,), SLOT)
    for i in range(len(slots)):
        if load_shared(task, "expected") == 0:
            break
        if compare_and_swap(slots[i], "offer", task_at, NOTHING):
            fetch_add(task, "expected", -1)
    while load_shared(task, "expected") > 0:
        sched_yield()
    return 0


@compile_time(0.7)
def attend(slots_at: int, count: int) -> int:
    """Be a helper, until nothing has been offered for all the :data:`PATIENCE` that there is."""
    slots = array(slots_at, (count,), SLOT)
    own = _free_slot(slots)
    if own < 0:
        return 0
    slot, left = slots[own], PATIENCE
    while left > 0:
        offer = load_shared(slot, "offer")
        if offer > TAKEN and compare_and_swap(slot, "offer", offer, TAKEN):
            task = struct(offer, TASK)
            number = fetch_add(task, "number", 1)
            while call(task.function, (task.argument, number)):
                pass
            store_shared(slot, "offer", NOTHING)
            fetch_add(task, "expected", -1)  # from here on the task may be gone
            left = PATIENCE
        else:
            sched_yield()
            left -= 1
    store_shared(slot, "there", 0)
    return 0


@register_jitable
def _free_slot(slots: Any) -> int:
    """The slot of a helper that is not there, if possible one with an offer; -1 if there is none."""
    for wants in (1, 0):
        for i in range(len(slots)):
            if (load_shared(slots[i], "offer") > TAKEN or not wants) and compare_and_swap(slots[i], "there", 0, 1):
                return i
    return -1


@register_jitable
def begin_task(task: Any, function: int, argument: int, wanted: int) -> None:
    """Make it a ``task`` of which its owner does number 0."""
    task.function, task.argument, task.number = function, argument, 1
    task.wanted, task.expected = wanted, 0
