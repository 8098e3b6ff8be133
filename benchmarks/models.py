"""Whole models of changing batch and length, one dynamic compile each: `python -m benchmarks.models`.

The models of tests/models, those of transformers at small width among them, at growing sizes, in inference and in training (a
forward and a backward pass), against eager and TorchInductor's dynamic compile (with `--peers eager inductor max-autotune` in
both of its modes), in turns, with Dynamo's share of a call. A run of a part of the suite replaces those cells of the results
file.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import TUNED, compiled
from benchmarks.contestants import OWN, Calls, Entrant
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio
from polytile.runtime import compile
from tests.models.hub import HUB
from tests.models.zoo import MODELS

SIZES = (2, 6, 13, 33, 64, 100)
EAGER = "eager"
PEERS = (EAGER, "inductor", TUNED)
MODES = {"inference": False, "training": True}
TOLERANCE = 1e-3  # of the largest element of a result: roundings of many layers, and of each compiler's own order of sums
RANDOM = ("autoencoder",)  # compilers draw from streams of their own
CRASHES = {("resnet18", "training"): ("inductor", TUNED)}
"""Peers that are left out: TorchInductor's backward pass of ResNet-18 writes past its memory (torch 2.13, segmentation fault)."""
SETTLED = 30.0  # seconds to wait for kernels that are still being compiled beside


@dataclass(frozen=True)
class Cell:
    """One model at one size; `times` are those of whole calls."""

    model: str
    mode: str
    size: int
    times: Comparison

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode} {self.size}"


def step(model: nn.Module, run: Callable[..., Any], inputs: Sequence[Any], training: bool) -> list[Tensor]:
    """The floating-point results of one call, after its backward pass in training."""
    with torch.set_grad_enabled(training):
        results = [r for r in tree_leaves(run(*inputs)) if isinstance(r, Tensor) and r.is_floating_point()]
        if training:
            model.zero_grad(set_to_none=True)
            torch.stack([r.sum() for r in results if r.requires_grad]).sum().backward()
    return [r.detach() for r in results]


class Contestant(Calls):
    """One model in one mode as one compiler makes it, in a process of its own; "eager" compiles nothing."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.who, self.name, self.training = given["contestant"], given["model"], MODES[given["mode"]]
        self.model = {**MODELS, **HUB}[self.name]
        torch.manual_seed(7)
        made = self.model.make().train(self.training)
        self.eager = functools.partial(step, made, made, training=self.training)
        run = made if self.who == EAGER else compiled(made, self.who)
        self.step = functools.partial(step, made, run, training=self.training)

    def begin(self, sizes: Sequence[int]) -> None:
        """Every size once before anything is timed: decisions of one are made while others are met."""
        for n in sizes:
            self.step(self.model.inputs(n))
        compile.settle(SETTLED)

    def at(self, n: int) -> None:
        """Makes the call at a size, and compares polytile's results with eager's."""
        inputs = self.model.inputs(n)
        if self.who == OWN and self.name not in RANDOM:
            agree(f"{self.name} at {n}", self.eager(inputs), self.step(inputs))
        self.calls = {"step": functools.partial(self.step, inputs)}


def run(name: str, mode: str, sizes: Sequence[int], peers: Sequence[str], seconds: float) -> list[Cell]:
    """Compiles one model with each compiler, each in a process of its own, and times them at every size, in turns."""
    fit = [peer for peer in peers if peer not in CRASHES.get((name, mode), ())]
    cells = []
    with contextlib.ExitStack() as stack:
        made = {}
        for who in (*fit, OWN):
            given = {"contestant": who, "model": name, "mode": mode}
            made[who] = stack.enter_context(Entrant("benchmarks.models:Contestant", given))
            made[who].ask("begin", sizes)
        for n in sizes:
            for one in made.values():
                one.ask("at", n)
            times = compare({who: one.call("step") for who, one in made.items()}, seconds=seconds)
            cells.append(Cell(name, mode, n, times))
    return cells


def agree(what: str, right: Sequence[Tensor], got: Sequence[Tensor]) -> None:
    """Raises AssertionError where a result is further from eager's than TOLERANCE."""
    for mine, theirs in zip(got, right, strict=True):
        off = float((mine.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30))
        assert off <= TOLERANCE, f"{what} is {off:.1e} off eager's result."


def table(cells: Sequence[Cell], peers: Sequence[str]) -> Table:
    """Every cell of one model and mode."""
    peers = [peer for peer in peers if peer in cells[0].times.timings]
    columns: list[Column | str] = ["size", Column("µs", micros), *(Column(f"{p} ÷ polytile", ratio) for p in peers)]
    body: list[tuple[Any, ...]] = [
        (str(cell.size), cell.times[OWN].low, *(cell.times.ratio(OWN, peer) for peer in peers)) for cell in cells
    ]
    return Table.from_rows(f"{cells[0].model}, {cells[0].mode}", columns, body, [disturbance(cell.times for cell in cells)])


def summary(groups: Sequence[Sequence[Cell]], peers: Sequence[str]) -> Table:
    """The geomean and the least ratio over the sizes of each model and mode, and over all."""
    columns: list[Column | str] = ["model", "mode"]
    for peer in peers:
        columns += [Column(f"{peer}: geomean", ratio), Column("least", ratio)]

    def row(model: str, mode: str, cells: Sequence[Cell]) -> tuple[Any, ...]:
        found = [[cell.times.ratio(OWN, peer) for cell in cells if peer in cell.times.timings] for peer in peers]
        values = [(geomean(ratios), min(ratios)) if ratios else (None, None) for ratios in found]
        return (model, mode, *(value for pair in values for value in pair))

    body = [row(cells[0].model, cells[0].mode, cells) for cells in groups]
    body.append(row("all", "", [cell for cells in groups for cell in cells]))
    return Table.from_rows("Models: time of others over polytile's, one dynamic compile", columns, body)


def write(cells: Sequence[Cell]) -> None:
    """Adds the cells to benchmarks/results/models.json, in place of earlier ones of the same name."""
    record.add("models", "cells", {cell.name: cell.times.as_json() for cell in cells})


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--only", nargs="*", default=[], help="models whose names contain one of these")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS[:2]))
    parser.add_argument("--seconds", type=float, default=0.6, help="how long to measure each cell")
    given = parser.parsed()
    groups = []
    for name in {**MODELS, **HUB}:
        if given.only and not any(word in name for word in given.only):
            continue
        for mode in given.modes:
            groups.append(run(name, mode, given.sizes, given.peers, given.seconds))
            show(table(groups[-1], given.peers))
            if given.json:
                write(groups[-1])
    show(summary(groups, given.peers))


if __name__ == "__main__":
    main()
