"""Which candidates a loop has, in which order, where each is valid, and what the prior says of them."""

from __future__ import annotations

import pytest
import torch

from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.schedule.cpu.space import thread_counts
from tests.codegen.helpers import F32, I64, P0, P1, R0, S0, S1, Case, checked, load, loop, op, store

ROW = P0 * S1 + R0


def softmax_of(index: object) -> Node:
    x = load("x", index)  # type: ignore[arg-type]
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return op("div", power, expr.reduce("sum", F32, power))


def case(
    value: Node, index: object, reduced: bool = True, threads: int = 16, result: torch.dtype = torch.float32
) -> Case:
    axes = ({P0: S0}, {R0: S1}) if reduced else ({P0: S0, P1: S1}, {})
    return Case(loop([store("o", index, value)], *axes), {"x": F32, "o": result}, threads, compiled=False)  # type: ignore[arg-type]


def names(one: Case) -> list[str]:
    return [c.name for c in one.candidates]


def test_thread_counts_are_one_then_powers_of_four_then_all() -> None:
    assert [thread_counts(n) for n in (1, 2, 4, 8, 64)] == [(1,), (1, 2), (1, 4), (1, 4, 8), (1, 4, 16, 64)]


def test_candidates_stand_in_canonical_order() -> None:
    """Fewer threads first, then the simpler variant; the split form last."""
    pointwise = case(op("exp", load("x", P0 * S1 + P1)), P0 * S1 + P1, reduced=False)
    assert names(pointwise) == [f"{variant} t{count}" for count in (1, 4, 16) for variant in ("plain", "short", "streamed")]
    rows = case(softmax_of(ROW), ROW, threads=4)
    whole = [f"{variant} t{count}" for count in (1, 4) for variant in ("persistent", "looped", "short")]
    assert names(rows) == [*whole, "split t4"]


def test_rows_are_kept_only_where_computing_again_costs_more() -> None:
    cheap = case(op("sub", load("x", ROW), expr.reduce("max", F32, load("x", ROW))), ROW)
    assert "persistent t1" not in names(cheap)


@pytest.mark.parametrize(
    ("name", "rows", "length", "valid"),
    [
        ("looped t1", 1, 1, True), ("looped t1", 0, 0, True),
        ("persistent t1", 4, 1000, True), ("persistent t1", 4, 1 << 20, True),
        ("looped t4", 2, 100, False), ("looped t4", 1, 100_000, False), ("looped t4", 64, 64, True),
        ("short t1", 16, 128, True), ("short t1", 15, 128, False), ("short t1", 100, 129, False),
        ("split t4", 1, 100_000, True), ("split t4", 1, 1000, False), ("split t4", 10_000, 2000, False),
    ],
)  # fmt: skip
def test_where_a_candidate_is_valid(name: str, rows: int, length: int, valid: bool) -> None:
    found = {c.name: c for c in case(softmax_of(ROW), ROW, threads=4).candidates}
    assert found[name].valid({"n0": rows, "n1": length}) is valid


def test_a_row_that_needs_memory_of_its_own_may_not_be_long() -> None:
    """Where the result is narrower than what is kept, it cannot hold it."""
    found = {c.name: c for c in case(softmax_of(ROW), ROW, result=torch.bfloat16).candidates}
    assert found["persistent t1"].valid({"n0": 4, "n1": 1000})
    assert not found["persistent t1"].valid({"n0": 4, "n1": 1 << 20})


def test_some_candidate_is_valid_at_any_size() -> None:
    for rows in (0, 1, 7, 5000):
        for length in (0, 1, 7, 5000):
            assert any(c.valid({"n0": rows, "n1": length}) for c in case(softmax_of(ROW), ROW).candidates)


def best(one: Case, rows: int, length: int) -> str:
    size = {"n0": rows, "n1": length}
    return min((c for c in one.candidates if c.valid(size)), key=lambda c: c.cost(size)).name


def test_the_prior_knows_what_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work has one thread, large work all, few long rows are split, rows that fit are kept, and lanes are rows where
    these are short."""
    rows = case(softmax_of(ROW), ROW, threads=4)
    assert best(rows, 4, 64) == "persistent t1"
    assert best(rows, 4096, 1024) == "persistent t4"
    assert best(rows, 1, 1_000_000).startswith("split")
    assert best(rows, 100, 5) == "short t1" and best(rows, 4096, 16) == "short t4"
    for cache, found in ((1 << 30, "plain t4"), (1 << 24, "streamed t4")):
        monkeypatch.setattr("polytile.runtime.cpu.last_level", lambda cache=cache: cache)
        monkeypatch.setattr("polytile.candidates.cpp_loops._made", {})
        pointwise = case(op("exp", load("x", P0 * S1 + P1)), P0 * S1 + P1, reduced=False, threads=4)
        assert best(pointwise, 4, 64) == "plain t1" and best(pointwise, 4096, 1024) == found


def test_a_scan_of_several_results_is_not_split() -> None:
    both = expr.scan("max", F32, load("x", ROW), expr.index_value(R0))
    assert "split t16" not in names(case(expr.part(both, 0, F32), ROW))
    assert "split t16" in names(case(expr.scan("sum", F32, load("x", ROW)), ROW))


def test_a_failed_check_says_what_was_asked() -> None:
    from polytile.candidates.cpp_loops import check_messages

    value = load("x", expr.indirect_symbol(0), indirect=(checked("i", P0, S1),))
    one = Case(loop([store("o", P0, value)], {P0: S0}), {"x": F32, "i": I64, "o": F32}, compiled=False)
    assert check_messages(one.kernel) == ("an index is out of range for a dimension of n1 elements",)
