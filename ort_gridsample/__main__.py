"""``python -m ort_gridsample``: the command line."""

import sys

from .cli import main

sys.exit(main())
