"""Objects of which a process has one."""

import threading

from ort_gridsample.system.process import created_once


def test_threads_whose_first_calls_overlap_get_one_object() -> None:
    both_called = threading.Barrier(2)
    created = []

    @created_once
    def create() -> object:
        created.append(object())
        threading.Event().wait(0.2)  # time for the other thread to create an object, too
        return created[-1]

    results = []

    def call() -> None:
        both_called.wait(60)
        results.append(create())

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert results[0] is results[1]
