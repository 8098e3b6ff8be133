"""Scripts of the documents, run as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.scripts.documents import ROOT

OF_TESTS = ("POLYTILE_STALL", "POLYTILE_ON_FAILURE")
"""Options that tests set."""


def printed(script: Path) -> str:
    """What the script prints, run without the options that tests set."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), environment.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=script.parent, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
