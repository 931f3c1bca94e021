"""Random models and feeds: whatever comes, the answer is the oracle's or an exception that says where and what.

Hypothesis makes the cases and a process of their own runs them, so that an abort is a failure like any other, with
the smallest case that causes it: few and always the same ones, or many with ``--hypothesis-profile=nightly``.
"""

import getpass
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

FEW, MANY = 100, 20_000


def register() -> None:
    """Give Hypothesis its profiles, and load the default one; what it keeps lies in the folder of temporary files."""
    folder = Path(tempfile.gettempdir()) / f"ort_gridsample_hypothesis_{getpass.getuser()}"
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(folder))
    phases, checks = [Phase.explicit, Phase.generate, Phase.shrink], list(HealthCheck)
    how = {"deadline": None, "database": None, "report_multiple_bugs": False}
    always = settings(phases=phases, suppress_health_check=checks, **how)
    settings.register_profile("default", always, max_examples=FEW, derandomize=True)
    settings.register_profile("nightly", always, max_examples=MANY, derandomize=False)
    settings.load_profile("default")


def is_nightly() -> bool:
    return settings().max_examples >= MANY
