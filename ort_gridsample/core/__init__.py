"""The cores: NumPy in, NumPy out, nothing of ONNX.

A core is a module with two functions::

    grid_sample(X, grid, Y, plan, num_threads) -> None
    prepare(dtype, grid_dtype, mode) -> None

- ``X``: (N, C, D1, …, Dr), C-contiguous, of any type of :data:`ort_gridsample.spec.TYPES`, no axis of length 0;
- ``grid``: (N, P, r), floating point, normalized coordinates, innermost axis first;
- ``Y``: (N, C, P), C-contiguous, of X's type: every element is written;
- ``plan``: a :class:`~ort_gridsample.core.plan.Plan`; ``num_threads``: at most so many threads.

:func:`prepare` does ahead of time what the first call for an X and a grid of these types would otherwise wait for.
:mod:`.choice` says which core is used. What a caller may hand in is checked before, in :mod:`ort_gridsample.functions`.

Paddings (:mod:`.coordinates`) and modes (:mod:`.taps`) are tables, of which :mod:`.numpy_core` makes a :mod:`.table` of
what each position reads and adds that up (:mod:`.sums`). :mod:`.jit_core` does the same with the
compiled :mod:`.lanes`, which the compiled ops share.
"""
