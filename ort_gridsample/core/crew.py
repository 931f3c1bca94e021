"""Helpers: threads that stay for a moment when they have helped, as to wake one takes longer than many a run.

A helper has a place, which says whether a thread is there and what it is offered. Whoever has a task offers it, works
on it, takes back the offers that nobody has come to, and waits for those who came: where no helper comes nothing is
missed. All of it is compiled code, which holds nothing of Python's.
"""

from __future__ import annotations

from numba.extending import register_jitable

from .pointers import LINE, call, compare_and_swap, fetch_add, give_way, load, load_shared, store, store_shared

#: The places, one a helper; each has two words, in a line of the cache of its own. Before the first lies how many bytes
#: all of them take: no number of processors is compiled in.
PLACES_BYTES = -8
(THERE, OFFER) = range(0, 16, 8)
#: An offer is the address of a task, until a helper comes to it.
NOTHING, TAKEN = 0, 1

# A task: a function, to call with ``ARGUMENT`` and a number until it answers 0; the next number, which nobody else has;
# how many helpers are wanted, and how many if some must be woken; how many are expected or at work.
(FUNCTION, ARGUMENT, NUMBER, WANTED, WOKEN, EXPECTED) = range(0, 48, 8)
TASK_BYTES = 48

#: How often a helper looks for an offer before it goes; a look takes some 0.4 µs where nobody else wants the processor.
PATIENCE = 1000


@register_jitable
def invite(task: int, places: int) -> int:
    """Offer the ``task`` to helpers, those first who are there; answers how many are to be woken."""
    invited = woken = 0
    for is_there in (1, 0):
        most = load(task + WANTED) if is_there else min(load(task + WANTED), load(task + WOKEN))
        for place in range(places, places + load(places + PLACES_BYTES), LINE):
            if invited >= most:
                break
            if load_shared(place + THERE) == is_there:
                fetch_add(task + EXPECTED, 1)
                if compare_and_swap(place + OFFER, NOTHING, task):
                    invited += 1
                    woken += 1 - is_there
                else:
                    fetch_add(task + EXPECTED, -1)
    return woken


@register_jitable
def finish(task: int, places: int) -> int:
    """Take back what nobody has come to, and wait for the others."""
    for place in range(places, places + load(places + PLACES_BYTES), LINE):
        if load_shared(task + EXPECTED) == 0:
            break
        if compare_and_swap(place + OFFER, task, NOTHING):
            fetch_add(task + EXPECTED, -1)
    while load_shared(task + EXPECTED) > 0:
        give_way()
    return 0


@register_jitable
def attend(places: int) -> int:
    """Be a helper, until nothing has been offered for all the :data:`PATIENCE` that there is."""
    place = _free_place(places)
    left = PATIENCE if place else 0
    while left > 0:
        task = load_shared(place + OFFER)
        if task > TAKEN and compare_and_swap(place + OFFER, task, TAKEN):
            number = fetch_add(task + NUMBER, 1)
            while call(load(task + FUNCTION), (load(task + ARGUMENT), number)):
                pass
            store_shared(place + OFFER, NOTHING)
            fetch_add(task + EXPECTED, -1)  # from here on the task may be gone
            left = PATIENCE
        else:
            give_way()
            left -= 1
    if place:
        store_shared(place + THERE, 0)
    return 0


@register_jitable
def _free_place(places: int) -> int:
    """The place of a helper that is not there, if possible one with an offer; 0 if there is none."""
    for wants in (1, 0):
        for place in range(places, places + load(places + PLACES_BYTES), LINE):
            if (load_shared(place + OFFER) > TAKEN or not wants) and compare_and_swap(place + THERE, 0, 1):
                return place
    return 0


@register_jitable
def begin_task(task: int, function: int, argument: int, wanted: int) -> None:
    """A task of which its owner does number 0."""
    store(task + FUNCTION, function)
    store(task + ARGUMENT, argument)
    store(task + NUMBER, 1)
    store(task + WANTED, wanted)
    store(task + EXPECTED, 0)
