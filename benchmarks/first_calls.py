"""Where the processor seconds of a network's first call go: `python -m benchmarks.first_calls`.

Each contestant has a process and empty caches of its own (benchmarks/contestants.py) and one thread. A call in training is a
forward and a backward pass. Processor seconds are those of all threads, of compilers and of other workers: users with few cores
wait for them, and other work on the machine lengthens them less than the wall's. Both compilers are looked at in the same way
(benchmarks/programs/stages.py).

With stall="never" the first call waits for tracing alone: what the background spends until everything is settled is counted. It
generates in a thread here (option `builder`), where it can be looked at.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import OWN, Processes
from benchmarks.environment import revision
from benchmarks.networks import NETWORKS
from benchmarks.programs.stages import COMPILERS, STAGES, ProcessorStages
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio

PEER = "inductor"
CONTESTANTS: dict[str, dict[str, str]] = {
    'polytile, stall="compile"': {"stall": "compile"},
    'polytile, stall="never"': {"stall": "never", "builder": "thread"},
    PEER: {},
}
"""What is compared, with polytile's options."""
MODES = ("inference", "training")
FIRST_CALLS = Path(record.RESULTS) / "first_calls.json"


def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The row of {"network", "mode", "contestant"}, in a process of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training, who = asked["mode"] == "training", asked["contestant"]
    network, inputs = NETWORKS[asked["network"]]()
    network.train(training)
    options = CONTESTANTS[who]
    backend: dict[str, Any] = {"backend": OWN, "options": options} if options else {"backend": PEER}
    function = torch.compile(network, dynamic=True, **backend)
    importlib.import_module("torch._dynamo")  # before the clock runs: either contestant imports it
    began = time.perf_counter()
    with ProcessorStages() as stages, torch.set_grad_enabled(training):
        result = function(*inputs)
        if training:
            result.sum().backward()
        wall = time.perf_counter() - began
        first = stages.total()
        if options:
            import polytile

            polytile.wait()
    seconds = {"wall_s": wall, "first_s": first, "settled_s": stages.total()}
    row = {name: round(each, 2) for name, each in seconds.items()} | {
        "stages": stages.as_json(),
        "revision": revision(),
    }
    return row | ({"kernels": polytile.counters["kernels_generated"]} if options else {})


def one(key: tuple[str, str, str], limit: float) -> dict[str, Any]:
    """The row of a network, mode and contestant; with "error" where there is none after `limit` seconds."""
    asked = dict(zip(("network", "mode", "contestant"), key, strict=True))
    return asked | Processes(1).run("benchmarks.first_calls:measure", asked, limit)


def first_call_table(rows: Sequence[Mapping[str, Any]], number: int = 10) -> Table:
    """The programs whose first calls take polytile the most processor seconds, line by line."""
    by_program: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_program.setdefault(f"{row['network']}, {row['mode']}", {})[row["contestant"]] = row
    spent = {
        name: max((_spent(row) for row in contestants.values() if _own(row)), default=0.0)
        for name, contestants in by_program.items()
    }
    slowest, body = sorted(spent, key=lambda name: -spent[name]), []
    for name in slowest[:number]:
        peer = by_program[name].get(PEER, {}).get("settled_s")
        for who in CONTESTANTS:
            if who in by_program[name]:
                found = by_program[name][who]
                part = found["settled_s"] / peer if peer and "settled_s" in found and _own(found) else None
                stages = [found.get("stages", {}).get(stage) for stage in STAGES]
                seconds = [found.get("wall_s"), found.get("settled_s")]
                body.append((name, who, *seconds, part, found.get("kernels"), *stages))
    columns: list[Column | str] = [
        "network",
        "compiler",
        Column("first result, wall s", ratio),
        Column("processor s", ratio),
    ]
    columns += [Column("of the peer's", ratio), Column("kernels", count), *(Column(stage, ratio) for stage in STAGES)]
    notes = [f"Compiling: {COMPILERS}. Of the peer's: processor seconds."]
    title = f"The {number} costliest first calls, empty caches, one dynamic compile, one thread"
    return Table.from_rows(title, columns, body, notes)


def _own(row: Mapping[str, Any]) -> bool:
    return row["contestant"] != PEER


def _spent(row: Mapping[str, Any]) -> float:
    spent: float = row.get("settled_s", 0.0)
    return spent


def main() -> None:
    parser = Command(__doc__, "first_calls", lambda found: show(first_call_table(list(found["rows"].values()))), json=True)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a contestant is given up")
    parser.add_argument("--anew", action="store_true", help="also what is on record")
    given = parser.parsed()
    rows = record.read("first_calls")["rows"] if given.json and FIRST_CALLS.exists() else {}
    wanted = [(n, m, c) for n in given.networks for m in given.modes for c in given.contestants]
    left = [key for key in wanted if given.anew or ", ".join(key) not in rows]
    with ThreadPoolExecutor(given.jobs) as pool:
        for key, row in zip(left, pool.map(lambda key: one(key, given.limit), left), strict=True):
            rows[", ".join(key)] = row
            print(json.dumps(row), file=sys.stderr, flush=True)
            if given.json:
                record.add("first_calls", "rows", {", ".join(key): row})
    show(first_call_table(list(rows.values())))


if __name__ == "__main__":
    main()
