"""Run a command of the package; the arguments are the command's."""

import sys

from ort_gridsample.cli import main

sys.exit(main())
