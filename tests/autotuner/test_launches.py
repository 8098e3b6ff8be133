"""Launches of autotuned kernels that are known at once: the same as Triton's, in a process of their own (launches.py)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed.")
def test_launches_that_are_known_at_once_are_those_of_triton(tmp_path: Path) -> None:
    own = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TRITON_INTERPRET": "0"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLYTILE_INTERPRET")} | own
    words = [sys.executable, "-W", "error::UserWarning", "-m", "tests.autotuner.launches"]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
