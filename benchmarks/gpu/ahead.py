"""Compiles ahead what the grid is going to time: the peer's kernels of every shape, and the candidates that polytile tries there.

One process a function, all at once, into the caches that the grid's own process then finds. What these processes measure while
they share the GPU is thrown away: polytile's measurements go to a store of their own, and the peer keeps no choices among its
configs (grid.PEER), so that the grid's process makes both anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import polytile
from benchmarks.command import Command
from benchmarks.gpu import grid
from benchmarks.gpu.functions import BY_NAME, DTYPES, TRACED, Function, Shape
from benchmarks.gpu.product_cell import first_call

WORKERS = 2
"""Compilers of each process, of either kind."""


def run(functions: list[Function], dtypes: list[str], shapes: list[Shape], peers: set[str], seconds: float) -> float:
    """Waits for all processes, `seconds` at most, and returns how long that took; what is not compiled by then the grid
    compiles."""
    began = time.monotonic()
    texts = ["x".join(map(str, shape)) for shape in shapes]
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, name.name, "--dtypes", *dtypes, "--shapes", *texts, "--peers", *sorted(peers)],
                env={
                    **os.environ,
                    "POLYTILE_STORE": str(Path(folder) / f"{name.name}.sqlite"),
                    "POLYTILE_COMPILE_WORKERS": str(WORKERS),
                    "TORCHINDUCTOR_COMPILE_THREADS": str(WORKERS),
                },
            )
            for name in functions
        ]
        for process in running:
            try:
                process.wait(max(0.0, seconds - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return time.monotonic() - began


def compile_all(function: Function, dtypes: list[str], shapes: list[Shape], peers: set[str]) -> None:
    for dtype in dtypes:
        compiled = grid.fresh(function, peers)
        for shape in (TRACED, *[shape for shape in shapes if shape != TRACED and shape[0] >= function.rows]):
            args = function.make(shape, DTYPES[dtype])
            calls = {**compiled, **(grid.fixed(function) if "static" in peers else {})}
            for name, call in calls.items():
                try:
                    first_call(call, args)
                except Exception as error:
                    print(f"ahead: {name} {function.name} {dtype} {shape}: {type(error).__name__}: {error}", flush=True)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("function", choices=list(BY_NAME))
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES))
    parser.add_argument("--shapes", nargs="+", required=True)
    parser.add_argument("--peers", nargs="*", default=[])
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    shapes = [(int(m), int(n)) for m, n in (text.split("x") for text in given.shapes)]
    try:
        compile_all(BY_NAME[given.function], given.dtypes, shapes, set(given.peers))
    finally:
        polytile.reset()


if __name__ == "__main__":
    main()
