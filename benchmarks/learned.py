"""`python -m benchmarks.learned [--json]`: learned choice on matrices that are recorded in this directory, of which every
candidate was measured: generated products on an H100 (part `candidates` of benchmarks.gpu.gemm), held out by their sizes.

Needs scikit-learn and no GPU. `--export FILE` writes the measurements as `polytile learn train` reads them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gpu.prior_fit import KINDS, ROW_BY_ROW
from polytile.candidates.triton_matmul import label
from polytile.cli.learn_report import times
from polytile.cost.triton_matmul import Access, Accesses, cost, refused, terms
from polytile.learn.examples import examples
from polytile.learn.score import cases, tried
from polytile.learn.train import held_out
from polytile.matmul.triton.configs import Kind, space
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.report import Column, Table, show
from polytile.report.tables import count
from polytile.runtime.cuda.device import DeviceFacts, named
from polytile.store.jsonl import header, line
from polytile.store.reading import Record
from polytile.tuning.run_conditions import TERM

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "int8": "int8", "fp8": "float8_e4m3fn"}
MEMORY = {"memory_clock": "2619000000.0", "memory_bus_bits": "5120"}
"""Of the H100 with HBM3, as its driver tells."""


def recorded(path: Path) -> Iterator[Record]:
    """The measurements of products in the file, with today's predictions."""
    found = json.loads(path.read_text())["results"]
    device = named(found["device"])
    for number, row in enumerate(found["cells"]):
        if row.get("part") == "candidates":
            yield from _records(row, device, number)


def _records(row: dict[str, Any], device: DeviceFacts, number: int) -> Iterator[Record]:
    kind, (m, n, k) = KINDS[row["dtype"]], row["shape"]
    by_rows = row["function"].removeprefix("candidates: ") in ROW_BY_ROW
    accesses = Access(bool(k % 16), True), Access(bool(n % 16)) if by_rows else Access(bool(k % 16), True)
    size = {"batch": row.get("batch") or 1, "M": m, "N": n, "K": k}
    dtype = DTYPES[row["dtype"]]
    name, place = f"{row['function']} {row['dtype']}", f"cuda-recorded-{device.name}"
    problem = Problem("mm", name, tuple(size.items()), (dtype,) * 3, (), place)
    configs = {label(config): config for config in space(kind, device).configs}
    for name, us in row["us"].items():
        config = configs.get(name)
        if config is not None and not refused(kind, config, size, device, accesses):
            found = _measurement(problem, name, config, us, (kind, size, device, accesses))
            yield Record(f"{number}-{name}", float(number), found)


def _measurement(
    problem: Problem, name: str, config: Config, us: float, about: tuple[Kind, dict[str, int], DeviceFacts, Accesses]
) -> Measurement:
    kind, size, device, accesses = about
    parts = {**_work(kind, size, accesses), **terms(kind, config, size, device, accesses)}
    return Measurement(
        problem, name, config, "recorded", Outcome.OK, (us * 1e-6,) * 5, origin="triton",
        predicted=cost(kind, config, size, device, accesses),
        state=tuple(sorted((TERM + part, float(f"{value:.4g}")) for part, value in parts.items())),
        machine=machine_of(device),
    )  # fmt: skip


def machine_of(device: DeviceFacts) -> tuple[tuple[str, str], ...]:
    """What the store would hold of the device."""
    facts = {name: str(value) for name, value in dataclasses.asdict(device).items()}
    return tuple(sorted({**facts, **MEMORY, "kind": "cuda"}.items()))


def _work(kind: Kind, size: dict[str, int], accesses: Accesses) -> dict[str, float]:
    """What candidates/product_terms.py says of such a product: no epilogue, prologue or second product."""
    a, b = accesses
    return {
        **{f"work.{name}": float(value) for name, value in size.items()},
        "work.itemsize": float(kind.itemsize), "work.tf32": float(kind.tf32), "work.packed": 0.0,
        "work.a_along_k": float(a.along_k), "work.b_along_k": float(b.along_k), "work.a_alone": float(a.alone),
        "work.b_alone": float(b.alone), "work.epilogue": 0.0, "work.prologue": 0.0, "work.second": 0.0,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/learned.json")
    parser.add_argument("--export", type=Path, help="write the measurements as JSON lines and stop")
    arguments = parser.parse_args()
    records = list(recorded(record.RESULTS / "gpu_gemm.json"))
    if arguments.export:
        arguments.export.write_text(header() + "".join(map(line, records)))
        return
    results = {}
    for (family, architecture), chosen in examples(records).families().items():
        found = [case for model, held in held_out(chosen) for case in cases(model, held)]
        results[f"{family} on {architecture}, held out by size"] = dataclasses.asdict(tried("held out", found))
    columns: list[Column | str] = ["examples", *[Column(name, count) for name in ("problems", "answered", "wrong", "far")]]
    columns += [Column(name, times) for name in RATIOS]
    rows = []
    for name, r in results.items():
        counts = r["total"], r["total"] - r["unsure"], r["wrong"], r["far"]
        rows.append((name, *counts, *[r[each] for each in RATIOS]))
    show(Table.from_rows("Learned choice on what is recorded", columns, rows))
    if arguments.json:
        record.write("learned", results)


RATIOS = ("answered", "max_wrong_speedup", "regret", "p95", "top3", "top3_p95", "prior", "prior_p95", "prior_top3")

if __name__ == "__main__":
    main()
