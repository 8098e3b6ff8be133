"""From times to a choice: ties go to the best predicted, and several processes' measurements make one score."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable

import pytest

from polytile.problem import Config, Outcome
from polytile.store import Summary
from polytile.store.records import LEAST_REGION, REGION, compact
from polytile.tuning.decide import Entrant, Score, combine, doubtful, pick, place_of


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


def test_of_many_measurements_the_middle_half_counts() -> None:
    times = [1.30, 0.99, 1.01, 1.00, 1.02, 0.70, 1.03, 1.04]
    combined = combine([summary("a", seconds) for seconds in times])
    assert combined["a", "[]", "h"].seconds == pytest.approx((1.00 + 1.01 + 1.02 + 1.03) / 4)


def test_the_middle_half_of_many_processes_varies_less_than_their_median() -> None:
    drawn = random.Random(0)

    def spread(of: Callable[[list[float]], float]) -> float:
        return statistics.stdev(of([drawn.gauss(1, 0.004) for _ in range(15)]) for _ in range(1000))

    def combined(times: list[float]) -> float:
        return combine([summary("a", seconds) for seconds in times])["a", "[]", "h"].seconds

    assert spread(combined) < 0.93 * spread(statistics.median)


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


def test_of_equals_the_best_predicted_is_chosen_whatever_the_order() -> None:
    near = scores(1.01, 1.0, 1.015, 1.3)
    entrants = [Entrant(predicted) for predicted in (3.0, 2.5, 2.0, 1.0)]
    assert pick(near, 0.02, entrants) == 2
    assert pick(near[::-1], 0.02, entrants[::-1]) == 1
    assert pick(near, 0.02, [Entrant(1.0)] * 4) == 0, "predicted alike: the canonical order"


def test_the_order_of_sources_decides_between_candidates_of_products_that_are_as_fast() -> None:
    from polytile import options

    def winner(sources: str, family: str = "mm", origins: tuple[str, ...] = ("cpp", "split_k", "triton")) -> str:
        with options.override(sources=sources):
            entrants = [Entrant(predicted, 1, place_of(o, family)) for o, predicted in zip(origins, (1.0, 2.0, 3.0), strict=True)]
        return origins[pick(scores(1.0, 1.01, 1.015), 0.02, entrants) or 0]

    assert winner("cpp,triton,library") == "cpp" and winner("triton,library,cpp") == "triton"
    assert winner("library,cpp") == "split_k", "which is the library's"
    assert winner("") == "cpp", "the best predicted"
    assert winner("triton,library,cpp", family="loop") == "cpp", "only products have sources: the best predicted"
    assert winner("triton,cpp", origins=("library", "library", "cpp")) == "cpp", "what takes part unasked comes last"


def test_kernels_of_several_threads_are_judged_as_if_a_region_cost_the_least_seen() -> None:
    alone, together = Entrant(2e-6, 1), Entrant(3e-6, 2)
    near, apart = [Score(2.2e-6), Score(1.8e-6)], [Score(2.2e-6, excess=0.5e-6), Score(2.6e-6, excess=0.5e-6)]
    assert pick(near, 0.02, [alone, together]) == pick(apart, 0.02, [alone, together]) == 1
    assert pick(apart, 0.02) == 0, "of nobody the threads are known"
    assert together.judged(5e-6, 1.0) == pytest.approx(4e-6) and together.judged(1e-6, 1.0) == pytest.approx(0.5e-6)
    assert alone.judged(5e-6, 1.0) == 5e-6


def test_what_a_region_cost_is_kept_with_the_measurement() -> None:
    state = compact([["load", 1.0], [REGION, 0.9e-6], [LEAST_REGION, 0.4e-6]])
    row = dataclasses.replace(summary("a t2", 2.6e-6), state=state)
    assert combine([row])["a t2", "[]", "h"].excess == pytest.approx(0.5e-6)
    assert combine([summary("a t2", 2.6e-6)])["a t2", "[]", "h"].excess == 0.0


def test_a_choice_by_the_prediction_within_the_band_is_in_doubt_near_its_edge() -> None:
    entrants = [Entrant(2.0), Entrant(1.0)]
    assert not doubtful([Score(1.0, 0.001), Score(1.01, 0.001)], 0.02, entrants)
    assert doubtful([Score(1.0, 0.001), Score(1.021, 0.001)], 0.02, entrants)
    assert not doubtful([Score(1.0, 0.001), Score(1.021, 0.001)], 0.02)


def test_nothing_noisy_is_chosen_that_is_slower_than_the_library_by_more_than_the_band() -> None:
    noisy = [Score(1.04, 0.05), Score(1.0, 0.05), Score(1.01, 0.05)]
    promised = [Entrant(1.0), Entrant(2.0), Entrant(3.0)]
    assert pick(noisy, 0.02, promised) == 0
    assert pick(noisy, 0.02, [*promised[:2], Entrant(3.0, library=True)]) == 1, "3 % slower than the library"
    assert pick(noisy, 0.04, [*promised[:2], Entrant(3.0, library=True)]) == 0
    assert pick([Score(1.04, 0.05), None, Score(1.0, 0.05)], 0.02, [*promised[:2], Entrant(3.0, library=True)]) == 2


def test_readings_under_load_replace_the_library_only_by_what_is_surely_faster() -> None:
    known = [Entrant(1.0), Entrant(2.0, library=True)]
    for seconds, disturbed, chosen in ((0.9, 0.0, 0), (0.9, 0.6, 1), (0.7, 0.6, 0)):
        assert pick([Score(seconds, 0.1, disturbed=disturbed), Score(1.0, 0.1, disturbed=disturbed)], 0.02, known) == chosen
    single = Score(1.0, math.inf, disturbed=0.6)  # of one sample
    assert [pick([Score(seconds, 0.1, disturbed=0.6), single], 0.02, known) for seconds in (0.4, 0.6)] == [0, 1]


def test_calls_through_python_count_where_kernels_are_shorter() -> None:
    def entrant(origin: str, device: str = "cuda") -> Entrant:
        return Entrant.known(1.0, Config(), origin, "attention", device)

    generated, stored, flash = entrant("triton"), entrant("unfused"), entrant("library")
    assert pick([Score(8e-6), Score(5e-6)], 0.01, [generated, stored]) == 0, "a call of three kernels keeps the host busier"
    assert pick([Score(80e-6), Score(50e-6)], 0.01, [generated, stored]) == 1, "the device is busier than the host"
    assert pick([Score(6e-6), Score(5e-6)], 0.01, [stored, flash]) == 1, "both are called through Python"
    on_cpu = [entrant("cpp", "cpu"), entrant("unfused", "cpu")]
    assert pick([Score(8e-6), Score(5e-6)], 0.02, on_cpu) == 1, "on a CPU it is part of what is timed"
