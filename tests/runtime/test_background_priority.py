"""Processes that work in the background leave the cores to calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from polytile.runtime.background import PROCESS_NICENESS, yield_to_calls


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="cores are not shared among sessions here")
def test_a_process_in_a_session_of_its_own_yields_as_a_session() -> None:
    own = Path("/proc/self/autogroup").read_text()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield_to_calls(process.pid, PROCESS_NICENESS)
        found = Path(f"/proc/{process.pid}/autogroup").read_text(), os.getpriority(os.PRIO_PROCESS, process.pid)
        process.kill()
    assert found[0].split()[-1] == str(PROCESS_NICENESS) and found[1] == PROCESS_NICENESS
    assert Path("/proc/self/autogroup").read_text() == own
