"""Helper threads, which work on a task together with the thread that owns it.

After a task a helper spins for a moment, because waking a thread takes longer than many launches.
Each helper occupies a slot, a :data:`.structs.SLOT`. The owner of a task offers it in the slots,
works on it, withdraws the offers that no helper has accepted, and waits for the helpers that did.
Hence the task is also completed without any helper. All of this is compiled code that uses no
Python objects.
"""

from numba.extending import register_jitable

from .compilation import compiles_in
from .pointers import (
    address_of,
    array_at,
    call,
    compare_and_swap,
    fetch_add,
    load_shared,
    record_at,
    sched_yield,
    store_shared,
)
from .structs import SLOT, TASK, Address, ArrayRef, RecordRef

#: The state of a slot's offer: empty, or accepted by the slot's helper. Other values are the
#: address of the offered task.
NO_OFFER = 0
ACCEPTED = 1
#: The number of consecutive checks without an offer after which a helper's thread ends. A check
#: takes about 0.4 µs if no other thread uses the processor.
SPIN_LIMIT = 1000


@compiles_in(0.65)
def offer_task(task_address: Address, slots_address: Address, count: int) -> int:
    """Offer a task to helpers, first to those that are spinning.

    Args:
        task_address: the address of a :data:`.structs.TASK`.
        slots_address: the address of the slots.
        count: the number of slots.

    Returns:
        The number of threads to start. They find their offers in slots that have no thread yet.
    """
    return make_offers(record_at(task_address, TASK), slots_address, count)


@register_jitable
def make_offers(task: RecordRef, slots_address: Address, count: int) -> int:
    """Offer a ``task`` as :func:`offer_task`."""
    task_address = address_of(task)
    slots = array_at(slots_address, (count,), SLOT)
    n_offers = 0
    n_threads = 0
    for has_thread in (1, 0):
        max_offers = task.wanted if has_thread else min(task.wanted, task.wanted_if_started)
        for i in range(len(slots)):
            slot = slots[i]
            if n_offers >= max_offers:
                break
            if load_shared(slot, "has_thread") == has_thread:
                fetch_add(task, "active_helpers", 1)
                if compare_and_swap(slot, "offer", NO_OFFER, task_address):
                    n_offers += 1
                    n_threads += 1 - has_thread
                else:
                    fetch_add(task, "active_helpers", -1)
    return n_threads


@compiles_in(0.55)
def withdraw_and_wait(task_address: Address, slots_address: Address, count: int) -> int:
    """Withdraw the offers of a task that no helper has accepted, and wait for the other helpers.

    The arguments are those of :func:`offer_task`. Returns 0.
    """
    end_task(record_at(task_address, TASK), slots_address, count)
    return 0


@register_jitable
def end_task(task: RecordRef, slots_address: Address, count: int) -> None:
    """End a ``task`` as :func:`withdraw_and_wait`."""
    task_address = address_of(task)
    slots = array_at(slots_address, (count,), SLOT)
    for i in range(len(slots)):
        if load_shared(task, "active_helpers") == 0:
            break
        if compare_and_swap(slots[i], "offer", task_address, NO_OFFER):
            fetch_add(task, "active_helpers", -1)
    while load_shared(task, "active_helpers") > 0:
        sched_yield()


@register_jitable
def count_spinning(slots_address: Address, count: int, wanted: int) -> int:
    """Return the number of helpers that are waiting for an offer, but at most ``wanted``."""
    slots = array_at(slots_address, (count,), SLOT)
    n_spinning = 0
    for i in range(len(slots)):
        if n_spinning >= wanted:
            break
        if load_shared(slots[i], "has_thread") == 1 and load_shared(slots[i], "offer") == NO_OFFER:
            n_spinning += 1
    return n_spinning


@compiles_in(0.7)
def helper_loop(slots_address: Address, count: int) -> int:
    """Work on tasks that are offered, until :data:`SPIN_LIMIT` consecutive checks find no offer.

    Args:
        slots_address: the address of the slots.
        count: the number of slots.

    Returns:
        0. Without a free slot the function returns at once.
    """
    slots = array_at(slots_address, (count,), SLOT)
    index = _occupy_slot(slots)
    if index < 0:
        return 0
    slot = slots[index]
    spins_left = SPIN_LIMIT
    while spins_left > 0:
        offer = load_shared(slot, "offer")
        if offer > ACCEPTED and compare_and_swap(slot, "offer", offer, ACCEPTED):
            task = record_at(offer, TASK)
            number = fetch_add(task, "number", 1)
            while call(task.function, (task.argument, number)):
                pass
            store_shared(slot, "offer", NO_OFFER)
            fetch_add(task, "active_helpers", -1)  # from here on the task may no longer exist
            spins_left = SPIN_LIMIT
        else:
            sched_yield()
            spins_left -= 1
    store_shared(slot, "has_thread", 0)
    return 0


@register_jitable
def _occupy_slot(slots: ArrayRef) -> int:
    """Occupy a slot without a thread, if possible one with an offer; return its index, or -1."""
    for needs_offer in (1, 0):
        for i in range(len(slots)):
            has_offer = load_shared(slots[i], "offer") > ACCEPTED
            if (has_offer or not needs_offer) and compare_and_swap(slots[i], "has_thread", 0, 1):
                return i
    return -1


@register_jitable
def begin_task(task: RecordRef, function: int, argument: int, wanted: int) -> None:
    """Initialize a ``task`` for :func:`offer_task`. Its owner works on it as number 0.

    Args:
        task: a :data:`.structs.TASK`.
        function: the address of a C function. A thread calls it with ``argument`` and the thread's
            number until it returns 0.
        argument: the first argument of ``function``.
        wanted: the number of helpers that the task can use.
    """
    task.function = function
    task.argument = argument
    task.number = 1
    task.wanted = wanted
    task.active_helpers = 0
