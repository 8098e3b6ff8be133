"""What the committed results come to, a line each: `python -m benchmarks.overview`; `--of loops` and `--of models` have one for
each function or model. It measures nothing.

A ratio is another compiler's time over polytile's, as a geometric mean over all cells of a suite, and the least cell. Each line
says what its times include. TorchInductor has one dynamic compile, as polytile has, unless it says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.programs.program import LEVELS
from benchmarks.programs.report import BELOW, over_eager, over_peer
from benchmarks.timing import geomean
from polytile.report import Column, Table, show
from polytile.report.tables import ratio

Read = Callable[[Any], Iterable[Mapping[str, float]]]
"""A suite's results → the time of each cell by who took it, "polytile" among them."""


WHOLE, UNGUARDED, KERNELS = "whole calls", "calls without guards", "kernel time"
BEHIND_DOOR = "whole calls, polytile.compile"
STREAM, TRACED = "whole stream", "stream, less tracing"
"""What is timed: calls as a user makes them, Dynamo's guards among them, which torch.compile asks in 10 to 30 µs and what
polytile.compile returns in 2 (docs/calls.md); calls of what the compiler made, without Dynamo; kernels of a GPU alone, without
what the host takes to launch them; all calls of a stream of requests from empty caches, the first among them."""


@dataclass(frozen=True)
class Line:
    """A row: what was run, what its times include, in which suite's results it stands, how to read them, and the module that
    measured."""

    what: str
    of: str
    suite: str
    cells: Read
    module: str


def _seconds(timings: Mapping[str, Any]) -> dict[str, float]:
    return {who: one["seconds"] for who, one in timings.items()}


def _loops(of: str, only: str = "") -> Read:
    way = "without_dynamo" if of == UNGUARDED else "with_dynamo"

    def read(results: Any) -> Iterable[Mapping[str, float]]:
        for name, function in results["suite"].items():
            for shape in function.values() if only in ("", name) else ():
                times = _seconds(shape[way]["timings"])
                own = times.pop("polytile.compile", None)
                if of == BEHIND_DOOR:
                    times = {**times, "polytile": own} if own is not None else {}
                yield times

    return read


def _models(which: str) -> Read:
    """Of those cells whose name (model, mode and size) has these words."""
    return lambda results: (
        _seconds(cell["timings"]) for name, cell in results["cells"].items() if f" {which} " in f" {name}"
    )


def _matmul(kind: str) -> Read:
    return lambda results: (
        _seconds(cell["timings"]) for name, cell in results["cells"].items() if name.startswith(f"{kind} ")
    )


def _grid(dtype: str, times: str = "us") -> Read:
    return lambda results: (cell[times] for cell in _right(results) if cell["dtype"] == dtype and times in cell)


def _right(results: Any) -> list[Mapping[str, Any]]:
    """The cells. Raises ValueError where a result was wrong whose time is among them."""
    for cell in results["cells"]:
        if cell["wrong"]:
            raise ValueError(f"a time of a wrong result: {cell['function']} of {cell['shape']}, {cell['wrong']}")
    return list(results["cells"])


def _transformer(name: str, times: str = "us") -> Read:
    """The better of the peer's two modes, where it was measured, is one dynamic compile of its."""

    def read(results: Any) -> Iterable[Mapping[str, float]]:
        for cell in _right(results):
            if cell["function"] == name and times in cell:
                peers = [us for who, us in cell[times].items() if who.startswith("peer")]
                yield {**cell[times], **({"dynamic": min(peers)} if peers else {})}

    return read


def _programs(level: str, way: str) -> Read:
    """Programs of the suite that both compilers, each in a process of its own, ran right. The peer's time is what it would be
    beside polytile's: its part of eager's, as measured in turns with eager."""

    def read(results: Any) -> Iterable[Mapping[str, float]]:
        rows = [row for row in results["rows"] if row["level"] == level]
        peers = over_peer(rows, way)
        for row in rows:
            times = over_eager(row, way) if row["contestant"] == "polytile" else None
            if times is not None:
                peer = peers.get(row["program"])
                yield {"polytile": 1.0, "eager": times, **(dict.fromkeys(("inductor", "dynamic"), peer) if peer else {})}

    return read


