"""Random models and feeds: whatever comes, the answer is the oracle's or an exception that says where and what.

Hypothesis makes the cases and a process of their own runs them, so that an abort is a failure like any other, with
the smallest case that causes it. ``test_fuzz.py`` holds the answers; :mod:`.profiles` says how many cases it tries.
"""
