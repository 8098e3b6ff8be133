"""`make bench-gpu`, or `python -m benchmarks.gpu [--parts grid host unseen] [--functions ...] [--seconds 420] ...`.

The grid goes on from the cells in OUT/gpu_cells.jsonl, so several runs make one suite; the tables at the end and
OUT/gpu.json are of everything measured so far.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.gpu import grid, host, unseen
from benchmarks.gpu.functions import BY_NAME, DTYPES, FUNCTIONS, SHAPES
from benchmarks.gpu.replay import copy_bandwidth
from benchmarks.timing import geomean
from polytile.report import Table, show

PARTS = ("host", "grid", "unseen")
LARGE = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--functions", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--shapes", nargs="+", default=["×".join(map(str, s)) for s in SHAPES], help="as 4096x1024")
    parser.add_argument("--peers", nargs="*", choices=["dynamic", "static"], default=["dynamic", "static"])
    parser.add_argument("--seconds", type=float, default=420, help="when no new cell is begun")
    parser.add_argument("--unseen-shapes", type=int, default=200)
    parser.add_argument("--out", default=os.environ.get("OUT") or str(record.RESULTS))
    parser.add_argument("--resume", help="cells of an earlier run (gpu_cells.jsonl) to go on from")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu needs an NVIDIA GPU; this process sees none.")
    torch._dynamo.config.recompile_limit = 64
    began, out = time.monotonic(), Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    cells_file = out / "gpu_cells.jsonl"
    if given.resume and Path(given.resume).resolve() != cells_file.resolve():
        shutil.copyfile(given.resume, cells_file)
    cells = grid.Cells(cells_file)
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "copy_bytes_per_second": copy_bandwidth()}
    try:
        if "host" in given.parts:
            results["host_us"] = host.run()
            show(Table.of("host time, µs", ["what", "µs"], list(results["host_us"].items())))
        if "grid" in given.parts:
            shapes = [_shape(text) for text in given.shapes]
            functions = [BY_NAME[name] for name in given.functions]
            left = given.seconds * (0.8 if "unseen" in given.parts else 1) - (time.monotonic() - began)
            grid.run(functions, given.dtypes, shapes, set(given.peers), cells, left)
        if "unseen" in given.parts:
            left = given.seconds - (time.monotonic() - began)
            chosen = [f for f in FUNCTIONS[:4] if f.name in given.functions]
            results["unseen"] = unseen.run(chosen, given.dtypes[0], given.unseen_shapes, left)
    finally:
        results["cells"] = cells.rows
        path = record.write("gpu", results, out)
        report(results)
        print(f"{path}: {len(cells.rows)} cells, {time.monotonic() - began:.0f} s")


def _shape(text: str) -> tuple[int, int]:
    m, n = text.replace("×", "x").split("x")
    return int(m), int(n)


def report(results: dict[str, Any]) -> None:
    """Tables: each cell, and for each function how polytile stands to the others."""
    copy = results["copy_bytes_per_second"]
    for dtype in DTYPES:
        rows = [r for r in results["cells"] if r["dtype"] == dtype and "us" in r and "polytile" in r["us"]]
        body = []
        for row in rows:
            us = row["us"]
            share = row["bytes"] / (us["polytile"] * 1e-6) / copy
            times = [f"{us[name]:.1f}" if name in us else "" for name in ("eager", "polytile", "dynamic", "static")]
            over = f"{us['polytile'] / us['static']:.2f}" if "static" in us else ""
            flags = " ".join(["WRONG"] * bool(row["wrong"]) + ["slower than eager"] * (us["polytile"] > us["eager"]))
            body.append((row["function"], "×".join(map(str, row["shape"])), *times, over, f"{share:.2f}", flags))
        if body:
            columns = ["function", "shape", "eager", "polytile", "dynamic", "static", "over static", "of copy", ""]
            show(Table.of(f"kernel time, {dtype}, µs; device copy {copy / 1e12:.2f} TB/s", columns, body))
            show(Table.of(f"{dtype}: polytile over the others", SUMMARY, _summaries(rows, copy)))
            columns = ["seconds", "polytile", "peer dynamic", "peer static"]
            show(Table.of(f"{dtype}: compiling (medians)", columns, _compiling(rows)))
    failed = [r for r in results["cells"] if "error" in r or r.get("wrong")]
    for row in failed:
        print(f"{row['function']} {row['dtype']} {row['shape']}: {row.get('error') or row['wrong']}")
    for name in dict.fromkeys(row["function"] for row in results.get("unseen", [])):
        print(f"unseen {name}: {unseen.summary([r for r in results['unseen'] if r['function'] == name])}")
    if results.get("unseen"):
        print(f"unseen, all: {unseen.summary(results['unseen'])}")


SUMMARY = ["function", "cells", "static: geomean", "worst", "above 1.1", "dynamic: geomean", "eager: geomean", "worst",
           "least of copy where 32 MB move"]  # fmt: skip


def _summaries(rows: list[dict[str, Any]], copy: float) -> list[tuple[Any, ...]]:
    """One row a function and one for all, after SUMMARY: polytile's time over that of the others."""
    found = []
    for name in [*dict.fromkeys(row["function"] for row in rows), "all"]:
        own = [row for row in rows if name in (row["function"], "all")]
        static, dynamic, eager = (_ratios(own, base) for base in ("static", "dynamic", "eager"))
        large = [r["bytes"] / (r["us"]["polytile"] * 1e-6) / copy for r in own if r["bytes"] >= LARGE]
        above = str(sum(ratio > 1.1 for ratio in static)) if static else ""
        cells = [_mean(static), _worst(static), above, _mean(dynamic), _mean(eager), _worst(eager)]
        found.append((name, len(own), *cells, f"{min(large):.2f}" if large else ""))
    return found


def _compiling(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Medians over the functions' first calls and over the first calls at each shape, compiling and tuning included."""
    firsts = list({row["function"]: row["first_call_s"] for row in rows}.values())
    shapes = [row["first_call_at_shape_s"] for row in rows]
    body = []
    for title, measured in (("first call", firsts), ("first call at a shape", shapes)):
        values = [[m[name] for m in measured if name in m] for name in ("polytile", "dynamic", "static")]
        body.append((title, *(f"{statistics.median(v):.2f}" if v else "" for v in values)))
    return body


def _ratios(rows: list[dict[str, Any]], base: str) -> list[float]:
    return [row["us"]["polytile"] / row["us"][base] for row in rows if base in row["us"]]


def _mean(ratios: list[float]) -> str:
    return f"{geomean(ratios):.2f}" if ratios else ""


def _worst(ratios: list[float]) -> str:
    return f"{max(ratios):.2f}" if ratios else ""


if __name__ == "__main__":
    main()
