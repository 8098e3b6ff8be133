"""Launches of autotuned kernels that are known at once: the same as Triton's, in a process of their own (launches.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.autotuner.processes import run_compiling


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed.")
def test_launches_that_are_known_at_once_are_those_of_triton(tmp_path: Path) -> None:
    done = run_compiling("tests.autotuner.launches", tmp_path, "-W", "error::UserWarning")
    assert len(done.stdout.splitlines()) == 13
