"""What runs a call whose regime is not decided yet: the leaves of a MultiKernel's dispatch table (runtime/fallback.c).

A leaf is a loaded form of a candidate: one that a recent decision chose, or the library's. The background predicts ahead of
calls which leaves are fastest in the cells around recent calls. A cell is half an octave of each size. A candidate serves only
in cells where it is known to be valid, or everywhere if its validity depends on nothing, because generated code may do harm at
sizes it was not made for. If its validity depends only on integers that keys hold exactly, such as whether a weight is packed,
it serves wherever these have the values that they had when it was chosen. Elsewhere the library's candidate serves, which runs
at any sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.dispatch.keys import KeyFields, Keys
from polytile.facts import Wide
from polytile.runtime import dispatcher, regime
from polytile.runtime.dispatcher import pack_words
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

EVERYWHERE = pack_words(())
"""The key of the order for calls in cells that are not known."""

LATEST = 3
"""How many recently chosen candidates may serve a new regime until it is decided, in addition to the library's."""

FORMS = 8
"""The most forms of a candidate that serve: those loaded last."""

LIBRARY = 1.25
"""Until decisions are known, the library's candidate serves where it is predicted to be faster by more than this factor: the
prior is least accurate for library kernels."""

CELLS = 25
"""How many cells around a call are looked at, its own included: all within an octave for two sizes, or within six octaves for
one."""

MOST_CELLS = 512
"""How many cells are remembered: those of the latest calls, and those predicted last."""

MOST_DIRECTIONS = 3
"""Up to this many sizes, all combinations of a cell's corners are considered, and its neighbours too."""


@dataclass(frozen=True)
class Cell:
    """Sizes in the middle of a cell and at its corners. Integers without buckets have the values of some call."""

    middle: Mapping[str, int]
    corners: tuple[Mapping[str, int], ...]


