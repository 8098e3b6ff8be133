"""Fused loops over shapes from one short row to one of four million: `python -m benchmarks.loops`.

Ten functions of models, nine shapes each, one dynamic compile for a function, against eager and TorchInductor's own dynamic
compile (with `--peers eager inductor max-autotune` in both of its modes), on the same inputs, each in a process and caches of its
own, in turns. Each cell is timed without Dynamo's share of a call (`direct.py`), and as whole calls of what torch.compile and
polytile.compile return; the latter has a front door (docs/calls.md).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import TUNED, compiled, copied
from benchmarks.contestants import OWN, Calls, Entrant
from benchmarks.direct import Recorded
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = (
    (1, 64),
    (128, 64),
    (8192, 64),
    (512, 300),
    (64, 1024),
    (1024, 1024),
    (32, 16384),
    (4, 262144),
    (1, 4194304),
)
TOLERANCE = {"polytile": 3e-6, "inductor": 3e-5, TUNED: 3e-5}
"""The largest error against float64 of a compiler's results, relative to the largest element: the peer sums columns one row
after the other, and is off by 4e-6 at 8192 rows."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def gelu_times(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def gelu_add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x) + y, (x.shape[-1],), weight, bias)


def geglu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * F.gelu(gate)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.1)


@dataclass(frozen=True)
class Case:
    """A row of the suite. `inputs` makes the arguments for a shape (rows, columns); `options` are polytile's; the results
    of a `random` function are not compared with eager's."""

    name: str
    function: Callable[..., Tensor]
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    random: bool = False


def _one(rows: int, columns: int) -> tuple[Tensor, ...]:
    return (torch.randn(rows, columns),)


def _two(rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, columns), torch.randn(rows, columns)


def _weights(columns: int, count: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(columns) for _ in range(count))


SUITE: tuple[Case, ...] = (
    Case("softmax", softmax, _one),
    Case("RMSNorm", rms_norm, lambda r, c: (*_one(r, c), *_weights(c, 1))),
    Case("LayerNorm", layer_norm, lambda r, c: (*_one(r, c), *_weights(c, 2))),
    Case("gelu·x", gelu_times, _two),
    Case("GELU+add+LayerNorm", gelu_add_layer_norm, lambda r, c: (*_two(r, c), *_weights(c, 2))),
    Case("GEGLU", geglu, lambda r, c: _one(r, 2 * c)),
    Case("column sum", column_sum, _one),
    Case("cross entropy", cross_entropy, lambda r, c: (*_one(r, c), torch.randint(0, c, (r,)))),
    Case("transpose+add", transpose_add, lambda r, c: (*_one(c, r), *_one(r, c))),
    Case("dropout", dropout, _one, {"random": "philox"}, random=True),
    Case("dropout, eager's stream", dropout, _one, random=True),
)
EAGER = "eager"
PEERS = (EAGER, "inductor", TUNED)
FRONT_DOOR = "polytile.compile"
"""Among the timings of whole calls: polytile's behind its front door; OWN is polytile's by torch.compile."""
FIRST_CALLS, FIRST_SECONDS = 320, 1.0
"""Calls before a cell is timed, of at most so many seconds: calls of small tensors race eager's own after 256."""


@dataclass(frozen=True)
class Cell:
    """One function at one shape: timings without Dynamo's share, and of whole calls."""

    shape: Shape
    direct: Comparison
    called: Comparison
    decisions: tuple[str, ...]


