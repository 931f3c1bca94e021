"""Random models and feeds. Outputs are the oracle's, or errors name the node and the argument.

Hypothesis draws the cases, and a process of its own runs them: if that process ends, the case has
failed like any other, and Hypothesis finds the smallest one. The default profile runs few cases,
always the same. ``--hypothesis-profile=nightly`` runs many.
"""

import getpass
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

FEW = 100
MANY = 20_000


def register() -> None:
    """Register Hypothesis' profiles, and load the default one.

    Hypothesis stores its files in the folder of temporary files.
    """
    folder = Path(tempfile.gettempdir()) / f"ort_gridsample_hypothesis_{getpass.getuser()}"
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(folder))
    common = settings(
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
        report_multiple_bugs=False,
    )
    settings.register_profile("default", common, max_examples=FEW, derandomize=True)
    settings.register_profile("nightly", common, max_examples=MANY, derandomize=False)
    settings.load_profile("default")


def is_nightly() -> bool:
    return settings().max_examples >= MANY
