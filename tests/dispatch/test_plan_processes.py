"""Same plan, same kernels, the same bits: in another process, whatever it has or has not on disk."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from polytile.dispatch.planfile import Plan
from tests.waiting import PATIENCE


def worker(home: Path, *arguments: str) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    settings = {"POLYTILE_CACHE_DIR": str(home), "PYTHONPATH": f"{root}:{root / 'src'}", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.dispatch.plan_worker", *arguments],
        capture_output=True, text=True, cwd=root, env={**os.environ, **settings}, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "messages": done.stderr}


def test_a_plan_gives_the_same_kernels_and_bits_in_processes_that_have_measured_nothing(tmp_path: Path) -> None:
    path, again = tmp_path / "program.plan", tmp_path / "again.plan"
    made = worker(tmp_path / "first", "--save", str(path))
    assert made["counters"]["candidates_benchmarked"] > 0

    followed = worker(tmp_path / "second", "--plan", str(path), "--save", str(again))
    assert followed["counters"]["candidates_benchmarked"] == followed["counters"]["store_hits"] == 0
    assert followed["digests"] == made["digests"]
    assert followed["decisions"] == made["decisions"]
    assert set(followed["links"]) <= {"plan", "only"} and followed["messages"] == ""
    plan, repeated = Plan.read(path), Plan.read(again)
    assert repeated.environment == plan.environment and set(repeated.decisions) == set(plan.decisions)

    # Now to the letter: another candidate for one decision, one that was measured beside the winner and came out right.
    losers = {(kernel, regime): lost for kernel, regime, lost in made["losers"] if lost}
    line = next(pinned for pinned in plan.decisions if (pinned.kernel, str(pinned.regime)) in losers)
    candidate, source = losers[line.kernel, str(line.regime)][0]
    changed = dataclasses.replace(line, candidate=candidate, source=source)
    rest = tuple(pinned for pinned in plan.decisions if pinned is not line)
    Plan((*rest, changed), plan.environment).write(path)
    edited = worker(tmp_path / "first", "--plan", str(path))
    assert [line.kernel, str(line.regime), changed.candidate] in edited["decisions"]
    assert [line.kernel, str(line.regime), line.candidate] in made["decisions"]
    assert edited["counters"]["candidates_benchmarked"] == 0
