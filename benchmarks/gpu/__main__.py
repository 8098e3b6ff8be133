"""`make bench-gpu`, or `python -m benchmarks.gpu [--parts grid host unseen] [--functions ...] [--seconds 420] ...`.

The grid goes on from the cells in OUT/gpu_cells.jsonl, so several runs make one suite; the tables at the end and
OUT/gpu.json are of everything measured so far.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu import ahead, grid, host, unseen
from benchmarks.gpu.functions import BY_NAME, DTYPES, FUNCTIONS, SHAPES, shape_of
from benchmarks.gpu.replay import copy_bandwidth
from benchmarks.gpu.report import report

PARTS = ("ahead", "host", "grid", "unseen")


def main() -> None:
    parser = Command(__doc__, "gpu", report, gpu=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[1:]))
    parser.add_argument("--functions", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--shapes", nargs="+", default=["×".join(map(str, s)) for s in SHAPES], help="as 4096x1024")
    parser.add_argument("--peers", nargs="*", choices=grid.PEERS, default=list(grid.PEERS))
    parser.add_argument("--seconds", type=float, default=420, help="when no new cell is begun")
    parser.add_argument("--unseen-shapes", type=int, default=200)
    parser.add_argument("--unseen-seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--resume", help="cells of an earlier run (gpu_cells.jsonl) to go on from")
    parser.add_argument("--peers-of", type=Path, help="a result file of a device of this name, whose times of the peers to take")
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    began, out = time.monotonic(), Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    cells_file = out / "gpu_cells.jsonl"
    if given.resume and Path(given.resume).resolve() != cells_file.resolve():
        shutil.copyfile(given.resume, cells_file)
    cells = grid.Cells(cells_file)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth()}
    shapes = [shape_of(text) for text in given.shapes]
    functions = [BY_NAME[name] for name in given.functions]
    peers = set(given.peers) if given.peers_of is None else set()
    earlier = grid.Earlier.read(given.peers_of, results["device"]) if given.peers_of is not None else None
    try:
        if "ahead" in given.parts:
            took = ahead.run(functions, given.dtypes, shapes, peers, given.seconds / 2)
            print(f"compiled ahead in {took:.0f} s", flush=True)
        if "host" in given.parts:
            results["host_us"] = host.run()
        if "grid" in given.parts:
            left = given.seconds * (0.8 if "unseen" in given.parts else 1) - (time.monotonic() - began)
            grid.run(functions, given.dtypes, shapes, peers, cells, left)
        if "unseen" in given.parts:
            left = given.seconds - (time.monotonic() - began)
            chosen = [f for f in FUNCTIONS[:4] if f.name in given.functions]
            rows = results["unseen"] = []
            unseen.run(chosen, given.dtypes[0], given.unseen_shapes, left, given.unseen_seed, rows)
    finally:
        results["cells"] = cells.rows
        if earlier is not None:
            results |= {"cells": [earlier.beside(row) for row in cells.rows], "peers_of": earlier.origin}
        path = record.write("gpu", results, out)
        report(results)
        print(f"{path}: {len(cells.rows)} cells, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
