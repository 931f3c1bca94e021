"""Run the command ``ort-gridsample`` in this process."""

import contextlib
import io

from ort_gridsample.cli import main


def printed(*words: object) -> str:
    """Return what the command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main([str(word) for word in words])
    return output.getvalue()
