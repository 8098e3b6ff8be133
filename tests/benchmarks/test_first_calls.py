"""The benchmark of first calls: its table, and the processor seconds that it counts."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from benchmarks.first_calls import CONTESTANTS, PEER, first_call_table
from benchmarks.networks import NETWORKS
from benchmarks.programs.stages import RUNNING, ProcessorStages

OWN = next(iter(CONTESTANTS))
BUSY = "import time\nwhile time.process_time() < 0.3: pass"


def row(network: str, contestant: str, seconds: float, **more: Any) -> dict[str, Any]:
    given = {"network": network, "mode": "training", "contestant": contestant, "settled_s": seconds, "wall_s": seconds}
    return given | {"stages": {"tracing": 1.0}} | more


def test_the_costliest_come_first_beside_the_peer() -> None:
    late = {"network": "c", "mode": "training", "contestant": PEER, "error": "did not end in time"}
    rows = [row("a", OWN, 2.0), row("a", PEER, 8.0), row("b", OWN, 5.0, kernels=7), row("c", OWN, 1.0), late]
    found = first_call_table(rows, number=2).rows
    assert [one[:6] for one in found] == [
        ("b, training", OWN, 5.0, 5.0, None, 7),
        ("a, training", OWN, 2.0, 2.0, 0.25, None),
        ("a, training", PEER, 8.0, 8.0, None, None),
    ]


def test_seconds_of_threads_and_of_other_processes_are_counted() -> None:
    with ProcessorStages() as stages:
        began = time.process_time()
        while time.process_time() - began < 0.3:
            pass
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        total = stages.total()
    assert stages.seconds[RUNNING] >= 0.25 and stages.seconds["compiling"] >= 0.25 and total >= 0.5


def test_a_process_that_still_runs_is_counted() -> None:
    with ProcessorStages() as stages, subprocess.Popen([sys.executable, "-c", f"{BUSY}\ninput()"], stdin=-1) as child:
        while stages.total() < 0.3:
            time.sleep(0.02)
        child.communicate(b"\n")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gives_finite_results(name: str) -> None:
    torch.manual_seed(0)
    network, inputs = NETWORKS[name]()
    with torch.no_grad():
        result = network.eval()(*inputs)
    assert result.isfinite().all() and result.std() > 0
