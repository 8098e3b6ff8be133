"""The dispatch table of one kernel as a package has it (packages/tables.h): generated kernels alone, decided or predicted ahead.

What was decided for a regime serves there, if it is generated code; the selector's choice among generated code stands in where
it was a library's call. Cells of sizes for which nothing is decided get the best predicted kernels. At all other sizes something
runs that is right anywhere.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CompiledCandidate
from polytile.dispatch import selector
from polytile.dispatch.fallbacks import Cell, ReadSizes, cells_around
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CandidateRejected, CompileFailed
from polytile.runtime import regime

MOST_CANDIDATES = 6
"""Generated kernels of which a cell finds the best predicted one: those that were chosen most often, and for the first sizes."""

Fixed = Mapping[str, int]
"""The integers that one call of a program always passes, by name."""


@dataclass(frozen=True)
class Leaf:
    """A generated kernel, and those integers on which it rests that it is right there."""

    candidate: CompiledCandidate
    facts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class PackagedTable:
    """Numbers of `leaves`, the first to look at first: by the fields of a regime's key, where an empty tuple says that it is
    subdivided; by those of a cell; and for all other sizes. `decisions` says for people what serves which regime, and why."""

    leaves: tuple[Leaf, ...]
    decided: Mapping[KeyFields, tuple[int, ...]]
    cells: Mapping[KeyFields, tuple[int, ...]]
    anywhere: tuple[int, ...]
    decisions: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Met:
    """Integers with which a program calls a kernel, the fixed ones among them by name."""

    ints: tuple[int, ...]
    fixed: Fixed


def packaged_table(multikernel: MultiKernel, calls: Sequence[Met]) -> PackagedTable | None:
    """The table for these calls, the first of which matters most; None where no generated kernel can make one of them."""
    maker = _Maker(multikernel)
    return maker.table(calls) if all(maker.choose(met.ints) is not None for met in calls) else None


class _Maker:
    """One kernel on its way to a table."""

    def __init__(self, multikernel: MultiKernel) -> None:
        self.multikernel, self.spec, self.keys = multikernel, multikernel.spec, multikernel.keys
        self.leaves: dict[Leaf, int] = {}
        self.decisions: list[tuple[str, str, str]] = []
        self._chosen: dict[tuple[int, ...], CompiledCandidate | None] = {}

    def choose(self, ints: tuple[int, ...]) -> CompiledCandidate | None:
        """The generated kernel for these integers that the selector takes without measuring, if one can run and be compiled."""
        if ints not in self._chosen:
            self._chosen[ints] = self._choose(ints)
        return self._chosen[ints]

    def _choose(self, ints: tuple[int, ...]) -> CompiledCandidate | None:
        multikernel, failed = self.multikernel, set[str]()
        with multikernel.lock, settings.restored({**multikernel.options, "stall": "compile"}):
            request = multikernel.request(multikernel.planned_key(ints), ints, None)
            while able := [c for c in request.candidates if isinstance(c, CompiledCandidate) and c.name not in failed]:
                decision = selector.choose(dataclasses.replace(request, candidates=tuple(able)))
                if decision is None:
                    return None
                found = request.named(decision.candidate)
                assert isinstance(found, CompiledCandidate)
                if _compiles(found):
                    self.decisions.append((str(decision.regime), decision.candidate, f"{decision.link}: {decision.provenance}"))
                    return found
                failed.add(found.name)
        return None

    def table(self, calls: Sequence[Met]) -> PackagedTable:
        often = Counter(found for met in calls if (found := self.choose(met.ints)) is not None)
        first = self.choose(calls[0].ints)
        best = list(dict.fromkeys(c for c in (first, *(c for c, _ in often.most_common(MOST_CANDIDATES))) if c is not None))
        decided = self._decided()
        cells: dict[KeyFields, tuple[int, ...]] = {}
        for met in calls:
            fields, cell = cells_around(self.keys, met.ints, 1, ())[0]
            if fields not in cells:
                cells[fields] = self._in_cell(cell, met, [self.choose(met.ints), *best])
        anywhere = self._anywhere(calls, best)
        return PackagedTable(tuple(self.leaves), decided, cells, anywhere, tuple(self.decisions))

    def _number(self, leaf: Leaf) -> int:
        return self.leaves.setdefault(leaf, len(self.leaves))

    def _decided(self) -> dict[KeyFields, tuple[int, ...]]:
        """What was decided by measuring, or for these sizes alone. Regimes that are subdivided have no leaves."""
        found: dict[KeyFields, tuple[int, ...]] = {}
        for fields, decision in self.multikernel.regimes.items():
            candidate = self.choose(decision.ints) if decision.ints else None
            if candidate is None:
                continue
            found[fields] = (self._number(Leaf(candidate)),)
            if self.keys.is_sub_bucket(fields):
                found[self.keys.bucket(fields)] = ()
        return found

    def _in_cell(self, cell: Cell, met: Met, candidates: Iterable[CompiledCandidate | None]) -> tuple[int, ...]:
        """The leaves that are right all over a cell, the best predicted first. What the selector takes there, which may know
        more, comes ahead of them."""
        exact = {n for n, code in zip(self.keys.size_names, self.keys.size_codes, strict=True) if code == regime.EXACT}
        chosen, *others = dict.fromkeys(candidate for candidate in candidates if candidate is not None)
        ranked = [chosen, *sorted(others, key=lambda candidate: candidate.cost(cell.middle))]
        return self._right(ranked, cell.corners, {*self.keys.bucketed, *exact}, met.fixed)

    def _anywhere(self, calls: Sequence[Met], candidates: Sequence[CompiledCandidate]) -> tuple[int, ...]:
        """The leaves that are right at all sizes, one at least for each call's fixed integers where there is one."""
        found: dict[int, None] = {}
        for met in {tuple(met.fixed.items()): met for met in calls}.values():
            corners = ({**dict.fromkeys(self.keys.size_names, 1), **met.fixed},)
            own = self._right(candidates, corners, (), met.fixed)
            if not own:
                left = [c for c in self.multikernel.candidates if isinstance(c, CompiledCandidate) and c not in candidates]
                sizes = self.spec.sizes(met.ints)
                able = [c for c in left if self._facts(c, corners, (), met.fixed) is not None]
                able.sort(key=lambda candidate: candidate.cost(sizes))
                own = self._right([c for c in able[:MOST_CANDIDATES] if _compiles(c)][:1], corners, (), met.fixed)
            found |= dict.fromkeys(own)
        return tuple(found)

    def _right(
        self, candidates: Iterable[Candidate], corners: Sequence[Mapping[str, int]], told: Collection[str], fixed: Fixed
    ) -> tuple[int, ...]:
        pairs = [(c, self._facts(c, corners, told, fixed)) for c in candidates if isinstance(c, CompiledCandidate)]
        return tuple(self._number(Leaf(c, facts)) for c, facts in pairs if facts is not None)

    def _facts(
        self, candidate: Candidate, corners: Sequence[Mapping[str, int]], told: Collection[str], fixed: Fixed
    ) -> tuple[tuple[int, int], ...] | None:
        """The fixed integers on which it rests that a candidate is right at these corners, and between them; None where that is
        not known. `told`: names of the sizes that the corners bound."""
        rests_on: set[str] = set()
        for corner in corners:
            sizes = ReadSizes(corner)
            if not candidate.valid(sizes) or not sizes.read <= {*told, *fixed}:
                return None
            rests_on |= sizes.read - {*told}
        places = {name: place for place, name in enumerate(self.keys.size_names)}
        return tuple(sorted((places[name], fixed[name]) for name in rests_on))


def _compiles(candidate: CompiledCandidate) -> bool:
    try:
        candidate.prepare()
        candidate.handle()
    except (CandidateRejected, CompileFailed):
        return False
    return True


