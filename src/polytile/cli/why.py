"""`polytile why`: which candidate runs a kernel at given sizes, on what grounds; or what is missing for an answer.

The answer is derived from the store (and the plan) as a call in this environment would derive it, with one difference:
a store does not know the canonical order of candidates, so of equals that were predicted alike the one measured first is
named, which is the same while a kernel's candidates were measured together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polytile.cli.kernels import Kernel
from polytile.dispatch.planfile import Plan
from polytile.errors import StoreError
from polytile.facts import Fact, Threads
from polytile.problem import Problem
from polytile.runtime import regime
from polytile.runtime.device import kind_of
from polytile.store.reading import Record, grouped
from polytile.store.records import Identity
from polytile.tuning.decide import noise_band, pick
from polytile.tuning.standings import Standing, standings


@dataclass(frozen=True)
class Here:
    """What else determines a choice in this process, in addition to the sizes."""

    device: str
    environment: Mapping[str, str]
    threads: int
    plan_conditions: tuple[Fact, ...] = ()
    """The conditions by which a plan is read (dispatch/conditions.py)."""


@dataclass(frozen=True)
class Ranked:
    """A candidate: seconds per call (None if it has no time) and a word on how else it ended."""

    candidate: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True)
class Why:
    """`candidate` is None on a miss; then `differs` says in what the nearest measured problem differs from the asked one,
    a sentence each, and `standings` are of that problem. `sizes` are those that the standings were measured at."""

    sizes: tuple[tuple[str, int], ...]
    candidate: str | None
    provenance: str
    standings: tuple[Ranked, ...] = ()
    differs: tuple[str, ...] = field(default=())


def given_sizes(kernel: Kernel, words: Sequence[str]) -> dict[str, int]:
    """Sizes from "NAME=SIZE" words, or plain numbers in the kernel's order. Raises StoreError where a word is no size."""
    sizes: dict[str, int] = {}
    for place, word in enumerate(words):
        name, equals, number = word.partition("=")
        if not equals:
            name, number = kernel.size_names[place] if place < len(kernel.size_names) else "", word
        if name not in kernel.size_names or not re.fullmatch(r"-?\d+", number):
            names = " ".join(f"{name}=…" for name in kernel.size_names)
            raise StoreError(f"{word!r} is no size of kernel {kernel.name}; give its sizes as {names}.")
        sizes[name] = int(number)
    return sizes


def sizes_of(kernel: Kernel, words: Sequence[str]) -> dict[str, int]:
    """Sizes as `given_sizes` reads them; those not given are taken from the store where they are the same everywhere. Raises
    StoreError where a word is no size, or a size is missing."""
    sizes = given_sizes(kernel, words)
    for name in kernel.size_names:
        values = {dict(record.measurement.problem.sizes)[name] for record in kernel.records}
        if name not in sizes and len(values) > 1:
            raise StoreError(
                f"kernel {kernel.name} was measured at several {name} ({_some(values)}); add {name}=… to the sizes, or --all."
            )
        sizes.setdefault(name, values.pop() if len(values) == 1 else 0)
    return {name: sizes[name] for name in kernel.size_names}


def why(kernel: Kernel, sizes: Mapping[str, int], here: Here, plan: tuple[str, Plan] | None = None) -> list[Why]:
    """The answers: one, or several where the kernel was measured at these sizes with other layouts too."""
    asked = tuple(sizes.items())
    if plan is not None:
        name, content = plan
        of_kernel = (p for p in content.decisions if p.digest == kernel.digest and p.conditions == here.plan_conditions)
        pinned = [p for p in of_kernel if p.regime.admits(sizes)]
        if pinned:
            return [Why(asked, p.candidate, f"pinned by {name} for {p.regime}") for p in pinned]
    groups = grouped(kernel.records, lambda one: (one.problem, one.environment))
    near = sorted(groups, key=lambda key: _distance(key, sizes, here))
    exact = [key for key in near if not differences(key, sizes, here)]
    if exact:
        return [_answer(groups[key], "measured at these sizes") for key in exact]
    nearest = near[0]
    if same_regime(nearest, sizes, here):
        where = "measured in the same regime"
        return [_answer(groups[nearest], where, differences(nearest, sizes, here))]
    return [_miss(groups[nearest], differences(nearest, sizes, here))]