def _suite_lines(suite: str, ways: Mapping[str, str]) -> tuple[Line, ...]:
    return tuple(
        Line(f"programs: {level}s", of, suite, _programs(level, way), "benchmarks.programs")
        for level in LEVELS
        for way, of in ways.items()
    )


STREAMED = {"eager": "eager", "peer": "dynamic", "never": "polytile"}
"""Contestants of a stream by who they are here; the peer has one dynamic compile."""


def _streams(results: Any, seconds: str = "total") -> Iterable[Mapping[str, float]]:
    """A cell for each workload; who did not come to the end of its stream has no time."""
    for workload in results.get("workloads", {}).values():
        ended = {
            who: one[seconds]
            for who, one in workload["contestants"].items()
            if one.get("served") == workload["requests"] and not one["wrong"]
        }
        cell = {STREAMED[who]: total for who, total in ended.items() if who in STREAMED}
        yield {**cell, **({"inductor": cell["dynamic"]} if "dynamic" in cell else {})}


def _stream_lines(device: str) -> tuple[Line, Line]:
    less = functools.partial(_streams, seconds="total_without_tracing")
    return (
        Line("requests of random sizes", STREAM, f"stream_{device}", _streams, "benchmarks.stream"),
        Line("requests of random sizes", TRACED, f"stream_{device}", less, "benchmarks.stream"),
    )


FLOATS, BYTES = ("bf16", "fp16", "fp32", "tf32"), ("int8", "fp8")


def _products(*parts: str, dtypes: Sequence[str] = FLOATS) -> Read:
    return lambda results: (
        {**cell["us"], "eager": cell["us"]["library"]}
        for cell in results["cells"]
        if cell["part"] in parts and cell["dtype"] in dtypes and "library" in cell["us"]
    )


ON_CPU = (
    Line("models, inference", WHOLE, "models", _models("inference"), "benchmarks.models"),
    Line("models, training", WHOLE, "models", _models("training"), "benchmarks.models"),
    Line("fused loops, float32", WHOLE, "loops", _loops(WHOLE), "benchmarks.loops"),
    Line("fused loops, float32", BEHIND_DOOR, "loops", _loops(BEHIND_DOOR), "benchmarks.loops"),
    Line("fused loops, float32", UNGUARDED, "loops", _loops(UNGUARDED), "benchmarks.loops"),
    Line("products by constant weights, float32", UNGUARDED, "matmul", _matmul("float32 constant t2"), "benchmarks.matmul"),
    Line("other products, float32", UNGUARDED, "matmul", _matmul("float32 row-major t2"), "benchmarks.matmul"),
    *_suite_lines("programs_cpu", {"called": WHOLE, "door": BEHIND_DOOR, "direct": UNGUARDED}),
    *_stream_lines("cpu"),
)
LAYERS = {"llama": "Llama", "gpt2": "GPT-2", "bert": "BERT"}
ON_GPU = (
    Line("fused loops, bfloat16", KERNELS, "gpu", _grid("bf16"), "benchmarks.gpu"),
    Line("fused loops, bfloat16", WHOLE, "gpu", _grid("bf16", "wall_us"), "benchmarks.gpu"),
    Line("fused loops, float32", KERNELS, "gpu", _grid("fp32"), "benchmarks.gpu"),
    Line("fused loops, float32", WHOLE, "gpu", _grid("fp32", "wall_us"), "benchmarks.gpu"),
    *(
        Line(f"four layers of a {name}, bfloat16", of, "gpu_models", _transformer(model, times), "benchmarks.gpu.models")
        for model, name in LAYERS.items()
        for of, times in ((KERNELS, "us"), (WHOLE, "wall_us"))
    ),
    Line("products", KERNELS, "gpu_gemm", _products("square", "llm"), "benchmarks.gpu.gemm"),
    Line("products of 8-bit operands", KERNELS, "gpu_gemm", _products("square", "llm", dtypes=BYTES), "benchmarks.gpu.gemm"),
    Line("products of 1 to 16 rows", KERNELS, "gpu_gemm", _products("thin"), "benchmarks.gpu.gemm"),
    Line("products with epilogues", KERNELS, "gpu_gemm", _products("epilogue", "rows"), "benchmarks.gpu.gemm"),
)
PROGRAMS_ON_GPU = (
    *_suite_lines("programs_cuda", {"called": WHOLE, "door": BEHIND_DOOR, "kernels": KERNELS}),
    *_stream_lines("cuda"),
)
"""The suite of programs and the streams run on another GPU than the suites before them."""