class Contestant(Calls):
    """One function as one compiler makes it, in a process of its own; "eager" compiles nothing."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(given["threads"])
        self.name = given["contestant"]
        self.case = next(case for case in SUITE if case.name == given["case"])
        options = self.case.options if self.name == OWN else None
        self.made = None if self.name == EAGER else Recorded(self.case.function, self.name, options)
        self.front_door: Callable[..., Any] | None = None
        if self.name == OWN:
            self.front_door = compiled(copied(self.case.function, f"front_{self.case.function.__name__}"), OWN, options=options)

    def at(self, shape: Shape) -> list[str]:
        """Makes the calls at a shape, without Dynamo's share ("direct"), by torch.compile ("called") and by polytile.compile
        ("front door"), and checks the results; the candidates that polytile decided for."""
        torch.manual_seed(0)
        inputs = self.case.inputs(*shape)
        if self.made is None:
            eager = functools.partial(self.case.function, *inputs)
            self.calls = {"direct": eager, "called": eager}
            return []
        direct = checked(self.case, self.name, self.made.direct(*inputs), inputs)
        self.calls = {"direct": direct, "called": functools.partial(self.made.compiled, *inputs)}
        self.made.compiled(*inputs)
        if self.front_door is None:
            return []
        self.calls["front door"] = checked(self.case, self.name, functools.partial(self.front_door, *inputs), inputs)
        until = time.perf_counter() + FIRST_SECONDS
        for _ in range(FIRST_CALLS):
            self.calls["front door"]()
            if time.perf_counter() > until:
                break
        return list(chosen(self.made))


def checked(case: Case, name: str, call: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """The call of what compiler `name` made, whose result has been compared with float64; raises AssertionError where it is
    off."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact, got = case.function(*wide), call()
    assert got.shape == exact.shape, f"{name}'s {case.name} gave {tuple(got.shape)} for {tuple(exact.shape)}"
    if case.random:
        kept = float((got != 0).double().mean())
        assert inputs[0].numel() < 10_000 or abs(kept - 0.9) < 0.02, f"{case.name} keeps {kept:.3f} of the elements"
        return call
    off = float((got.double() - exact).abs().max() / exact.abs().max())
    where = f"{name}'s {case.name} of {tuple(inputs[0].shape)}"
    assert off <= TOLERANCE[name], f"{where} is {off:.1e} off float64; {TOLERANCE[name]:.0e} is allowed"
    return call


def run_case(case: Case, shapes: Sequence[Shape], peers: Sequence[str], seconds: float) -> list[Cell]:
    """Compiles one function with each compiler, each in a process of its own, checks it and times it at every shape, in turns."""
    ordered = sorted(shapes, key=lambda shape: shape[0] == 1)  # sizes of 1 get a graph of their own, after the general one
    cells = {}
    with contextlib.ExitStack() as stack:
        made = {}
        for name in (*peers, OWN):
            given = {"case": case.name, "contestant": name, "threads": torch.get_num_threads()}
            made[name] = stack.enter_context(Entrant("benchmarks.loops:Contestant", given))
        for shape in ordered:
            decided = {name: one.ask("at", shape) for name, one in made.items()}
            direct = compare({name: one.call("direct") for name, one in made.items()}, seconds=seconds)
            whole = {name: one.call("called") for name, one in made.items()} | {FRONT_DOOR: made[OWN].call("front door")}
            cells[shape] = Cell(shape, direct, compare(whole, seconds=seconds), tuple(decided[OWN]))
    return [cells[shape] for shape in shapes]


def chosen(made: Recorded) -> tuple[str, ...]:
    """The candidates that the last call's program decided for, most recent decision of each kernel."""
    assert made.last is not None
    program: Any = made.last[0].polytile_program  # type: ignore[attr-defined]
    found = []
    for multikernel in program.multikernels:
        found.append(multikernel.decisions[-1].candidate if multikernel.decisions else "–")
    return tuple(found)