Key = tuple[Problem, tuple[tuple[str, str], ...]]
"""What a lookup finds measurements by: problem and environment."""


def differences(key: Key, sizes: Mapping[str, int], here: Here) -> tuple[str, ...]:
    """Each field in which a measured problem differs from a call here at these sizes, as "field: there, here"."""
    problem, environment = key
    facts = dict(environment)
    said = [
        f"{name}: measured with {facts.get(name, 'none')}, here {here.environment.get(name, 'none')}"
        for name in sorted({*facts, *here.environment})
        if facts.get(name) != here.environment.get(name)
    ]
    if problem.device != here.device:
        said.append(f"device: measured on {problem.device}, here {here.device}")
    teams = (fact.count for fact in problem.layouts if isinstance(fact, Threads))
    said += [f"threads: measured with {count}, here {here.threads}" for count in teams if count != here.threads]
    others = [(name, size, sizes[name]) for name, size in problem.sizes if size != sizes[name]]
    return (*said, *(f"size {n}: measured at {there}, asked for {asked}{_apart(there, asked)}" for n, there, asked in others))


def _apart(there: int, asked: int) -> str:
    """A sentence on the regimes of two sizes, if they differ."""
    if regime.bucket(there) == regime.bucket(asked):
        return " (one regime)"
    words = []
    for size in (there, asked):
        low, high = regime.bounds(regime.bucket(size))
        divides = ", 16 divides it" if size % 16 == 0 else ", 16 does not divide it"
        words.append(f"{low}..{high}{divides}" if low < high else str(size))
    return f" (regimes {words[0]}; {words[1]})"


def same_regime(key: Key, sizes: Mapping[str, int], here: Here) -> bool:
    """Whether sizes alone differ, and so little that a call does not tell them apart."""
    problem, _ = key
    if differences(key, dict(problem.sizes), here):
        return False
    return all(regime.bucket(size) == regime.bucket(sizes[name]) for name, size in problem.sizes)


def _distance(key: Key, sizes: Mapping[str, int], here: Here) -> tuple[Any, ...]:
    """Nearest first: fewest fields other than sizes, then the same regime, then the fewest octaves in any size."""
    problem, _ = key
    others = len(differences(key, dict(problem.sizes), here))
    octaves = [abs(math.log2(max(size, 1) / max(sizes[name], 1))) for name, size in problem.sizes]
    return others, not same_regime(key, sizes, here), max(octaves, default=0.0), problem.key


def _answer(records: Sequence[Record], provenance: str, differs: tuple[str, ...] = ()) -> Why:
    by_candidate = standings(records)
    problem = records[0].measurement.problem
    scores, entrants = [each.score for each in by_candidate.values()], [each.entrant for each in by_candidate.values()]
    best = pick(scores, noise_band(kind_of(problem.device)), entrants)
    sizes = problem.sizes
    if best is None:
        return Why(sizes, None, "no candidate could run when it was measured", _ranked(by_candidate), differs)
    return Why(sizes, list(by_candidate)[best][0], provenance, _ranked(by_candidate), differs)


def _miss(records: Sequence[Record], differs: tuple[str, ...]) -> Why:
    sizes = records[0].measurement.problem.sizes
    return Why(sizes, None, "nothing was measured for this call", _ranked(standings(records)), differs)


def _ranked(found: Mapping[Identity, Standing]) -> tuple[Ranked, ...]:
    scores = [(who[0], standing.score) for who, standing in found.items()]
    made = [Ranked(name, score.seconds if score.ok else None, "" if score.ok else score.outcome.value) for name, score in scores]
    return tuple(sorted(made, key=lambda ranked: (ranked.seconds is None, ranked.seconds or 0.0)))


def _some(values: set[int]) -> str:
    shown = sorted(values)
    return ", ".join(map(str, shown[:6])) + (", …" if len(shown) > 6 else "")
