"""What the benchmark of equal choices counts."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from benchmarks.same_winner import Found, Turn, contested, judged, medians, unsteady


def test_agreement_and_cost_of_choices() -> None:
    close = (("a", 1.01), ("b", 1.0))
    found = {
        "all agree": [Found("a", close)] * 4,
        "one differs": [Found("a", close)] * 3 + [Found("b", close)],
    }
    verdict = judged(found, lambda one: one.winner)
    assert verdict.share == pytest.approx((1 + 3 / 4) / 2)
    assert verdict.pairs == pytest.approx((6 + 3) / 12)
    assert verdict.cost == pytest.approx(0.01 * 7 / 8)
    assert verdict.against_argmin == pytest.approx(0.01 * 7 / 8)
    assert judged(found, lambda one: one.fastest).share == 1.0 and judged(found, lambda one: one.fastest).cost == 0.0
    ((problem, winners, gap),) = unsteady(found)
    assert (problem, winners) == ("one differs", "a: 3, b: 1") and gap == pytest.approx(0.01)


def test_a_candidate_counts_with_the_median_of_the_processes_that_timed_it() -> None:
    each = [Found("a", (("a", 1.0),)), Found("a", (("a", 3.0), ("b", 2.0))), Found("a", (("a", 1.2),))]
    assert medians(each) == {"a": 1.2, "b": 2.0}


def test_a_problem_on_which_some_process_had_no_choice_is_not_contested() -> None:
    alone, two = Found("a", (("a", 1.0),)), Found("a", (("a", 1.0), ("b", 2.0)))
    assert contested({"alone": [alone, two], "contested": [two, two]}) == {"contested": [two, two]}


def test_one_process_at_a_time_has_its_turn_and_may_take_it_again(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "turns")
    with (tmp_path / "turns").open("a") as other:
        with turn, turn:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