class Fallbacks:
    """The leaves of one MultiKernel, protected by its lock."""

    def __init__(self, owner: MultiKernel, wake: Callable[[], Any]) -> None:
        self._owner, self._wake = owner, wake
        self._loaded: dict[str, list[tuple[Candidate, Entry]]] = {}
        """Forms by the candidate's name: the candidate decided on last and the form loaded last are the first."""
        self._cells: dict[KeyFields, Cell] = {}
        self._seconds: dict[tuple[KeyFields, str], float] = {}
        """Predictions; infinite where a candidate is not known to be valid."""
        self._factors = {c.name: LIBRARY for c in owner.candidates if c.origin == "library"}
        """How many times slower than predicted candidates are, relative to those that decisions preferred to them."""
        self._decided_at: dict[str, Mapping[str, int]] = {}
        """Sizes at which a candidate was decided on, by its name."""
        self._excluded: dict[KeyFields, Collection[str]] = {}
        """Candidates that must not run in a regime, though they may elsewhere in its cell."""
        self._first: tuple[int, ...] = ()
        self._varying: set[str] = set()
        """Sizes that differ between calls; of none it is known as long as there is one call."""
        self._looked: set[tuple[KeyFields, int, int]] = set()
        """The cells that were looked around, how many cells far, and how many sizes were known to vary then."""
        self._orders: dispatcher.Orders = {}
        for library in [c for c in owner.candidates if c.origin == "library" and c.ready()][:1]:
            self._loaded[library.name] = [(library, library.entry())]
        self._publish()

    def add_fallback(self, form: Candidate, entry: Entry) -> None:
        """Adds a loaded form, which a regime has chosen or which serves where the others are not valid."""
        forms = self._loaded.pop(form.name, [])
        if any(form is one for one, _ in forms):
            self._loaded = {form.name: forms, **self._loaded}
            self._orders[EVERYWHERE] = bytes(self._order(()))
            return
        forms = [(form, entry), *forms][:FORMS]
        latest = {form.name: forms, **self._loaded}
        kept = [name for name, own in latest.items() if own[0][0].origin != "library"][:LATEST]
        self._loaded = {name: own for name, own in latest.items() if name in kept or own[0][0].origin == "library"}
        self._publish()

    def learn(self, name: str, sizes: Mapping[str, int]) -> None:
        """Learns from a decision for the candidate `name` at these sizes that no other leaf is faster there, and corrects the
        predictions accordingly. Decisions rest on more than these predictions: on learned models and measurements."""
        candidates = {each: self._owner.named(each) for each in self._loaded}
        seconds = {each: self._factors.get(each, 1.0) * c.cost(sizes) for each, c in candidates.items() if c.valid(sizes)}
        own = seconds.get(name, 0.0)
        slower = {each: self._factors.get(each, 1.0) * own / seconds[each] for each in seconds if 0 < seconds[each] < own}
        if slower or name not in self._decided_at:
            self._factors |= slower
            self._decided_at[name] = dict(sizes)
            self._publish()

    def withdraw(self, name: str) -> None:
        """Stops a candidate that has failed from serving anywhere."""
        if self._loaded.pop(name, None):
            self._publish()

    @property
    def loaded(self) -> tuple[str, ...]:
        """The names of the candidates that serve somewhere."""
        return tuple(self._loaded)

    @property
    def serve_everywhere(self) -> bool:
        """Whether some leaf is right for all calls."""
        return any(not self._leaves[number][2] for number in self._order(()))

    def valid_everywhere(self, candidate: Candidate) -> bool:
        """Whether a candidate may run at any sizes."""
        return self._predicted((), candidate.name) < math.inf

    def fill_open_regimes(self, ints: Sequence[int], cells: int, varying: Collection[str] = ()) -> None:
        """Works out which leaves serve in this many cells around a call with these integers, in the directions of the sizes
        that vary, or are said to."""
        keys, self._first = self._owner.keys, self._first or tuple(ints)
        differ = zip(keys.size_names, ints, self._first, strict=True)
        self._varying |= {*varying, *(name for name, size, first in differ if size != first)} & keys.bucketed
        own = regime.cell_of(keys.fields(ints), keys.size_codes)
        if own in self._cells:
            self._cells[own] = self._cells.pop(own)  # now one of the latest
        looked = own, cells, len(self._varying)
        if looked in self._looked:
            return
        self._looked.add(looked)
        for fields, cell in cells_around(keys, ints, cells, self._varying or keys.bucketed, self._cells):
            self._cells[fields] = cell
            self._orders[pack_words(fields)] = bytes(self._order(fields))
        if len(self._cells) > MOST_CELLS:
            self._forget_cells()

    def _forget_cells(self) -> None:
        """Forgets all but the latest cells."""
        for fields in [*self._cells][:-MOST_CELLS]:
            del self._cells[fields]
            if fields not in self._excluded:  # a regime and its cell may have the same fields
                del self._orders[pack_words(fields)]
        self._seconds = {at: seconds for at, seconds in self._seconds.items() if at[0] in self._cells or not at[0]}
        self._looked.clear()

    def seconds(self, ints: Sequence[int]) -> float:
        """Predicted seconds of a call with these integers whose regime is not decided: of the best leaf, in the middle of the
        cell. 0 where the cell is not known, or nothing can serve there."""
        cell = regime.cell_of(self._owner.keys.fields(ints), self._owner.keys.size_codes)
        known = [self._predicted(cell, name) for name in self._loaded] if cell in self._cells else []
        return min((seconds for seconds in known if seconds < math.inf), default=0.0)

    def exclude(self, fields: KeyFields, names: Collection[str]) -> None:
        """Stops these candidates from serving in the regime `fields` while it is undecided."""
        self._excluded[fields] = names
        self._orders[pack_words(fields)] = bytes(self._left(fields))

    def _publish(self) -> None:
        """Tells the dispatch table about the loaded leaves; it reads `_orders` itself."""
        keys = self._owner.keys
        pairs = [pair for forms in self._loaded.values() for pair in forms]
        given = [(form, entry, leaf_facts(keys, form.facts)) for form, entry in pairs]
        plain = [(form, entry, facts) for form, entry, facts in given if facts is not None]
        asked = [(leaf, self._asked(leaf[0])) for leaf in plain]
        self._leaves = [*plain, *((form, entry, (*facts, *more)) for (form, entry, facts), more in asked if more)]
        self._plain = len(plain)
        self._orders = {pack_words(fields): bytes(self._order(fields)) for fields in ((), *self._cells)}
        self._orders |= {pack_words(fields): bytes(self._left(fields)) for fields in self._excluded}
        leaves = tuple((entry, pack_words(itertools.chain(*facts))) for _, entry, facts in self._leaves)
        self._owner.dispatcher.fall_back(leaves, self._orders, self._wake)

    def _left(self, fields: KeyFields) -> list[int]:
        cell = regime.cell_of(fields, self._owner.keys.size_codes)
        order = self._order(cell if cell in self._cells else ())
        return [number for number in order if self._leaves[number][0].name not in self._excluded[fields]]

    def _order(self, fields: KeyFields) -> list[int]:
        """Numbers of the leaves that may serve in a cell, or everywhere, with the best predicted first; everywhere, with the one
        decided on last."""
        able = {name: self._factors.get(name, 1.0) * self._predicted(fields, name) for name in self._loaded}
        ranks = {name: rank for rank, name in enumerate(sorted(able, key=lambda name: able[name]) if fields else able)}
        numbered = [
            (ranks[form.name], number)
            for number, (form, _, _) in enumerate(self._leaves)
            if (able[form.name] < math.inf if number < self._plain else not fields)
        ]
        return [number for _, number in sorted(numbered)]

    def _asked(self, candidate: Candidate) -> tuple[dispatcher.LeafFact, ...]:
        """What the integers of a call must be for the candidate to be valid whatever its other integers are; nothing where others
        matter, or none."""
        keys, decided = self._owner.keys, self._decided_at.get(candidate.name)
        if decided is None:
            return ()
        read = sizes_read(candidate, (decided,))
        if read is None or not read <= keys.exact:
            return ()
        return tuple((dispatcher.SIZE_IS, keys.size_names.index(name), decided[name]) for name in sorted(read))

    def _predicted(self, fields: KeyFields, name: str) -> float:
        """Seconds that a candidate is predicted to take in the middle of a cell, infinite where it is not known to be valid. Of
        what is valid everywhere nothing is predicted where no cell is known."""
        if (fields, name) not in self._seconds:
            candidate, cell = self._owner.named(name), self._cells.get(fields)
            by_user = self._owner.spec.family == "user"
            able = candidate.origin == "library" or _is_valid(candidate, cell, self._owner.keys, by_user)
            self._seconds[fields, name] = (candidate.cost(cell.middle) if cell is not None else 0.0) if able else math.inf
        return self._seconds[fields, name]


