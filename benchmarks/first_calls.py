"""Where the seconds of a network's first call go: `python -m benchmarks.first_calls`.

Each call is in a process of its own, whose cache directories are empty, and ends with the first result. In training it is a
forward and a backward pass. Processor seconds include those of the compilers that the process has started; other work on the
machine lengthens them less than the wall's. For polytile the wall's are shown by stage (polytile.counters).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.networks import NETWORKS
from polytile.counters import STAGES
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("polytile", "inductor")
MODES = ("inference", "training")

CHILD = """
import json, resource, sys, time
import torch
from benchmarks.networks import NETWORKS
backend, name, mode, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(threads)
torch.manual_seed(0)
network, inputs = NETWORKS[name]()
network.train(mode == "training")
if backend == "polytile":
    import polytile
function = torch.compile(network, backend=backend, dynamic=True)

def call():
    with torch.set_grad_enabled(mode == "training"):
        result = function(*inputs)
        if mode == "training":
            result.sum().backward()

def spent():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

begun, before = time.perf_counter(), spent()
call()
found = {"wall": time.perf_counter() - begun, "processor": spent() - before}
if backend == "polytile":
    counters = dict(polytile.counters)
    found |= {"stages": counters.pop("seconds"), "counters": counters}
print("RESULT " + json.dumps(found))
"""


def run_child(backend: str, name: str, mode: str, threads: int, limit: float) -> dict[str, Any]:
    """One process; a result without seconds, and its last words, where it fails or takes longer than `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="first-calls-") as caches:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "POLYTILE_CACHE_DIR": f"{caches}/polytile",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        command = [sys.executable, "-c", CHILD, backend, name, mode, str(threads)]
        try:
            done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {limit:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    return {"failed": done.stderr[-2000:]}


def first_call_table(results: Mapping[str, Mapping[str, Any]], compilers: list[str]) -> Table:
    columns: list[Column | str] = ["network"]
    columns += [Column(f"{name}, {what} s", ratio) for name in compilers for what in ("processor", "wall")]
    columns.append(Column("of the other's processor s", ratio))
    rows = []
    for what, found in results.items():
        seconds = [found[name].get(kind) for name in compilers for kind in ("processor", "wall")]
        both = len(compilers) == 2 and seconds[0] is not None and seconds[2] is not None
        rows.append((what, *seconds, seconds[0] / seconds[2] if both else None))
    return Table.from_rows("First calls, empty caches, one dynamic compile", columns, rows)


def stage_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """What the wall's time of polytile's first calls was: what is left is Dynamo's, and the call itself."""
    columns: list[Column | str] = ["network", *[Column(stage, ratio) for stage in STAGES], Column("the rest", ratio)]
    columns += [Column("kernels", count), Column("timed", count)]
    rows = []
    for what, compilers in results.items():
        found = compilers["polytile"]
        if "stages" in found:
            stages, counters = found["stages"], found["counters"]
            rest = found["wall"] - sum(stages.values())
            numbers = counters["kernels_generated"], counters["candidates_benchmarked"]
            rows.append((what, *[stages[stage] for stage in STAGES], rest, *numbers))
    return Table.from_rows("Where polytile's went, wall s", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--compilers", nargs="+", default=list(COMPILERS), help="backends to compare")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a call is given up")
    parser.add_argument("--json", action="store_true", help="also write benchmarks/results/first_calls.json")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for name in arguments.networks:
        for mode in arguments.modes:
            found = {c: run_child(c, name, mode, arguments.threads, arguments.limit) for c in arguments.compilers}
            results[f"{name}, {mode}"] = found
            for compiler, one in found.items():
                print(f"{name}, {mode}, {compiler}: {one.get('failed') or json.dumps(one)}", file=sys.stderr, flush=True)
    show(first_call_table(results, arguments.compilers))
    if "polytile" in arguments.compilers:
        show(stage_table(results))
    if arguments.json:
        record.write("first_calls", results)


if __name__ == "__main__":
    main()
