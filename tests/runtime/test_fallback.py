"""Calls for which nothing is decided run a leaf whose facts hold, and are noted; in C and in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polytile.candidates.entries import PythonEntry
from polytile.runtime import dispatcher, programs, regime
from polytile.runtime.dispatcher import Dispatcher, Interface, pack_words
from polytile.runtime.formula import power_below_16
from polytile.runtime.launcher import new_dispatcher
from polytile.runtime.python_dispatcher import PythonDispatcher

Make = Callable[..., Dispatcher]
Facts = tuple[dispatcher.LeafFact, ...]


@pytest.fixture(params=["c", "python"])
def make(request: pytest.FixtureRequest) -> Make:
    kind = new_dispatcher if request.param == "c" else PythonDispatcher
    return lambda *given, **named: kind(Interface(*given, **named))


class Table:
    """A dispatcher whose entries say their names, and which enters Python for a decision only where `asked` says so."""

    def __init__(self, make: Make, key: list[int], **more: Any) -> None:
        self.ran, self.asked, self.woken = list[str](), list[int](), 0
        self.dispatch = make("k", key, self._on_miss, on_due=lambda args: pytest.fail("calls are noted"), **more)

    def entry(self, name: str) -> PythonEntry:
        return PythonEntry(lambda *args: self.ran.append(name))

    def _on_miss(self, key: int, args: tuple[Any, ...]) -> PythonEntry:
        self.asked.append(key)
        return self.entry("decided in the call")

    def _wake(self) -> None:
        self.woken += 1

    def leaves(self, facts: dict[str, Facts], orders: dict[tuple[int, ...], list[int]] | None = None) -> None:
        given = tuple((self.entry(name), pack_words(word for fact in own for word in fact)) for name, own in facts.items())
        packed = {pack_words(fields): bytes(order) for fields, order in (orders or {(): [*range(len(facts))]}).items()}
        self.dispatch.fall_back(given, packed, self._wake)

    def run(self, *args: Any) -> str:
        self.dispatch(*args)
        return self.ran[-1]


def test_a_regime_that_is_not_decided_is_served_and_noted_once(make: Make) -> None:
    table = Table(make, [regime.BUCKET, regime.IGNORE])
    table.leaves({"leaf": ()})
    assert [table.run(100, 7), table.run(101, 8), table.run(40, 9)] == ["leaf"] * 3
    keys = [table.dispatch.key_of(100, 7), table.dispatch.key_of(40, 9)]
    assert [note[:3] for note in table.dispatch.notes()] == [(keys[0], (100, 7), ()), (keys[1], (40, 9), ())]
    assert table.woken == 2 and not table.asked and not table.dispatch.notes()
    assert all(table.dispatch.is_open(key) and table.dispatch.get(key) is None for key in keys)
    assert not table.dispatch.table() and table.dispatch.calls(keys[0]) == 1
    table.dispatch.insert(keys[0], table.entry("decided"))
    assert [table.run(100, 7), table.run(40, 9)] == ["decided", "leaf"] and not table.dispatch.notes()
    table.dispatch.reopen(keys[0])
    assert table.run(100, 7) == "leaf" and len(table.dispatch.notes()) == 1


FACTS: dict[str, tuple[Facts, list[bool]]] = {
    "a size is divided": (((dispatcher.SIZE_DIVIDED, 0, 4),), [True, False, False, True]),
    "a size is known": (((dispatcher.SIZE_IS, 0, 96),), [False, False, False, True]),
    "a size is large": (((dispatcher.SIZE_REACHES, 0, 90),), [False, True, True, True]),
    "the value of a field": (((dispatcher.FIELD_IS, 2, 0),), [True, True, False, True]),
    "all of several": (((dispatcher.SIZE_REACHES, 0, 90), (dispatcher.SIZE_DIVIDED, 0, 4)), [False, False, False, True]),
}


@pytest.mark.parametrize("kind", FACTS)
def test_a_leaf_runs_where_its_facts_hold(make: Make, kind: str) -> None:
    facts, expected = FACTS[kind]
    table = Table(make, [regime.BUCKET, regime.BUCKET], formulas=(power_below_16(0, 8),))
    table.leaves({"leaf": facts, "any": ()})
    halves = {32: 0, 91: 0, 90: 2, 96: 0}  # the formula's values
    assert [table.run(n, 5) == "leaf" for n in halves] == expected


def test_alignment_is_that_of_the_call(make: Make) -> None:
    table = Table(make, [regime.IGNORE], tensor_key=[regime.ALIGNED_16, regime.ANY])
    table.leaves({"aligned": ((dispatcher.ADDRESS_DIVIDED, 0, 16),), "any": ()})
    x = torch.zeros(64)
    assert [table.run(x, x[1:], 3), table.run(x[1:], x, 3)] == ["aligned", "any"]
    assert [note[2] for note in table.dispatch.notes()] == [(x.data_ptr(), x.data_ptr() + 4), (x.data_ptr() + 4, x.data_ptr())]


def test_the_order_is_that_of_the_regime_or_of_its_cell_or_of_all(make: Make) -> None:
    key = [regime.BUCKET, regime.EXACT, regime.DIVISIBLE]
    table = Table(make, key)
    fields = regime.fields_of(key, (100, 5, 32))
    cell, same, other = (regime.cell_of(regime.fields_of(key, n), key) for n in ((100, 5, 32), (112, 5, 33), (100, 6, 32)))
    assert cell == same != other
    table.leaves({"first": (), "second": (), "third": ()}, {(): [0, 1], cell: [1, 0], fields: [2]})
    assert [table.run(100, 5, 32), table.run(112, 5, 33), table.run(100, 6, 32)] == ["third", "second", "first"]


def test_without_a_leaf_that_may_run_the_call_decides(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    table.leaves({"even": ((dispatcher.SIZE_DIVIDED, 0, 2),)})
    assert table.run(31) == "decided in the call" and len(table.asked) == 1 and not table.dispatch.notes()
    table.leaves({})
    assert table.run(100) == "decided in the call" and len(table.asked) == 2


def test_exact_sizes_that_are_open_run_as_their_regime_does(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    table.leaves({"leaf": ()})
    table.run(100)
    buckets = table.dispatch.key_of(100)
    table.dispatch.insert(buckets, table.entry("of the regime"))
    table.dispatch.reopen(regime.pack([regime.exact_size(100)]))
    table.dispatch.notes()
    assert [table.run(100), table.run(101)] == ["of the regime"] * 2
    ((key, ints, _, _),) = table.dispatch.notes()
    assert regime.is_exact_size(regime.unpack(key, 1)[0]) and ints == (100,)
    table.dispatch.insert(buckets, None)
    assert table.run(101) == "leaf" and table.run(100) == "leaf", "the sub-bucket is open as well"
    table.dispatch.insert(regime.pack([regime.sub_bucket(100)]), table.entry("of the sub-bucket"))
    assert table.run(100) == "of the sub-bucket"


def test_who_decides_is_asked_in_its_own_calls(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    table.leaves({"leaf": ()})
    with dispatcher.deciding():
        assert table.run(100) == "decided in the call"
    assert table.run(40) == "leaf"


def test_calls_that_were_waited_for_are_noted(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    table.leaves({"leaf": ()})
    key = table.dispatch.key_of(100)
    table.dispatch.insert(key, table.entry("decided"))
    table.dispatch.watch(key, 2)
    assert [table.run(n) for n in (100, 101, 102)] == ["decided"] * 3
    assert [note[:2] for note in table.dispatch.notes()] == [(key, (101,))]


def test_a_note_says_which_programs_called(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    table.leaves({"leaf": ()})
    inner, outer, scope = programs.new_file("inner"), programs.new_file("outer"), {"run": table.run}
    exec(compile("def plain(n): return run(n)", inner, "exec"), scope)
    exec(compile("def program(n): return plain(n)", outer, "exec"), scope)
    assert scope["program"](100) == "leaf" and table.run(40) == "leaf"  # type: ignore[operator]
    assert [set(note[3]) for note in table.dispatch.notes()] == [{inner, outer}, set()]


def test_many_regimes_are_noted_and_served(make: Make) -> None:
    table = Table(make, [regime.EXACT])
    table.leaves({"leaf": ()})
    for n in range(500):
        table.dispatch(n)
    assert table.ran == ["leaf"] * 500 and {note[1] for note in table.dispatch.notes()} == {(n,) for n in range(500)}


def test_leaves_may_change_while_one_runs(make: Make) -> None:
    table = Table(make, [regime.BUCKET])
    again = PythonEntry(lambda *args: table.leaves({"next": ()}))
    table.dispatch.fall_back(((again, b""),), {b"": b"\x00"}, table._wake)
    table.dispatch(100)
    assert table.run(100) == "next"