def leaf_facts(keys: Keys, facts: Facts) -> tuple[dispatcher.LeafFact, ...] | None:
    """What the table must test before a form that assumes these facts runs; None if it cannot test them."""
    sizes = {name: place for place, name in enumerate(keys.size_names)}
    tensors = {name: place for place, name in enumerate(keys.tensor_names)}
    multiples = [*facts.powers, *((name, 16) for name in sorted(facts.divisible | facts.aligned))]
    multiples += [(fact.name, fact.by) for fact in sorted(facts.holding, key=str)]
    if not {name for name, _ in (*multiples, *facts.exact, *facts.least)} <= sizes.keys() | tensors.keys():
        return None
    first = regime.count(keys.size_codes, keys.tensor_codes)
    narrow = [first + n for n, condition in enumerate(keys.conditions) if condition.asked == Wide() and not facts.wide]
    return (
        *((dispatcher.SIZE_DIVIDED, sizes[name], by) for name, by in multiples if name in sizes),
        *((dispatcher.ADDRESS_DIVIDED, tensors[name], by) for name, by in multiples if name not in sizes),
        *((dispatcher.SIZE_IS, sizes[name], value) for name, value in facts.exact),
        *((dispatcher.SIZE_REACHES, sizes[name], least) for name, least in facts.least),
        *((dispatcher.FIELD_IS, field, 0) for field in narrow),
    )


