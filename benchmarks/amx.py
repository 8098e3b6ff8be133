"""Products of bfloat16 and int8 by AMX, by vectors alone, and by eager, which has AMX: `python -m benchmarks.amx --json`.

One dynamic compile for each weight, type, layout and number of threads, as in `benchmarks.matmul`, whose cells these are; then
the same with a polytile that is told that the processor has no AMX: what it chooses is "vectors". Each is timed in turns with
eager, so that both are given as eager's time over theirs. One weight has an odd K and an N that 16 does not divide. Results are
written weight by weight, in place of earlier ones for the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from benchmarks import matmul, record
from benchmarks.command import Command
from benchmarks.matmul import CONSTANT, Cell
from benchmarks.timing import disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import cpu

ROWS = (1, 2, 16, 33, 128, 512)
WEIGHTS = ((1024, 1024), (1001, 1030), (4096, 1024), (1024, 4096))
"""(K, N)."""
DTYPES = ("bfloat16", "int8")
WITH, WITHOUT = "amx", "vectors"


@contextmanager
def no_tiles() -> Iterator[None]:
    """A processor without AMX, as far as polytile knows."""
    here = cpu.cpu()
    without = replace(here, flags=tuple(flag for flag in here.flags if not flag.startswith("amx_")))
    with mock.patch.object(cpu, "cpu", lambda: without):
        yield


def table(dtype: str, layout: str, threads: int, cells: Sequence[Cell], without: Sequence[Cell]) -> Table:
    """Eager's time over that of the choice with AMX and, where they were measured, of the choice without."""
    rows = sorted({cell.m for cell in cells})
    body: list[tuple[Any, ...]] = []
    for name, group in ((WITH, cells), (WITHOUT, without)):
        found = {(cell.k, cell.n, cell.m): cell.ratio for cell in group}
        body += [(f"{k}×{n}", name, *(found.get((k, n, m)) for m in rows)) for k, n in WEIGHTS if (k, n, rows[0]) in found]
    columns: list[Column | str] = ["K×N", "kernels", *(Column(f"M={m}", ratio) for m in rows)]
    ratios = [cell.ratio for cell in cells]
    notes = [f"With AMX: geomean {geomean(ratios):.2f}, least {min(ratios):.2f}.", disturbance(cell.direct for cell in cells)]
    return Table.from_rows(f"eager over polytile, {dtype}, weights {layout}, {threads} threads", columns, body, notes)


def as_json(cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        cell.name: {"ratio": round(cell.ratio, 4), "candidates": list(cell.decisions), **cell.direct.as_json()} for cell in cells
    }


def show_results(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """One table of all cells on record."""
    ratios = {name: (cell["ratio"], results[WITHOUT].get(name, {}).get("ratio")) for name, cell in results[WITH].items()}
    rows = [(name, *pair) for name, pair in ratios.items()]
    note = f"With AMX: geomean {geomean([pair[0] for pair in ratios.values()]):.2f}."
    columns: list[Column | str] = ["product", Column("with AMX", ratio), Column("without", ratio)]
    show(Table.from_rows("eager's time over polytile's", columns, rows, [note]))


def main() -> None:
    parser = Command(__doc__, "amx", show_results, json=True)
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--layouts", nargs="*", choices=list(matmul.LAYOUTS), default=[CONSTANT])
    parser.add_argument("--threads", nargs="*", type=int, default=sorted({1, torch.get_num_threads()}))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--weights", nargs="*", type=matmul.size_of, default=list(WEIGHTS), help="K and N, such as 4096x1024")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long to measure each cell")
    given = parser.parsed()
    if not any(flag.startswith("amx_") for flag in cpu.cpu().flags):
        raise SystemExit("This process may not use AMX: the processor has none, or the system denies it.")
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):
        for dtype in given.dtypes:
            for layout in given.layouts:
                for threads in given.threads:
                    found: dict[str, list[Cell]] = {WITH: [], WITHOUT: []}
                    for weight in given.weights:
                        found[WITH] += matmul.run(dtype, layout, threads, given.rows, [weight], given.seconds)
                        with no_tiles():
                            found[WITHOUT] += matmul.run(dtype, layout, threads, given.rows, [weight], given.seconds)
                        for name, cells in found.items() if given.json else ():
                            record.add("amx", name, as_json(cells))
                    show(table(dtype, layout, threads, found[WITH], found[WITHOUT]))


if __name__ == "__main__":
    main()