def _results(suite: str) -> Any:
    """The suite's results; of one that has not been run there are no cells."""
    file = record.RESULTS / f"{suite}.json"
    return record.read(file) if file.exists() else {"rows": (), "cells": ()}


def _each_loop() -> list[Line]:
    names = {**{name: name for name in _results("loops")["suite"]}, "all": ""}
    return [
        Line(name, of, "loops", _loops(of, only), "benchmarks.loops")
        for name, only in names.items()
        for of in (UNGUARDED, BEHIND_DOOR, WHOLE)
    ]


def _each_model() -> list[Line]:
    kinds = dict.fromkeys(name.rpartition(" ")[0] for name in _results("models")["cells"])  # a cell's name ends in its size
    modes = dict.fromkeys(kind.rpartition(" ")[2] for kind in kinds)
    models = [
        Line(", ".join(kind.rsplit(" ", 1)), WHOLE, "models", _models(kind), "benchmarks.models")
        for mode in modes
        for kind in kinds
        if kind.endswith(f" {mode}")
    ]
    return [*models, *(Line(f"all, {mode}", WHOLE, "models", _models(mode), "benchmarks.models") for mode in modes)]


EACH = {
    "loops": ("Fused loops, float32: how many times faster one dynamic compile is, over nine shapes", _each_loop),
    "models": ("Models, float32: how many times faster one dynamic compile is, over six sizes", _each_model),
}
"""Suites that have a line for each of their members, and what these lines are called together."""


AGAINST_EAGER = "× eager"


def table(title: str, lines: Iterable[Line], headings: Mapping[str, str]) -> Table:
    """One row for each line that has cells: against eager, with how many cells are below 0.97 of it, and against each peer of
    `headings`."""
    columns: list[Column | str] = ["what", "timed", Column("cells")]
    for heading in headings.values():
        columns += [Column(heading, ratio), Column("least", ratio)]
        if heading == AGAINST_EAGER:
            columns.append(Column(f"below {BELOW}"))
    columns.append("measured by")
    rows = []
    for line in lines:
        cells = [cell for cell in line.cells(_results(line.suite)) if "polytile" in cell]
        if not cells:
            continue
        figures: list[float | None] = []
        for who in headings:
            found = [cell[who] / cell["polytile"] for cell in cells if who in cell]
            figures += [geomean(found), min(found)] if found else [None, None]
            if headings[who] == AGAINST_EAGER:
                figures.append(sum(ratio < BELOW for ratio in found))
        rows.append((line.what, line.of, len(cells), *figures, f"`{line.module}`"))
    return Table.from_rows(title, columns, rows)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("--of", choices=EACH, help="a line for each function or model of this suite")
    suite = parser.parsed().of
    others = {"eager": AGAINST_EAGER, "inductor": "× TorchInductor, dynamic"}
    if suite is not None:
        title, lines = EACH[suite]
        show(table(title, lines(), others))
        return
    show(table("Two cores of a CPU: how many times faster one dynamic compile is, geometric mean and least cell", ON_CPU, others))
    others = {"eager": AGAINST_EAGER, "dynamic": others["inductor"], "static": "× TorchInductor, a compile for each shape"}
    show(table("An H100: the same", ON_GPU, others))
    if (record.RESULTS / "programs_cuda.json").exists():
        del others["static"]
        show(table(f"{_results('programs_cuda')['device']}: the same", PROGRAMS_ON_GPU, others))


if __name__ == "__main__":
    main()
