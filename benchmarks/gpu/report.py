"""The tables of a run of the GPU suite."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu import unseen
from benchmarks.gpu.functions import DTYPES
from benchmarks.timing import geomean
from polytile.report import Table, show

LARGE = 32 << 20
"""Bytes from which a cell's bandwidth says something."""


def report(results: dict[str, Any]) -> None:
    """Tables: each cell, and for each function how polytile stands to the others."""
    copy = results["copy_bytes_per_second"]
    if "peers_of" in results:
        then = results["peers_of"]
        rate = then["copy"] / 1e12
        print(f"The peers' times are those of {then['revision']} on a device of the same name (copy {rate:.2f} TB/s).")
    if "host_us" in results:
        show(Table.from_rows("Host time, µs a call", ["what", "µs"], list(results["host_us"].items())))
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
            show(Table.from_rows(f"Kernel time, {dtype}, µs; device copy {copy / 1e12:.2f} TB/s", columns, body, folded=True))
            show(Table.from_rows(f"{dtype}: polytile over the others", SUMMARY, _summaries(rows, copy)))
            columns = ["seconds", "polytile", "peer dynamic", "peer static"]
            show(Table.from_rows(f"{dtype}: compiling (medians)", columns, _compiling(rows)))
    failed = [r for r in results["cells"] if "error" in r or r.get("wrong")]
    for row in failed:
        print(f"{row['function']} {row['dtype']} {row['shape']}: {row.get('error') or row['wrong']}")
    if results.get("unseen"):
        names = [*dict.fromkeys(row["function"] for row in results["unseen"]), "all"]
        body = [
            (name, *unseen.summary([r for r in results["unseen"] if name in (r["function"], "all")])) for name in names
        ]
        columns = ["function", "regimes", "geomean", "95th percentile", "worst"]
        show(Table.from_rows("Shapes without any measurement: the choice's time over the best candidate's", columns, body))


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


__all__ = ["report"]
