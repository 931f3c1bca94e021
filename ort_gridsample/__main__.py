"""Run the command line as ``python -m ort_gridsample``."""

import sys

from .cli import main

sys.exit(main())
