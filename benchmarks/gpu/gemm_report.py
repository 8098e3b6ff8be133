"""The tables of products on a GPU, from the cells of a result file: what was asked for and found, then each part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import hints, prior_fit
from benchmarks.gpu.candidates import verdict
from benchmarks.gpu.product_cell import COUNTED
from benchmarks.timing import geomean
from polytile.report import Table, show
from polytile.runtime.cuda.device import named

Row = dict[str, Any]

WITHIN = 1.02
FROM_MEMORY = 64 << 20
"""Bytes that move from which operands do not stay in the L2 cache from call to call."""
APART = ("matrix", "pairs", "candidates")
"""Parts with tables of their own."""
TIMES_THE_LIBRARY = {
    "square": 1.0, "llm": 1.0, "long": 1.0, "odd": 1.0, "int8": 1.0, "fp8": 1.0, "pair": 1.0, "prologue": 1.0, "batch": 1.0,
    "rows": 1.0, "epilogue": 1.05, "thin": 1.1,
}  # fmt: skip
"""How many times as fast as the library the geometric mean of a part's cells is to be."""
COPY_SHARE = 0.8
"""The part of a device copy's bandwidth that products of few rows are to reach."""
FIRST, AFTER_THREE, AFTER_THREE_95 = 1.1, 1.03, 1.1
"""What the prior's first, and the best of three measured, may take at sizes never seen, over the best of all."""
MEASURED_ON = named("H100")
"""The device of the candidates' times on which the prior is judged."""


def report(results: Mapping[str, Any]) -> None:
    of_part = {part: [row for row in results["cells"] if row["part"] == part] for part in APART}
    others = [row for row in results["cells"] if row["part"] not in APART]
    timed = [row for row in others if "polytile" in row.get("us", ())]
    copy = results["copy_bytes_per_second"]
    lines = [*_of_parts(timed, copy), *_of_hints(of_part), *_of_the_prior(of_part["candidates"])]
    columns = ["what", "type", "asked for", "found", "cells", ""]
    show(Table.from_rows("what was asked for", columns, [(*line[:-1], "" if line[-1] else "missed") for line in lines]))
    groups = _grouped(timed)
    columns = ["function", "type", "shapes", "geomean", "worst", "within 2 %", "most of copy"]
    body = [(*key, len(rows), *_standing(rows, copy)) for key, rows in groups.items()]
    show(Table.from_rows("polytile's kernel time over the best of the others", columns, body))
    _show_tuning(groups)
    if of_part["matrix"]:
        hints.show_matrix(of_part["matrix"])
    if of_part["pairs"]:
        hints.show_pairs(of_part["pairs"])
    for (function, dtype), own in _grouped(of_part["candidates"]).items():
        told = f"the prior as it was then, {function.removeprefix('candidates: ')}, {dtype}"
        print(f"{told}, against the best of the candidates timed: {verdict(own)}")
    for row in others:
        if row.get("error") or row.get("wrong"):
            print(f"{row['function']} {row['dtype']} {row['shape']}: {row.get('error') or row['wrong']}")
    ratios = [row["us"]["polytile"] / row["us"]["library"] for row in timed if "library" in row["us"]]
    if ratios:
        print(f"all: {len(ratios)} cells, geomean {geomean(ratios):.3f} of the library")


# what was asked for: (what, type, asked for, found, cells, whether that is enough) ---------------------------------------

Line = tuple[str, str, str, str, int, bool]


