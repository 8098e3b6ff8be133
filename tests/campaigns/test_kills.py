"""Workers and drivers that are killed at random: nothing that was filed is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from polytile.campaigns import board as boards
from polytile.campaigns.board import Board
from tests.campaigns.test_board import filled, unit

UNITS, KILLS, WORKERS = 150, 40, 3

WORKER = """
import sys, time
from pathlib import Path
from polytile.campaigns.board import Board, Result

board, name = Board(Path(sys.argv[1])), sys.argv[2]
while (unit := board.take(name)) is not None or board.status().left:
    if unit is None:
        time.sleep(0.02)
        continue
    time.sleep(0.05)
    board.finish(unit, Result(name, 0.01, f"measured {board.unit(unit).sizes['M']}"))
"""


def test_a_campaign_survives_random_kills(tmp_path: Path) -> None:
    units = [unit(number) for number in range(UNITS)]
    board, draw = filled(tmp_path / "campaign", *units), random.Random(25)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    workers: dict[str, subprocess.Popen[bytes]] = {}
    filed: dict[str, bytes] = {}
    killed, number, end = 0, 0, time.monotonic() + 240
    while board.status().left:
        assert time.monotonic() < end
        for name, process in list(workers.items()):
            if process.poll() is not None:
                for lease in board.leases_of(name):
                    path = board.root / "taken" / f"{lease}.json"  # as if LEASE_SECONDS had passed
                    os.utime(path, (1, 1))
                del workers[name]
        Board(board.root).lose_lapsed()  # any process may
        while len(workers) < WORKERS:
            name, number = f"w{number}", number + 1
            workers[name] = subprocess.Popen([sys.executable, str(script), str(board.root), name])
        time.sleep(draw.uniform(0.0, 0.2))
        if killed < KILLS and filed:
            victim = draw.choice(list(workers.values()))
            victim.send_signal(signal.SIGKILL)
            killed += 1
        for path in (board.root / "done").glob("*.json"):
            content = path.read_bytes()
            assert filed.setdefault(path.name, content) == content
    for process in workers.values():
        process.wait(60)
    status = Board(board.root).status()
    assert status.done == UNITS
    given_up = {name for name, why in status.failed.items() if "ended or hung" in why}
    assert given_up == set(status.failed)
    found = sorted(board.result(each.id).lines for each in units if each.id not in given_up)
    assert found == sorted(f"measured {each.sizes['M']}" for each in units if each.id not in given_up)
    assert not list((board.root / "taken").glob("*.json"))
    assert killed > 5
    assert boards.MOST_LOSSES * len(given_up) <= status.lost
