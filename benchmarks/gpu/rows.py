"""`python -m benchmarks.gpu.rows "max pool's gradient" buckets [--shortlist 24]`: why programs of the suite take what they take.

For each program of `benchmarks.programs`: what eager's kernels and polytile's take in one call, by torch's profiler, and every
candidate of each of polytile's kernels that was measured, the fastest first, with what was predicted. OUT/gpu_rows.json has all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks import record
from benchmarks.gpu.host_time import kernels
from benchmarks.programs.judge import run
from benchmarks.programs.program import Draw, Program
from benchmarks.programs.suite import PROGRAMS
from polytile.compiler.programs import compiled_programs
from polytile.dispatch.multikernel import MultiKernel

MOST = 12
"""Candidates of a kernel that are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+", help="names of programs, or parts of names")
    parser.add_argument("--shortlist", type=int, default=24, help="candidates of each kernel to measure")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or record.RESULTS))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu.rows needs an NVIDIA GPU; this process sees none.")
    options = {"persist": False, "stall": "tune", "tune": "thorough", "shortlist": given.shortlist, "program_seconds": 60.0}
    found = {}
    for name, program in PROGRAMS.items():
        if any(part in name for part in given.programs):
            found[name] = row(program, options)
            record.write("gpu_rows", {"device": torch.cuda.get_device_name(), "programs": found}, given.out)
    print(given.out / "gpu_rows.json")


def row(program: Program, options: dict[str, Any]) -> dict[str, Any]:
    """What is found of one program, which is printed too."""
    torch._dynamo.reset()
    polytile.reset()
    print(f"\n{program.name}", flush=True)
    with torch.set_grad_enabled(program.training):
        function, inputs = program.make(Draw("cuda"))
        compiled = torch.compile(function, backend="polytile", dynamic=True, options=options)
        times = {}
        for who, call in (("eager", function), ("polytile", compiled)):
            times[who] = timed(program, call, function, inputs)
            total, count, longest = times[who]
            print(f"  {who}: {total:.1f} µs, {count:.0f} kernels", flush=True)
            for kernel, (took, number) in longest.items():
                print(f"    {took:8.1f} µs  {number:4.1f} × {kernel}")
    tried = {k.spec.name: candidates(k) for p in compiled_programs() for k in p.multikernels}
    for kernel, rows in tried.items():
        print(f"  {kernel}")
        for line in rows[:MOST]:
            print(f"    {line}")
    return {"times": times, "candidates": tried}


def timed(program: Program, call: Callable[..., Any], function: Any, inputs: Any) -> tuple[float, float, dict[str, list[float]]]:
    def once() -> None:
        run(program, call, function, inputs)

    for _ in range(3):
        once()
    return kernels(once)


def candidates(kernel: MultiKernel) -> list[str]:
    """What was measured of a kernel's candidates, and what was predicted where a decision knows all of the kernel's sizes: those
    on which no choice depends are not kept."""
    found = []
    for decision in kernel.decisions:
        sizes = dict(decision.sizes)
        found.append(f"{decision.candidate}: {decision.provenance} {sizes}")
        for standing in sorted(decision.standings, key=lambda s: s.seconds if s.seconds == s.seconds else 1.0):
            known = standing.candidate in kernel.names and sizes.keys() >= set(kernel.spec.size_names)
            predicted = f", predicted {kernel.named(standing.candidate).cost(sizes) * 1e6:.2f}" if known else ""
            found.append(f"  {standing.candidate}: {standing.seconds * 1e6:.2f} µs{predicted}")
    return found


if __name__ == "__main__":
    main()