def ratios_table(results: dict[str, list[Cell]], peer: str, shapes: Sequence[Shape]) -> Table:
    columns: list[Column | str] = ["function", *(Column(f"{r}×{_short(c)}", ratio) for r, c in shapes), Column("geomean", ratio)]
    rows: list[tuple[Any, ...]] = []
    for name, cells in results.items():
        found = [cell.direct.ratio(OWN, peer) for cell in cells]
        rows.append((name, *found, geomean(found)))
    over = [geomean(row[k] for row in rows) for k in range(1, len(shapes) + 2)]
    rows.append(("geomean", *over))
    named = ((row[0], value, shape) for row in rows[:-1] for value, shape in zip(row[1:], shapes, strict=False))
    least = min((value, f"{name} {r}×{_short(c)}") for name, value, (r, c) in named)
    notes = [f"Time of {peer} over polytile's, without Dynamo's share. Least: {least[0]:.2f}, {least[1]}."]
    notes.append(disturbance(cell.direct for cells in results.values() for cell in cells))
    title = f"Fused loops against {peer}, float32, {torch.get_num_threads()} threads, one dynamic compile"
    return Table.from_rows(title, columns, rows, notes)


def _short(columns: int) -> str:
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if columns >= size and columns % size == 0:
            return f"{columns // size}{unit}"
    return str(columns)


def cells_table(results: dict[str, list[Cell]], peers: Sequence[str]) -> Table:
    """Every cell: times by each way to call, the peers' without Dynamo, and the candidates chosen."""
    columns: list[Column | str] = ["function", "shape", *(Column(f"{way}, µs", micros) for way in WAYS), "candidates"]
    columns += [Column(f"{peer} µs", micros) for peer in peers]
    rows = []
    for name, cells in results.items():
        for cell in cells:
            own = [getattr(cell, attribute)[who].low for attribute, who in WAYS.values()]
            times = [cell.direct[peer].low for peer in peers]
            rows.append((name, f"{cell.shape[0]}×{cell.shape[1]}", *own, ", ".join(cell.decisions), *times))
    return Table.from_rows("Every cell; peers without Dynamo's share", columns, rows)


WAYS = {
    "calls without guards": ("direct", OWN),
    "whole calls, torch.compile": ("called", OWN),
    "whole calls, polytile.compile": ("called", FRONT_DOOR),
}
"""What is timed, of which of a cell's comparisons, and whose time it is there."""


def summary(results: dict[str, list[Cell]], peers: Sequence[str]) -> Table:
    """The geomean, the least and the greatest ratio of each way to call."""
    figures = [Column(name, ratio) for name in ("geomean", "least", "greatest")]
    columns: list[Column | str] = ["against", "timed", *figures]
    rows = []
    for peer in peers:
        for label, (attribute, own) in WAYS.items():
            found = [getattr(cell, attribute).ratio(own, peer) for cells in results.values() for cell in cells]
            rows.append((peer, label, geomean(found), min(found), max(found)))
    return Table.from_rows("Fused loops: ratios over all functions and shapes", columns, rows)


def as_json(results: dict[str, list[Cell]]) -> dict[str, Any]:
    return {
        name: {
            f"{cell.shape[0]}x{cell.shape[1]}": {
                "without_dynamo": cell.direct.as_json(),
                "with_dynamo": cell.called.as_json(),
                "candidates": list(cell.decisions),
            }
            for cell in cells
        }
        for name, cells in results.items()
    }


def shape_of(text: str) -> Shape:
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--only", nargs="*", default=[], help="functions whose names contain one of these")
    parser.add_argument("--shapes", nargs="*", type=shape_of, default=list(SHAPES), help="shapes such as 128x64")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS[:2]))
    parser.add_argument("--threads", type=int, help="threads for all; torch's own number unless given")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long to measure each cell, with and without Dynamo")
    arguments = parser.parsed()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    results = {}
    for case in SUITE:
        if not arguments.only or any(word in case.name for word in arguments.only):
            results[case.name] = run_case(case, arguments.shapes, arguments.peers, arguments.seconds)
            show(cells_table({case.name: results[case.name]}, arguments.peers))
            if arguments.json:
                record.add("loops", "suite", as_json({case.name: results[case.name]}))
    for peer in arguments.peers:
        show(ratios_table(results, peer, arguments.shapes))
    show(summary(results, arguments.peers))


if __name__ == "__main__":
    main()
