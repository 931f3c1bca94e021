"""Random models and feeds: whatever comes, the answer is the oracle's or an exception that says where and what.

Hypothesis makes the cases and a process of their own runs them, so that an abort is a failure like any other, with
the smallest case that causes it. ``python -m tests.fuzz --help`` has the long runs.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the tests' own modules, from wherever it is started
