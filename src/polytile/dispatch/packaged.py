"""The dispatch table of one kernel in a package (packages/tables.h): kernels that run without Python and torch, decided or
predicted in advance.

A regime's decided candidate serves there if it is portable; otherwise the selector chooses among the portable ones. Cells of
sizes without a decision get the kernels with the best predictions. At all other sizes a kernel runs that is valid anywhere.

A GPU's kernels assume facts of a call. A regime's decided kernel assumes the facts of the regime. In a cell, kernels assume the
facts shared by all calls that the program makes with the same fixed integers, or, if they need more, those of one call. The
table tests these facts in each call, and its last form assumes none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.handles import Portable, ProductHandle
from polytile.dispatch import selector
from polytile.dispatch.decision import Decision
from polytile.dispatch.fallbacks import Cell, cells_around, leaf_facts, sizes_read
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CandidateRejected, CompileFailed, LoweringError
from polytile.runtime import regime
from polytile.runtime.cuda.device import DeviceFacts
from polytile.runtime.dispatcher import SIZE_DIVIDED, SIZE_IS, LeafFact
from polytile.schedule.facts import Facts

MOST_CANDIDATES = 6
"""How many portable kernels compete in a cell by their predictions: the kernel for the first sizes, and those chosen most
often."""

Fixed = Mapping[str, int]
"""The integers that one call of a program always passes, by name."""


@dataclass(frozen=True)
class Leaf:
    """A portable kernel, and what the table tests before it runs."""

    candidate: Candidate
    facts: tuple[LeafFact, ...] = ()

    @property
    def form(self) -> Portable:
        portable = self.candidate.portable()
        assert portable is not None
        return portable


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


def packaged_table(
    multikernel: MultiKernel, calls: Sequence[Met], devices: Sequence[DeviceFacts] = ()
) -> PackagedTable | None:
    """The table for these calls, of which the first matters most; None if one of them has no portable kernel. It serves GPUs
    like `devices` too, and skips what has no form for them."""
    maker = _Maker(multikernel, calls, devices)
    return maker.table() if all(maker.choose(met) is not None for met in calls) else None


class _Maker:
    """One kernel whose table is being made."""

    def __init__(self, multikernel: MultiKernel, calls: Sequence[Met], devices: Sequence[DeviceFacts]) -> None:
        self.multikernel, self.spec, self.keys, self.calls = multikernel, multikernel.spec, multikernel.keys, calls
        self.devices = devices
        self.leaves: dict[Leaf, int] = {}
        self.decisions: list[tuple[str, str, str]] = []
        self._chosen: dict[tuple[int, ...], Candidate | None] = {}
        self._unusable: set[Candidate] = set()
        for met in calls:  # all that compiles is asked for before any is waited for
            if (name := self._select(met.ints, self._key(met.ints), ())) is not None:
                _start(self._forms(name, met)[0])

    def choose(self, met: Met) -> Candidate | None:
        """The portable kernel for these integers that the selector takes without measuring, if one can run and be compiled."""
        if met.ints not in self._chosen:
            self._chosen[met.ints] = self._choose(met.ints, self._key(met.ints), lambda name: self._forms(name, met))
        return self._chosen[met.ints]

    def _choose(
        self, ints: tuple[int, ...], key: int, forms: Callable[[str], Sequence[Candidate]], pointers: Sequence[int] = ()
    ) -> Candidate | None:
        """The first form that compiles of the candidate that the selector chooses; candidates without such a form are passed
        over."""
        failed = set[str]()
        while (name := self._select(ints, key, failed, pointers, note=True)) is not None:
            first = next(filter(self._usable, forms(name)), None)
            if first is not None:
                return first
            self.decisions.pop()
            failed.add(name)
        return None

    def _select(
        self, ints: tuple[int, ...], key: int, failed: Collection[str], pointers: Sequence[int] = (), note: bool = False
    ) -> str | None:
        multikernel = self.multikernel
        with multikernel.lock, settings.restored({**multikernel.options, "stall": "compile"}):
            request = multikernel.request(key, ints, None, pointers)
            able = tuple(c for c in request.candidates if c.is_portable and c.name not in failed)
            decision = selector.choose(dataclasses.replace(request, candidates=able)) if able else None
        if decision is None:
            return None
        if note:
            self.decisions.append((str(decision.regime), decision.candidate, f"{decision.link}: {decision.provenance}"))
        return decision.candidate

    def _key(self, ints: tuple[int, ...]) -> int:
        with self.multikernel.lock:
            return self.multikernel.planned_key(ints)

    def _forms(self, name: str, met: Met) -> list[Candidate]:
        """The forms of a candidate that may serve in the cell of a call: that for all calls with these fixed integers, and the
        call's own."""
        base = self.multikernel.named(name)
        return [base.specialise(facts) for facts in (self._shared(tuple(met.fixed.items())), self.keys.facts_for_code(met.ints))]

    @functools.cache  # noqa: B019  # a maker lives as long as a table is made
    def _shared(self, fixed: tuple[tuple[str, int], ...]) -> Facts:
        return _common([self.keys.facts_for_code(met.ints) for met in self.calls if tuple(met.fixed.items()) == fixed])

    def _usable(self, candidate: Candidate) -> bool:
        """Whether it can be compiled, and its assumptions can be tested."""
        if candidate in self._unusable or leaf_facts(self.keys, candidate.facts) is None:
            return False
        try:
            candidate.prepare()
            if candidate.portable() is not None:
                return True
        except (CandidateRejected, CompileFailed, LoweringError):
            pass
        self._unusable.add(candidate)
        return False

    def table(self) -> PackagedTable:
        often = Counter(choice for met in self.calls if (choice := self.choose(met)) is not None)
        first = self.choose(self.calls[0])
        best = list(dict.fromkeys(c for c in (first, *(c for c, _ in often.most_common(MOST_CANDIDATES))) if c is not None))
        decided = self._decided()
        cells: dict[KeyFields, tuple[int, ...]] = {}
        for met in self.calls:
            fields, cell = cells_around(self.keys, met.ints, 1, ())[0]
            if fields not in cells:
                cells[fields] = self._in_cell(cell, met, [self.choose(met), *best])
        anywhere = self._anywhere(best)
        return PackagedTable(tuple(self.leaves), decided, cells, anywhere, tuple(self.decisions))

    def _number(self, candidate: Candidate, facts: tuple[LeafFact, ...] = ()) -> int:
        own = leaf_facts(self.keys, candidate.facts)
        assert own is not None
        return self.leaves.setdefault(Leaf(candidate, tuple(dict.fromkeys((*own, *facts)))), len(self.leaves))

    def _decided(self) -> dict[KeyFields, tuple[int, ...]]:
        """What was decided by measuring, or for these sizes alone. Regimes that are subdivided have no leaves."""
        leaves_by_node: dict[KeyFields, tuple[int, ...]] = {}
        for fields, decision in self.multikernel.regimes.items():
            if not decision.ints:
                continue
            pointers = self.keys.pointers(fields)

            def form(name: str, decision: Decision = decision, pointers: Sequence[int] = pointers) -> list[Candidate]:
                own = self.multikernel.named(name).specialise(self.keys.facts_for_code(decision.ints, pointers))
                return [own.pinned_to(dict(decision.measured_at or decision.sizes))]

            (own,) = form(decision.candidate)
            if own.is_portable and self._usable(own):
                self.decisions.append((str(decision.regime), decision.candidate, f"{decision.link}: {decision.provenance}"))
                candidate: Candidate | None = own
            else:
                candidate = self._choose(decision.ints, regime.pack(fields), form, pointers)
            if candidate is None:
                continue
            leaves_by_node[fields] = (self._number(candidate),)
            if self.keys.is_sub_bucket(fields):
                leaves_by_node[self.keys.bucket(fields)] = ()
        return leaves_by_node

    def _in_cell(self, cell: Cell, met: Met, candidates: Iterable[Candidate | None]) -> tuple[int, ...]:
        """The leaves that are right all over a cell, the best predicted first. What the selector takes there, which may know
        more, comes ahead of them."""
        chosen, *others = dict.fromkeys(candidate for candidate in candidates if candidate is not None)
        ranked = [chosen, *sorted(others, key=lambda candidate: candidate.cost(cell.middle))]
        return self._right(ranked, cell.corners, self.keys.bucketed | self.keys.exact, met.fixed)

    def _anywhere(self, candidates: Sequence[Candidate]) -> tuple[int, ...]:
        """The leaves that are right at all sizes, one at least for each call's fixed integers where there is one."""
        numbers: dict[int, None] = {}
        for met in {tuple(met.fixed.items()): met for met in self.calls}.values():
            corners = ({**dict.fromkeys(self.keys.size_names, 1), **met.fixed},)
            own = self._right(candidates, corners, (), met.fixed)
            for device in (None, *self.devices):
                if any(self._always(self._leaf(number), met.fixed, device) for number in own):
                    continue
                own += self._last(candidates, corners, met, device)
            numbers |= dict.fromkeys(own)
        return tuple(numbers)

    def _last(
        self, candidates: Sequence[Candidate], corners: Sequence[Mapping[str, int]], met: Met, device: DeviceFacts | None
    ) -> tuple[int, ...]:
        """The leaf that relies on nothing but a call's fixed integers, so that it serves every call with them; () if there is
        none."""
        exact = self._shared(tuple(met.fixed.items())).exact
        facts = Facts(wide=True, exact=tuple((name, value) for name, value in exact if name in met.fixed))
        plain = [self.multikernel.named(c.name).specialise(facts) for c in candidates]
        left = [form for c in self.multikernel.candidates if (form := c.specialise(facts)).is_portable]
        able = [c for c in left if c not in plain and self._facts(c, corners, (), met.fixed) is not None]
        able.sort(key=lambda candidate: candidate.cost(self.spec.sizes(met.ints)))
        for candidate in filter(self._usable, (*plain, *able[:MOST_CANDIDATES])):
            own = self._right([candidate], corners, (), met.fixed)
            if own and self._always(self._leaf(own[0]), met.fixed, device):
                return own
        return ()

    def _leaf(self, number: int) -> Leaf:
        return list(self.leaves)[number]

    def _always(self, leaf: Leaf, fixed: Fixed, device: DeviceFacts | None) -> bool:
        """Whether a leaf makes every call with these fixed integers; on another GPU, if one is given."""
        form = leaf.form if device is None else leaf.candidate.portable_to(device)
        return not isinstance(form, ProductHandle | None) and all(
            kind in (SIZE_IS, SIZE_DIVIDED)
            and (own := fixed.get(self.keys.size_names[place])) is not None
            and (own == number if kind == SIZE_IS else own % number == 0)
            for kind, place, number in leaf.facts
        )

    def _right(
        self, candidates: Iterable[Candidate], corners: Sequence[Mapping[str, int]], told: Collection[str], fixed: Fixed
    ) -> tuple[int, ...]:
        pairs = [(c, self._facts(c, corners, told, fixed)) for c in candidates]
        return tuple(self._number(c, facts) for c, facts in pairs if facts is not None)

    def _facts(
        self, candidate: Candidate, corners: Sequence[Mapping[str, int]], told: Collection[str], fixed: Fixed
    ) -> tuple[LeafFact, ...] | None:
        """The fixed integers on which it rests that a candidate is right at these corners, and between them; None where that is
        not known. `told`: names of the sizes that the corners bound."""
        if candidate.right_anywhere:
            return ()
        read = sizes_read(candidate, corners)
        if read is None or not read <= {*told, *fixed}:
            return None
        return tuple(sorted((SIZE_IS, self.keys.size_names.index(name), fixed[name]) for name in read.difference(told)))


def _start(candidate: Candidate) -> None:
    with contextlib.suppress(CandidateRejected, CompileFailed, LoweringError):
        candidate.prepare()


def _common(all_facts: Sequence[Facts]) -> Facts:
    """The facts that hold in all calls with these facts. The table tests whether positions need 64 bits."""
    first, *others = all_facts
    names = {*first.divisible, *(name for name, _ in (*first.powers, *first.exact))}
    divisors = {name: math.gcd(*(facts.divisor(name) for facts in all_facts)) for name in sorted(names)}
    exact = tuple(pair for pair in first.exact if all(pair in facts.exact for facts in others))
    known = dict(exact)
    return Facts(
        divisible=frozenset(name for name, by in divisors.items() if by == 16 and name not in known),
        aligned=frozenset.intersection(*(facts.aligned for facts in all_facts)),
        exact=exact,
        holding=frozenset.intersection(*(facts.holding for facts in all_facts)),
        powers=tuple((name, by) for name, by in divisors.items() if 1 < by < 16 and name not in known),
    )
