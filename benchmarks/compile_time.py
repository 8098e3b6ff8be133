"""Seconds to the first result of the encoder: `python -m benchmarks.compile_time`.

Each compiler runs in processes of its own: a cold one, whose cache directories are empty, and a warm one, which finds
what the cold one left. The first call includes capturing, importing what the compiler imports only then, generating,
compiling and choosing, and ends with the first result. `torch.compile` before it, which imports PyTorch's tracer
whatever the compiler, is counted by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("polytile", "inductor")
MODES = ("inference", "training")
LENGTHS = (128, 300)

CHILD = """
import json, sys, time
begun = time.perf_counter()
import torch
imported = time.perf_counter()
from benchmarks.encoder import encoder
backend, mode, first, second = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = encoder().train(mode == "training")
texts = [torch.randint(0, 256, (1, length)) for length in (first, second)]
started = time.perf_counter()
if backend == "polytile":
    import polytile
function = torch.compile(model.loss if mode == "training" else model, backend=backend, dynamic=True)
seconds = [time.perf_counter() - started]
for tokens in texts:
    with torch.set_grad_enabled(mode == "training"):
        result = function(tokens)
        if mode == "training":
            result.backward()
    seconds.append(time.perf_counter() - started)
setup, first, second = seconds
found = {"import": imported - begun, "setup": setup, "first": first - setup, "second": second - first}
if backend == "polytile":
    from polytile.runtime.compile import compile_log
    found["counters"] = dict(polytile.counters)
    found["compiled"] = [[entry.name, entry.seconds, entry.cached] for entry in compile_log()]
print("RESULT " + json.dumps(found))
"""


def run_child(backend: str, mode: str, caches: Path) -> dict[str, Any]:
    """One process; raises RuntimeError with its last words when it fails."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "POLYTILE_CACHE_DIR": str(caches / "polytile"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    command = [sys.executable, "-c", CHILD, backend, mode, *map(str, LENGTHS)]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    raise RuntimeError(f"{backend} in {mode} ended with status {done.returncode}:\n{done.stderr[-2000:]}")


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the quickest first result: what disturbs a run only ever slows it."""
    return {**min(runs, key=lambda run: run["first"]), "first_of_each": [run["first"] for run in runs]}


def measure(backend: str, mode: str, repeats: int) -> dict[str, dict[str, Any]]:
    """Cold and warm runs in turns, each pair with cache directories of its own."""
    runs: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="compile-time-") as directory:
            for state in runs.values():
                state.append(run_child(backend, mode, Path(directory)))
    return {state: best(found) for state, found in runs.items()}


def first_call_table(results: Mapping[str, Mapping[str, Any]], repeats: int) -> Table:
    columns: list[Column | str] = [
        "mode",
        "compiler",
        Column("`torch.compile` s", ratio),
        Column("first call, cold s", ratio),
        Column("first call, warm s", ratio),
        Column("second length, cold s", ratio),
        Column("first call, times the other", ratio),
    ]
    rows = []
    for mode, compilers in results.items():
        quickest = {name: found["cold"]["first"] for name, found in compilers.items()}
        for name, found in compilers.items():
            other = [seconds for one, seconds in quickest.items() if one != name]
            rows.append(
                (
                    mode,
                    name,
                    found["cold"]["setup"],
                    found["cold"]["first"],
                    found["warm"]["first"],
                    found["cold"]["second"],
                    quickest[name] / other[0] if other else None,
                )
            )
    note = f"First call at {LENGTHS[0]} tokens, second length {LENGTHS[1]}; best of {repeats}."
    return Table.from_rows("First call of the encoder, one dynamic compile", columns, rows, [note])


def work_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """What polytile did in each process: kernels, runs of the C++ compiler, candidates timed."""
    columns: list[Column | str] = [
        "mode",
        "cache",
        Column("kernels", count),
        Column("compiler runs", count),
        Column("compiler s a kernel", ratio),
        Column("slowest s", ratio),
        Column("candidates timed", count),
        Column("store hits", count),
    ]
    rows = []
    for mode, compilers in results.items():
        for state, found in compilers.get("polytile", {}).items():
            seconds = [entry[1] for entry in found["compiled"] if not entry[2]]
            counters = found["counters"]
            rows.append(
                (
                    mode,
                    state,
                    counters["kernels_generated"],
                    counters["compiler_runs"],
                    sum(seconds) / len(seconds) if seconds else None,
                    max(seconds, default=None),
                    counters["candidates_benchmarked"],
                    counters["store_hits"],
                )
            )
    return Table.from_rows("What polytile did for it (both lengths)", columns, rows)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--compilers", nargs="+", default=list(COMPILERS), help="backends to compare")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--repeats", type=int, default=2, help="processes of each kind")
    arguments = parser.parsed()
    results = {
        mode: {name: measure(name, mode, arguments.repeats) for name in arguments.compilers} for mode in arguments.modes
    }
    show(first_call_table(results, arguments.repeats))
    if "polytile" in arguments.compilers:
        show(work_table(results))
    if arguments.json:
        record.write("compile_time", results)


if __name__ == "__main__":
    main()
