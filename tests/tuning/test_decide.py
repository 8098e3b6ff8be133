"""From times to a choice: ties go to the canonical order, and several processes' measurements make one score."""

from __future__ import annotations

import math
import random

import pytest

from polytile.problem import Outcome
from polytile.store import Summary
from polytile.tuning.decide import Score, combine, doubtful, pick


def scores(*seconds: float | None) -> list[Score | None]:
    return [None if time is None else Score(time) for time in seconds]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((1.0, 2.0), 0),
        ((2.0, 1.0), 1),
        ((1.019, 1.0), 0),
        ((1.021, 1.0), 1),
        ((1.5, 1.015, 1.0, 1.01), 1),
        ((None, 2.0, 1.0), 2),
        ((None, None), None),
        ((math.nan, 1.0), 1),
        ((0.0, 0.0), 0),
    ],
)
def test_the_first_of_those_within_the_band_wins(seconds: tuple[float | None, ...], expected: int | None) -> None:
    assert pick(scores(*seconds), 0.02) == expected


def test_a_noisy_measurement_widens_the_band_up_to_five_percent() -> None:
    assert pick([Score(1.04, 0.05), Score(1.0, 0.0)], 0.02) == 0
    assert pick([Score(1.06, 0.5), Score(1.0, 0.5)], 0.02) == 1
    assert pick([Score(1.04, 0.001), Score(1.0, 0.001)], 0.02) == 1


def test_candidates_that_failed_are_not_picked() -> None:
    assert pick([Score(1.0, 0.0, Outcome.WRONG), Score(2.0)], 0.02) == 1


def test_two_tunings_of_near_ties_agree_far_more_often_than_by_the_fastest() -> None:
    noise = random.Random(1)

    def tuning() -> list[float]:
        return [true * (1 + noise.gauss(0, 0.005)) for true in (1.0, 1.004, 0.998, 1.2)]

    pairs = [(tuning(), tuning()) for _ in range(500)]
    by_band = sum(pick(scores(*a), 0.02) == pick(scores(*b), 0.02) for a, b in pairs)
    by_fastest = sum(a.index(min(a)) == b.index(min(b)) for a, b in pairs)
    assert by_band > 480 and by_fastest < 300


def summary(name: str, seconds: float, outcome: Outcome = Outcome.OK, condition: str = "back-to-back") -> Summary:
    return Summary("", "p", "r", "[]", (name, "[]", "h"), outcome, seconds, 0.01, condition)


def test_measurements_of_several_processes_make_one_score_by_their_lower_median() -> None:
    combined = combine([summary("a", 1.0), summary("a", 1.4), summary("a", 1.02), summary("b", 2.0)])
    assert combined["a", "[]", "h"].seconds == 1.02
    assert combined["b", "[]", "h"].seconds == 2.0


def test_a_wrong_result_is_final_and_other_failures_are_until_a_later_success() -> None:
    wrong = combine([summary("a", math.nan, Outcome.WRONG), summary("a", 1.0)])
    assert not wrong["a", "[]", "h"].ok
    mended = combine([summary("a", math.nan, Outcome.COMPILE_ERROR), summary("a", 1.0)])
    assert mended["a", "[]", "h"].ok
    broken = combine([summary("a", 1.0), summary("a", math.nan, Outcome.CRASHED)])
    assert broken["a", "[]", "h"].outcome is Outcome.CRASHED


def test_measurements_under_another_condition_do_not_mix() -> None:
    combined = combine([summary("a", 1.0), summary("a", 9.0, condition="cold cache")])
    assert combined["a", "[]", "h"].seconds == 1.0


def test_a_choice_by_a_distance_of_about_the_band_is_in_doubt() -> None:
    assert doubtful([Score(1.02, 0.01), Score(1.0, 0.01)], 0.02)
    assert not doubtful([Score(1.02, 0.0001), Score(1.0, 0.0001)], 0.05)
    assert not doubtful([Score(1.0, 0.005), Score(1.02, 0.005)], 0.02), "later ones are chosen by nothing"
    assert not doubtful([Score(1.5, 0.01), Score(1.0, 0.01)], 0.02)
    assert not doubtful([None, Score(math.nan, outcome=Outcome.CRASHED)], 0.02)
