"""Jobs of two processes: results are eager's, one compile serves all sizes, and both ranks run the same kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from tests.behaviour import rank as ranks
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="this torch has no gloo"
)


def run(case: str, folder: Path, *kind: str) -> list[dict[str, Any]]:
    """What each rank of a job that runs `case` reports; each has a cache directory of its own."""
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.behaviour.rank", case, str(rank), str(folder / "rendezvous"), *kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "POLYTILE_CACHE_DIR": str(folder / f"cache{rank}"), "PYTHONPATH": f"{root}:{root / 'src'}"},
        )
        for rank in range(ranks.RANKS)
    ]
    try:
        ended = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, messages) in zip(started, ended, strict=True):
        assert process.returncode == 0, messages
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


def check(reports: list[dict[str, Any]], graphs: int) -> None:
    one, other = reports
    assert one["decisions"] == other["decisions"] and one["decisions"]
    assert one["graphs"] == other["graphs"] == graphs, "one compile serves all sizes"
    assert one["measured"] + other["measured"] > 0


@pytest.mark.slow
def test_ranks_with_collectives_in_a_graph_run_the_same_kernels_and_compile_once(tmp_path: Path) -> None:
    check(run("functional", tmp_path), graphs=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ddp", "fsdp2", "tensor_parallel"])
def test_training_on_two_ranks_is_eagers(case: str, tmp_path: Path) -> None:
    check(run(case, tmp_path), graphs=2 if case == "fsdp2" else 1)  # FSDP2 gathers the weights of each block between graphs
