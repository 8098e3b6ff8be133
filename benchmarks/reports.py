"""Reports on recorded times, as files that open in a browser: `python -m benchmarks.reports`. Needs no GPU.

The stores that the times were taken with were not kept. What benchmarks wrote of them was: the time of each candidate at each
size, without its samples. So these reports have no standard errors and no sources, and their ties are those within 5 %. `--show`
prints what is in them, for docs/report.md.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import record, recorded_products
from benchmarks.command import Command
from benchmarks.gpu.products import DTYPES
from benchmarks.recorded_products import machine_of
from polytile.ir.printer import type_name
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.report import Column, Table, show
from polytile.report.contents import Held, Report, Source, report
from polytile.report.html import page
from polytile.report.slowdown import single
from polytile.report.tables import count, ratio
from polytile.runtime.cuda.device import named
from polytile.store import transfer
from polytile.store.reading import Record

FOLDER = record.RESULTS / "reports"
ORIGINS = {"aten": "library", "cublaslt": "library", "cutlass": "cutlass"}
"""By the first word of a candidate's name; the others are generated."""


def h200() -> list[Record]:
    """Products of four kinds at 53 sizes (benchmarks.gpu.cutlass): ATen's, cuBLASLt's, CUTLASS's and generated kernels."""
    found = _file("gpu_cutlass")
    machine, taken = machine_of(named("H200")), _taken(found)
    return [
        Record(f"{part['name']} {part['dtype']} {number} {name}", taken, _product(part, cell, name, us, machine))
        for part in found["results"]["parts"] for number, cell in enumerate(part["times"]) for name, us in cell["us"].items()
    ]  # fmt: skip


def _product(
    part: dict[str, Any], cell: dict[str, Any], name: str, us: float, machine: tuple[tuple[str, str], ...]
) -> Measurement:
    sizes = tuple(zip("MNK", cell["shape"], strict=True))
    kernel = f"{part['name']} {part['dtype']}"
    problem = Problem("mm", kernel, sizes, (type_name(DTYPES[part["dtype"]]),) * 3, (), "cuda-recorded-H200")
    predicted = cell["predicted_us"].get(name)
    return Measurement(
        problem, name, Config(), "recorded", Outcome.OK, (us * 1e-6,), environment=(("torch", "2.11.0+cu130"),),
        origin=ORIGINS.get(name.split()[0], "triton"), predicted=None if predicted is None else predicted * 1e-6, machine=machine,
    )  # fmt: skip


def h100() -> list[Record]:
    """Every generated config of 254 products (part `candidates` of benchmarks.gpu.gemm)."""
    taken = _taken(_file("gpu_gemm"))
    found = recorded_products.h100("candidates")
    return [Record(r.uid, taken, replace(r.measurement, samples=r.measurement.samples[:1], state=())) for r in found]


def cpu() -> list[Record]:
    """Every candidate of a softmax at eight sizes and of a product at six, on two busy cores (tests/tuning/matrix.jsonl)."""
    return list(transfer.parsed(Path(__file__).parents[1] / "tests" / "tuning" / "matrix.jsonl").records)


REPORTS: dict[str, Callable[[], list[Record]]] = {"h200": h200, "h100": h100, "cpu": cpu}


def made(name: str) -> Report:
    """The report of that name, as if made when its times were taken."""
    records = REPORTS[name]()
    held = Held(Source(f"{name}.jsonl", exported=True), records)
    return report(held, None, _named, records[-1].taken_at, f"python -m benchmarks.reports --of {name}")


def _named(problem: Problem) -> str:
    return problem.kernel if problem.device.startswith("cuda-recorded") else f"{problem.family}_{problem.kernel[:8]}"


def _file(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((record.RESULTS / f"{name}.json").read_text())
    return content


def _taken(found: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(found["environment"]["date"]).timestamp()


def table(reports: dict[str, Report]) -> Table:
    """A line for each kernel of each report: whose candidates win, and what one candidate for all sizes would cost."""
    columns: list[Column | str] = [
        "report", "kernel", Column("sizes", count), Column("candidates", count), "chosen, by source", "one for all sizes",
        Column("× fastest", ratio), Column("at worst", ratio),
    ]  # fmt: skip
    rows = [row for name, each in reports.items() for row in _rows(name, each)]
    return Table.from_rows("What the recorded times show", columns, rows)


def _rows(name: str, found: Report) -> Iterator[tuple[Any, ...]]:
    for panel, curves in zip(found.panels, found.curves, strict=True):
        winners = [cell.winner.origin for cell in panel.cells if cell.winner is not None]
        said = ", ".join(f"{winners.count(origin)} {origin}" for origin in sorted(set(winners), key=winners.count, reverse=True))
        one = single(curves)
        cost = (one.candidate, one.geomean, one.worst[0]) if one is not None else (None, None, None)
        link = f"[{name}](../benchmarks/results/reports/{name}.html)"
        yield link, panel.name, len(panel.cells), len(panel.candidates), said, *cost


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("--of", nargs="+", choices=list(REPORTS), default=list(REPORTS))
    parser.add_argument("--show", action="store_true", help="print what is in them, and write nothing")
    given = parser.parsed()
    reports = {name: made(name) for name in given.of}
    if given.show:
        show(table(reports))
        return
    FOLDER.mkdir(exist_ok=True)
    for name, each in reports.items():
        target = FOLDER / f"{name}.html"
        target.write_text(page(each))
        print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
