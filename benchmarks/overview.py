"""What the committed results come to, a line each: `python -m benchmarks.overview`. It measures nothing.

A ratio is another compiler's time over polytile's, as a geometric mean over all cells of a suite, and the least cell.
TorchInductor has one dynamic compile, as polytile has, unless it says otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import record
from benchmarks.timing import geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio

Read = Callable[[Any], Iterable[Mapping[str, float]]]
"""A suite's results → the time of each cell by who took it, "polytile" among them."""


@dataclass(frozen=True)
class Line:
    """A row: what was run, in which suite's results it stands, how to read them, and the module that measured."""

    what: str
    suite: str
    cells: Read
    module: str


def _seconds(timings: Mapping[str, Any]) -> dict[str, float]:
    return {who: one["seconds"] for who, one in timings.items()}


def _encoder(mode: str) -> Read:
    def read(results: Any) -> Iterable[Mapping[str, float]]:
        for cell in results[mode]["lengths"].values():
            seconds = _seconds(cell["timings"])
            yield {"eager": seconds["eager"], "polytile": seconds["compiled"]}

    return read


def _loops(results: Any) -> Iterable[Mapping[str, float]]:
    shapes = (shape for function in results["suite"].values() for shape in function.values())
    return (_seconds(shape["without_dynamo"]["timings"]) for shape in shapes)


def _models(mode: str) -> Read:
    return lambda results: (_seconds(cell["timings"]) for name, cell in results["cells"].items() if f" {mode} " in name)


def _matmul(kind: str) -> Read:
    return lambda results: (
        _seconds(cell["timings"]) for name, cell in results["cells"].items() if name.startswith(f"{kind} ")
    )


def _grid(dtype: str) -> Read:
    def read(results: Any) -> Iterable[Mapping[str, float]]:
        for cell in results["cells"]:
            if cell["wrong"]:
                raise ValueError(f"a time of a wrong result: {cell['function']} of {cell['shape']}, {cell['wrong']}")
            if cell["dtype"] == dtype:
                yield cell["us"]

    return read


def _products(*parts: str) -> Read:
    return lambda results: (
        {**cell["us"], "eager": cell["us"]["library"]}
        for cell in results["cells"]
        if cell["part"] in parts and "library" in cell["us"]
    )


ON_CPU = (
    Line("encoder, inference", "demo_encoder", _encoder("inference"), "benchmarks.demo"),
    Line("encoder, training", "demo_encoder", _encoder("training"), "benchmarks.demo"),
    Line("models, inference", "models", _models("inference"), "benchmarks.models"),
    Line("models, training", "models", _models("training"), "benchmarks.models"),
    Line("fused loops, float32", "loops", _loops, "benchmarks.loops"),
    Line("products by constant weights, float32", "matmul", _matmul("float32 constant t2"), "benchmarks.matmul"),
    Line("other products, float32", "matmul", _matmul("float32 row-major t2"), "benchmarks.matmul"),
)
ON_GPU = (
    Line("fused loops, bfloat16", "gpu", _grid("bf16"), "benchmarks.gpu"),
    Line("fused loops, float32", "gpu", _grid("fp32"), "benchmarks.gpu"),
    Line("products", "gpu_gemm", _products("square", "llm"), "benchmarks.gpu.gemm"),
    Line("products of 1 to 16 rows", "gpu_gemm", _products("thin"), "benchmarks.gpu.gemm"),
    Line("products with epilogues", "gpu_gemm", _products("epilogue", "rows"), "benchmarks.gpu.gemm"),
)


def table(title: str, lines: Iterable[Line], headings: Mapping[str, str]) -> Table:
    """One row for each line: against eager, and against each peer of `headings`."""
    columns: list[Column | str] = ["what", Column("cells")]
    for heading in headings.values():
        columns += [Column(heading, ratio), Column("least", ratio)]
    columns.append("measured by")
    rows = []
    for line in lines:
        path = record.RESULTS / f"{line.suite}.json"
        cells = [cell for cell in line.cells(json.loads(path.read_text(encoding="utf-8"))["results"]) if "polytile" in cell]
        figures: list[float | None] = []
        for who in headings:
            found = [cell[who] / cell["polytile"] for cell in cells if who in cell]
            figures += [geomean(found), min(found)] if found else [None, None]
        rows.append((line.what, len(cells), *figures, f"`{line.module}`"))
    return Table.of(title, columns, rows)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    others = {"eager": "× eager", "inductor": "× TorchInductor, dynamic"}
    show(table("Two cores of a CPU: how many times faster one dynamic compile is, geometric mean and least cell", ON_CPU, others))
    others = {"eager": "× eager", "dynamic": "× TorchInductor, dynamic", "static": "× TorchInductor, a compile for each shape"}
    show(table("An H100, times of kernels alone: the same", ON_GPU, others))


if __name__ == "__main__":
    main()