def sizes_read(candidate: Candidate, corners: Iterable[Mapping[str, int]]) -> set[str] | None:
    """Names of the sizes on which it depends whether a candidate is valid at these corners; None if it is not at one of them."""
    read = set[str]()
    return read if all(candidate.valid(_ReadSizes(corner, read)) for corner in corners) else None


class _ReadSizes(Mapping[str, int]):
    """Sizes that add the names of those that are read to `read`."""

    def __init__(self, sizes: Mapping[str, int], read: set[str]) -> None:
        self._sizes, self.read = sizes, read

    def __getitem__(self, name: str) -> int:
        self.read.add(name)
        return self._sizes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def _is_valid(candidate: Candidate, cell: Cell | None, keys: Keys, at_any: bool) -> bool:
    """Whether a candidate is valid all over a cell, or everywhere where no cell is given. It is not known of one whose limits
    depend on integers that a cell does not tell; `at_any`, nor of one whose limits depend on any."""
    bounded = frozenset[str]() if cell is None or at_any else keys.bucketed | keys.exact
    read = sizes_read(candidate, cell.corners if cell is not None else (dict.fromkeys(keys.size_names, 1),))
    return read is not None and read <= bounded


def cells_around(
    keys: Keys, ints: Sequence[int], cells: int, varying: Collection[str], known: Container[KeyFields] = ()
) -> list[tuple[KeyFields, Cell]]:
    """The cells nearest to the one of these integers, by half octaves, without those that are `known`."""
    own = regime.cell_of(keys.fields(ints), keys.size_codes)
    codes = [(name, code) for name, code in zip(keys.size_names, keys.size_codes, strict=True) if code != regime.IGNORE]
    places = {place: name for place, (name, code) in enumerate(codes) if code == regime.BUCKET}
    directions = sum(name in varying for name in places.values())
    reach = (0, CELLS // 2, 2, 1)[directions] if directions <= MOST_DIRECTIONS and cells > 1 else 0
    steps = [_steps(own[place], reach if name in varying else 0) for place, name in places.items()]
    moves = sorted(itertools.product(*steps), key=lambda move: sum(distance for distance, _ in move))
    call = dict(zip(keys.size_names, ints, strict=True))
    cells_by_distance = []
    for move in moves[:cells]:
        at = {place: field for place, (_, field) in zip(places, move, strict=True)}
        fields = tuple(at.get(place, field) for place, field in enumerate(own))
        if fields in known:
            continue
        ends = {places[place]: regime.bounds(field) for place, field in at.items()}
        every = itertools.product(*ends.values()) if len(ends) <= MOST_DIRECTIONS else zip(*ends.values(), strict=True)
        corners = tuple({**call, **dict(zip(ends, corner, strict=True))} for corner in every)
        middle = {name: math.isqrt(low * high) for name, (low, high) in ends.items()}
        cells_by_distance.append((fields, Cell({**call, **middle}, corners)))
    return cells_by_distance


def _steps(field: int, reach: int) -> list[tuple[int, int]]:
    """(distance, field) of the cells of a size that are at most so far from the one of this field."""
    above = regime.EXACT_UP_TO + 1
    first = regime.bucket(above) & ~1
    place = field if field < above else above + (field - first) // 2
    near = range(min(place, max(1, place - reach)), place + reach + 1)
    return [(abs(other - place), other if other < above else first + 2 * (other - above)) for other in near]
