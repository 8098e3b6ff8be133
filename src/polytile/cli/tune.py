"""`polytile tune`: a function called at the sizes that will matter, before they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

import polytile
from polytile import options, store
from polytile.cli.plain import FAILED, in_short, sizes_text, told_once
from polytile.cli.targets import Job
from polytile.dispatch.decision import Decision
from polytile.dispatch.registry import alive
from polytile.facts import Regime
from polytile.report import Column, Table, show
from polytile.report.progress import bars, described
from polytile.report.tables import micros
from polytile.tuning import progress
from polytile.tuning.budget import Campaign, campaign
from polytile.tuning.headroom import for_measuring

STOPPED = 130
"""Exit status after Ctrl-C, by the convention of shells."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """What one call did: decisions made, candidates timed for them, seconds it took."""

    call: str
    decisions: tuple[Decision, ...]
    benchmarked: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.call}: {_count(len(self.decisions), 'choice')}, {_count(self.benchmarked, 'candidate')} measured, "
            f"{self.seconds:.1f} s"
        )


@dataclass
class Run:
    """What a tuning has done so far: the steps, how many calls it was to make, whether any failed, why it ended early."""

    total: int
    steps: list[Step] = field(default_factory=list)
    status: int = 0
    ended: str = ""


def tune(
    jobs: Sequence[Job],
    plan: Path | None = None,
    seconds: float = 0.0,
    thorough: bool = True,
    exhaustive: bool = False,
    sizes: Path | None = None,
) -> int:
    """Calls the compiled functions with each of their arguments and reports; returns the process's exit status. `exhaustive`:
    every candidate is measured, of the family's whole space of configs. `sizes`: a file of recorded sizes that are hints.

    After `seconds` (0: no limit) nothing more is measured: calls under way end with the best found so far, others are
    not made.
    """
    console = Console()
    if not options.get("persist"):
        console.print("The option persist is off: what is measured now is gone when this command ends.")
    run = Run(sum(len(job.calls) for job in jobs))
    mode = "thorough" if thorough and options.get("tune") == "auto" else options.get("tune")
    search = {"stall": "tune", **({"tune": "all", "configs": "exhaustive"} if exhaustive else {"tune": mode})}
    search |= {} if options.get("progress") == "lines" else {"progress": "off"}  # there are bars of this command's own
    with options.override(**search), campaign(seconds) as time_for_all, for_measuring(), torch.no_grad(), told_once():
        with _progress(console, run.total) as tell:
            try:
                _make_calls(jobs, run, time_for_all, tell, sizes)
            except KeyboardInterrupt:
                run.status, run.ended = STOPPED, "Stopped: "
    if run.steps:
        show(_table(run.steps), console)
    kept = f" Kept in {store.current().place}." if store.current().persistent else ""
    measured = sum(step.benchmarked for step in run.steps)
    console.print(
        f"{run.ended}{len(run.steps)} of {_count(run.total, 'call')}, {_count(measured, 'candidate')} measured.{kept}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if plan is not None and run.steps:
        console.print(
            f"{_count(polytile.save_plan(plan), 'decision')} written to {plan}.", soft_wrap=True, highlight=False
        )
    return run.status


def _make_calls(jobs: Sequence[Job], run: Run, time_for_all: Campaign, tell: Tell, sizes: Path | None) -> None:
    """Makes the calls until the time is over. One that fails is reported, and the others go on."""
    for job in jobs:
        compiled = polytile.compile(job.function, hints=sizes) if job.compiled else job.function
        for args in job.calls:
            if time_for_all.left() <= 0:
                run.ended = f"Ended after {time_for_all.seconds:.4g} s: "
                return
            try:
                run.steps.append(_step(compiled, args))
                tell(str(run.steps[-1]))
            except Exception as error:
                run.status = FAILED
                tell(f"{describe(args)}: {in_short(error)}")


def _step(compiled: Callable[..., Any], args: tuple[Any, ...]) -> Step:
    before, benchmarked = _decisions(), polytile.counters["candidates_benchmarked"]
    started = time.perf_counter()
    compiled(*args)
    seconds = time.perf_counter() - started
    new = tuple(decision for key, decision in _decisions().items() if key not in before)
    return Step(describe(args), new, polytile.counters["candidates_benchmarked"] - benchmarked, seconds)


def _decisions() -> dict[tuple[int, Regime], Decision]:
    return {(id(kernel), d.regime): d for kernel in alive() for d in kernel.decisions}


def describe(args: tuple[Any, ...]) -> str:
    """Arguments in short: "float32[64, 512] int64[64] 3"; sizes of a kernel as "M=16 N=4096"."""
    return " ".join(map(_described, args)) or "no arguments"


def _described(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}"
    return sizes_text(tuple(arg.items())) if isinstance(arg, dict) else repr(arg)


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Tell]:
    """Two bars on a terminal, all calls with the time left for them and the problem under way; a numbered line for each call
    elsewhere."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda text: console.print(
            f"[{next(done)}/{total}] {text}", markup=False, highlight=False, soft_wrap=True
        )
        return
    with bars(console) as shown:
        calls = shown.add_task("calls", total=total)
        problem = shown.add_task("", total=1, visible=False)

        def tell(text: str) -> None:
            shown.console.print(text, markup=False, highlight=False)
            shown.advance(calls)

        def watch(step: progress.Step) -> None:
            shown.update(
                problem, description=escape(described(step)), completed=step.checked, total=step.candidates,
                visible=not step.finished,
            )  # fmt: skip

        with progress.watching(watch):
            yield tell


def _table(steps: Sequence[Step]) -> Table:
    rows = []
    for decision in (decision for step in steps for decision in step.decisions):
        sizes = sizes_text(decision.sizes)
        rows.append((decision.kernel, sizes, decision.candidate, decision.seconds, decision.provenance))
    columns: list[Column | str] = ["kernel", "sizes", "candidate", Column("µs", micros), "grounds"]
    return Table.from_rows("Decisions", columns, rows)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
