"""What the package promises, tested in every way that delivers it.

A module has a table of *forms* (models with feeds) and a table of *ways* to run a model
(:mod:`support.ways`: a session on each kind of op, a patched file, the execution provider, a
library, lowered models, onnx's evaluator). A test is a cell: this form, in this way, has the
outputs of the oracle (:mod:`support.oracle`, and :mod:`support.oracle_evaluator` for whole models,
neither of which uses this package). Where a way cannot run a form, a row of the table ``LIMITS``
states why, and the cell checks that the way refuses it.

The tests import the public names of ``ort_gridsample`` and tests/support only
(:mod:`contract.test_imports`), and so they hold for any implementation. Tests of internal
interfaces are in the folders that are named like the package's.
"""
