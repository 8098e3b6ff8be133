"""What the committed results come to, a line each: `python -m benchmarks.overview`; `--of loops` and `--of models` have one for
each function or model. It measures nothing.

A ratio is another compiler's time over polytile's, as a geometric mean over all cells of a suite, and the least cell.
TorchInductor has one dynamic compile, as polytile has, unless it says otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def _loops(only: str = "") -> Read:
    return lambda results: (
        _seconds(shape["without_dynamo"]["timings"])
        for name, function in results["suite"].items()
        if only in ("", name)
        for shape in function.values()
    )


def _models(which: str) -> Read:
    """Of those cells whose name (model, mode and size) has these words."""
    return lambda results: (
        _seconds(cell["timings"]) for name, cell in results["cells"].items() if f" {which} " in f" {name}"
    )


def _matmul(kind: str) -> Read:
    return lambda results: (
        _seconds(cell["timings"]) for name, cell in results["cells"].items() if name.startswith(f"{kind} ")
    )


def _grid(dtype: str) -> Read:
    return lambda results: (cell["us"] for cell in _right(results) if cell["dtype"] == dtype)


def _right(results: Any) -> list[Mapping[str, Any]]:
    """The cells. Raises ValueError where a result was wrong whose time is among them."""
    for cell in results["cells"]:
        if cell["wrong"]:
            raise ValueError(f"a time of a wrong result: {cell['function']} of {cell['shape']}, {cell['wrong']}")
    return list(results["cells"])


def _transformer(name: str) -> Read:
    """The better of the peer's two modes, where it was measured, is one dynamic compile of its."""

    def read(results: Any) -> Iterable[Mapping[str, float]]:
        for cell in _right(results):
            if cell["function"] == name:
                peers = [us for who, us in cell["us"].items() if who.startswith("peer")]
                yield {**cell["us"], **({"dynamic": min(peers)} if peers else {})}

    return read


FLOATS, BYTES = ("bf16", "fp16", "fp32", "tf32"), ("int8", "fp8")


def _products(*parts: str, dtypes: Sequence[str] = FLOATS) -> Read:
    return lambda results: (
        {**cell["us"], "eager": cell["us"]["library"]}
        for cell in results["cells"]
        if cell["part"] in parts and cell["dtype"] in dtypes and "library" in cell["us"]
    )


ON_CPU = (
    Line("encoder, inference", "demo_encoder", _encoder("inference"), "benchmarks.demo"),
    Line("encoder, training", "demo_encoder", _encoder("training"), "benchmarks.demo"),
    Line("models, inference", "models", _models("inference"), "benchmarks.models"),
    Line("models, training", "models", _models("training"), "benchmarks.models"),
    Line("fused loops, float32", "loops", _loops(), "benchmarks.loops"),
    Line("products by constant weights, float32", "matmul", _matmul("float32 constant t2"), "benchmarks.matmul"),
    Line("other products, float32", "matmul", _matmul("float32 row-major t2"), "benchmarks.matmul"),
)
ON_GPU = (
    Line("fused loops, bfloat16", "gpu", _grid("bf16"), "benchmarks.gpu"),
    Line("fused loops, float32", "gpu", _grid("fp32"), "benchmarks.gpu"),
    Line("four layers of a Llama, bfloat16", "gpu_models", _transformer("llama"), "benchmarks.gpu.models"),
    Line("four layers of a GPT-2, bfloat16", "gpu_models", _transformer("gpt2"), "benchmarks.gpu.models"),
    Line("four layers of a BERT, bfloat16", "gpu_models", _transformer("bert"), "benchmarks.gpu.models"),
    Line("products", "gpu_gemm", _products("square", "llm"), "benchmarks.gpu.gemm"),
    Line("products of 8-bit operands", "gpu_gemm", _products("square", "llm", dtypes=BYTES), "benchmarks.gpu.gemm"),
    Line("products of 1 to 16 rows", "gpu_gemm", _products("thin"), "benchmarks.gpu.gemm"),
    Line("products with epilogues", "gpu_gemm", _products("epilogue", "rows"), "benchmarks.gpu.gemm"),
)


def _results(suite: str) -> Any:
    return json.loads((record.RESULTS / f"{suite}.json").read_text(encoding="utf-8"))["results"]


def _each_loop() -> list[Line]:
    functions = [Line(name, "loops", _loops(name), "benchmarks.loops") for name in _results("loops")["suite"]]
    return [*functions, Line("all", "loops", _loops(), "benchmarks.loops")]


def _each_model() -> list[Line]:
    kinds = dict.fromkeys(name.rpartition(" ")[0] for name in _results("models")["cells"])  # a cell's name ends in its size
    modes = dict.fromkeys(kind.rpartition(" ")[2] for kind in kinds)
    models = [
        Line(", ".join(kind.rsplit(" ", 1)), "models", _models(kind), "benchmarks.models")
        for mode in modes
        for kind in kinds
        if kind.endswith(f" {mode}")
    ]
    return [*models, *(Line(f"all, {mode}", "models", _models(mode), "benchmarks.models") for mode in modes)]


EACH = {
    "loops": ("Fused loops, float32: how many times faster one dynamic compile is, over nine shapes", _each_loop),
    "models": ("Models, float32: how many times faster one dynamic compile is, over six sizes", _each_model),
}
"""Suites that have a line for each of their members, and what these lines are called together."""


def table(title: str, lines: Iterable[Line], headings: Mapping[str, str]) -> Table:
    """One row for each line: against eager, and against each peer of `headings`."""
    columns: list[Column | str] = ["what", Column("cells")]
    for heading in headings.values():
        columns += [Column(heading, ratio), Column("least", ratio)]
    columns.append("measured by")
    rows = []
    for line in lines:
        cells = [cell for cell in line.cells(_results(line.suite)) if "polytile" in cell]
        figures: list[float | None] = []
        for who in headings:
            found = [cell[who] / cell["polytile"] for cell in cells if who in cell]
            figures += [geomean(found), min(found)] if found else [None, None]
        rows.append((line.what, len(cells), *figures, f"`{line.module}`"))
    return Table.of(title, columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--of", choices=EACH, help="a line for each function or model of this suite")
    suite = parser.parse_args().of
    others = {"eager": "× eager", "inductor": "× TorchInductor, dynamic"}
    if suite is not None:
        title, lines = EACH[suite]
        show(table(title, lines(), others))
        return
    show(table("Two cores of a CPU: how many times faster one dynamic compile is, geometric mean and least cell", ON_CPU, others))
    others = {"eager": "× eager", "dynamic": "× TorchInductor, dynamic", "static": "× TorchInductor, a compile for each shape"}
    show(table("An H100, times of kernels alone: the same", ON_GPU, others))


if __name__ == "__main__":
    main()
