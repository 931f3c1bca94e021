"""The standard suite: cases as data, backends as adapters, timing in rounds, and a report of it.

``python -m tests.benchmarks --help`` says what it can be asked.
"""
