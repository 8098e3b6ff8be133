"""`polytile why FILE.py:FUNCTION`: what runs each kernel of a program, on what grounds, and how the others did.

The function is compiled and called as `polytile tune` does it, but nothing is measured: what a program would have to
measure first is answered with what is nearest to being known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

import polytile
from polytile import options
from polytile.cli.kernels import Kernel, kernels
from polytile.cli.naming import TargetError
from polytile.cli.plain import in_short, sizes_text, told_once
from polytile.cli.targets import Kind, jobs_of
from polytile.cli.why import Ranked, Why
from polytile.cli.why_command import answers, plan_in_force, table_of
from polytile.dispatch.decision import Decision
from polytile.dispatch.registry import alive
from polytile.facts import Regime
from polytile.report import Table
from polytile.store.place import Place, Server

GUESSES = ("prior", "model", "default")
"""Links of the selector that answer without a measurement."""


def answer(
    target: str, sizes: Sequence[str], shapes: Sequence[str], kind: Kind, store: Place, plan: Path | None
) -> tuple[list[Table], bool]:
    """A table for each choice that the function's calls make, and whether all of them rest on more than a prediction. Raises
    PolytileError as its parts do."""
    if sizes:
        raise TargetError(f"{target} is a function, whose sizes are its tensors'; give --shapes in place of {' '.join(sizes)}.")
    pinned = plan_in_force(plan)
    made = decisions(target, shapes, kind, store, pinned[0] if pinned is not None else "")
    measured = {kernel.digest: kernel for kernel in _kernels(store)} if any(map(_guessed, made)) else {}
    tables = []
    for decision in made:
        asked = sizes_text(decision.sizes)
        name = f"{decision.kernel} at {asked}"
        tables.append(table_of(name, asked, _why(decision)))
        kernel = measured.get(decision.problem.kernel) if _guessed(decision) else None
        if kernel is not None:
            tables += [table_of(name, asked, one) for one in answers(kernel, decision.problem.size, None)]
    return tables, not any(map(_guessed, made))


def decisions(target: str, shapes: Sequence[str], kind: Kind, store: Place, plan: str) -> list[Decision]:
    """What is decided for each kernel when the function is called, with measuring off, by kernel and sizes."""
    by_regime: dict[tuple[int, Regime], Decision] = {}
    named = store.url if isinstance(store, Server) else str(store)
    with options.override(stall="compile", tune="off", store=named, plan=plan), torch.no_grad(), told_once():
        for job in jobs_of(target, shapes, kind):
            compiled = polytile.compile(job.function)
            for args in job.calls:
                try:
                    compiled(*args)
                except Exception as error:
                    raise TargetError(f"{target} cannot be called: {in_short(error)}.") from error
        by_regime |= {(id(kernel), each.regime): each for kernel in alive() for each in kernel.decisions}
    return list(by_regime.values())


def _kernels(store: Place) -> list[Kernel]:
    """What is on record; nothing where no program has measured anything so far."""
    return kernels(store) if isinstance(store, Server) or store.exists() else []


def _guessed(decision: Decision) -> bool:
    return decision.link in GUESSES


def _why(decision: Decision) -> Why:
    ranked = [
        Ranked(standing.candidate, None if math.isnan(standing.seconds) else standing.seconds, standing.note)
        for standing in decision.standings
        if standing.candidate == decision.candidate or standing.note or not math.isnan(standing.seconds)
    ]
    ranked.sort(key=lambda one: (one.seconds is None, one.seconds or 0.0))
    return Why(decision.measured_at or decision.sizes, decision.candidate, decision.provenance, tuple(ranked))
