"""Processes in which Triton compiles, whatever the tests' own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def run_compiling(module: str, cache: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a module, with Triton's cache in a folder; what it printed. Fails where the module does."""
    own = {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TRITON_INTERPRET": "0"}
    own["TRITON_DEFAULT_FP_FUSION"] = "1"  # unset, Triton 3.9 warns of another default to come
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLYTILE_INTERPRET")} | own
    words = [sys.executable, *flags, "-m", module]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done
