"""The standard suite: cases as data, contestants as adapters, timing in rounds, and a report of it.

``python -m tests.benchmarks --help`` has the whole; ``.spinning``, ``.throughput``, ``.lowered_speed`` and
``.evaluator_speed`` time one question each.
"""