def _of_parts(timed: Sequence[Row], copy: float) -> Iterable[Line]:
    groups = _grouped([row for row in timed if "library" in row["us"]], "part")
    for (part, dtype), rows in groups.items():
        if part not in TIMES_THE_LIBRARY:
            continue
        least, times = TIMES_THE_LIBRARY[part], [row["us"]["library"] / row["us"]["polytile"] for row in rows]
        found = geomean(times)
        yield f"{part}: times the library's speed", dtype, f"≥ {least:.2f}", f"{found:.3f}", len(rows), found >= least
        near = sum(time >= 1 / WITHIN for time in times)
        yield f"{part}: within 2 % of the library", dtype, "all", f"{near / len(rows):.0%}", len(rows), near == len(rows)
        large = [_of_copy(row, copy) for row in rows if row["bytes"] >= FROM_MEMORY]
        if part == "thin" and large:
            enough = min(large) >= COPY_SHARE
            yield "thin: least of a copy's bandwidth", dtype, f"≥ {COPY_SHARE:.0%}", f"{min(large):.0%}", len(large), enough
    for (_, dtype), rows in _grouped([row for row in timed if "peer" in row["us"]], "part").items():
        over = [row["us"]["polytile"] / min(row["us"]["peer"], row["us"].get("library", math.inf)) for row in rows]
        told = f"{sum(ratio <= WITHIN for ratio in over) / len(over):.0%}, worst {max(over):.2f}"
        yield "within 2 % of the library and the peer for that shape", dtype, "all", told, len(rows), max(over) <= WITHIN


def _of_hints(of_part: Mapping[str, Sequence[Row]]) -> Iterable[Line]:
    for dtype, over in hints.worst_of_columns(of_part["matrix"]).items():
        enough = max(over.values()) <= WITHIN
        yield "hint × size: worst cell over its column's best", dtype, "≤ 1.02", f"{max(over.values()):.3f}", len(over), enough
    for dtype in dict.fromkeys(row["dtype"] for row in of_part["pairs"]):
        found = hints.speedups(of_part["pairs"], dtype, own=False)
        if found:
            mean = sum(found) / len(found) - 1
            asked = f"≥ {hints.ASKED:.2%}"
            yield "average speedup over a single hint", dtype, asked, f"{mean:.1%}", len(found), mean >= hints.ASKED


def _of_the_prior(measured: Sequence[Row]) -> Iterable[Line]:
    """The prior as it is now, against the best of all generated candidates at random sizes. Its constants were chosen on them:
    prior_fit says what they are worth held out."""
    for (function, dtype), rows in _grouped(measured).items():
        found = prior_fit.shapes(rows, MEASURED_ON)
        judged = prior_fit.verdict([shape.best_of_shortlists(prior_fit.FITTED, MEASURED_ON) for shape in found])
        for what, most, value in (
            ("the prior's first, geomean", FIRST, judged.geomean[0]),
            ("the best of three measured, geomean", AFTER_THREE, judged.geomean[1]),
            ("the best of three measured, 95 %", AFTER_THREE_95, judged.p95[1]),
        ):
            of = f"unseen sizes, {function.removeprefix('candidates: ')}: {what}"
            yield of, dtype, f"≤ {most:.2f}", f"{value:.3f}", len(found), value <= most


# the tables of parts ------------------------------------------------------------------------------------------------------


def _grouped(rows: Sequence[Row], by: str = "function") -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[by], row["dtype"]), []).append(row)
    return groups


def _of_copy(row: Row, copy: float) -> float:
    """What a cell moves in its time over what a device copy moves."""
    return row["bytes"] / row["us"]["polytile"] * 1e6 / copy


def _standing(rows: Sequence[Row], copy: float) -> tuple[str, ...]:
    """Geomean, worst, share of cells within 2 %, and most of a copy's bandwidth."""
    over = [row["us"]["polytile"] / min(us for name, us in row["us"].items() if name != "polytile") for row in rows]
    where = "×".join(map(str, rows[over.index(max(over))]["shape"]))
    near = sum(ratio <= WITHIN for ratio in over) / len(over)
    most = max(_of_copy(row, copy) for row in rows)
    return f"{geomean(over):.3f}", f"{max(over):.2f} at {where}", f"{near:.0%}", f"{most:.0%}"


def _show_tuning(groups: Mapping[tuple[str, str], Sequence[Row]]) -> None:
    body = []
    for key, rows in groups.items():
        told = [row for row in rows if "first_call_s" in row]
        counts = [str(sum(row[name] for row in told if name in row)) for name in COUNTED]
        spent = [f"{sum(row.get(name, 0.0) for row in told):.1f}" for name in ("first_call_s", "peer_first_call_s")]
        if told:
            body.append((*key, len(told), *counts, *spent))
    columns = ["function", "type", "shapes", "compiled", "candidates timed", "s of first calls", "s of the peer's"]
    show(Table.from_rows("what tuning took", columns, body, folded=True))


__all__ = ["report"]
