"""Measurements of polytile, run from the repository's root as `python -m benchmarks.NAME`.

Calls wait for measured kernels, unless POLYTILE_STALL says otherwise: what is timed are the kernels that a program settles on.
"""

import os

os.environ.setdefault("POLYTILE_STALL", "tune")
