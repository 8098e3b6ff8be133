"""What rounds say about contenders: bounds of their ratio, who is out, and whether more rounds would change anything."""

from __future__ import annotations

import math
import random

import pytest

from polytile.tuning.pairwise import behind, choice_is_certain, level, ratio_bounds

BAND = 0.02


def lane(seconds: float, rounds: int = 30, noise: float = 0.0, seed: int = 0, common: float = 0.0) -> dict[int, float]:
    """Rounds of a contender of so many seconds; `common` noise is the same for all lanes, `noise` its own."""
    shared, own = random.Random(99), random.Random(seed)
    return {n: seconds * (1 + common * shared.random()) * (1 + noise * own.gauss(0, 1)) for n in range(rounds)}


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.03])
def test_the_bounds_hold_the_true_ratio_and_close_in_on_it(noise: float) -> None:
    widths = []
    for rounds in (5, 20, 80):
        inside = 0
        for seed in range(100):
            low, high = ratio_bounds(lane(1.1, rounds, noise, 2 * seed), lane(1.0, rounds, noise, 2 * seed + 1))
            inside += low <= 1.1 <= high
        assert inside >= 95
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_noise_that_meets_all_alike_does_not_widen_the_bounds() -> None:
    low, high = ratio_bounds(lane(1.1, common=0.5), lane(1.0, common=0.5))
    assert 1.09 < low < 1.1 < high < 1.11


def test_nothing_is_said_about_contenders_that_hardly_met() -> None:
    assert ratio_bounds({0: 1.0, 1: 1.0}, {1: 1.0, 2: 1.0}) == (0.0, math.inf)
    assert not choice_is_certain([{0: 1.0}, {0: 9.0}], BAND)


def test_behind_and_level_leave_room_for_doubt() -> None:
    fast, close, slow = lane(1.0, noise=0.001), lane(1.005, noise=0.001, seed=1), lane(1.2, noise=0.001, seed=2)
    assert behind(slow, [fast, close], BAND) and not behind(close, [fast, slow], BAND)
    assert level(close, [fast, slow], BAND) and not level(slow, [fast, close], BAND)
    doubtful = lane(1.02, noise=0.01, seed=3)
    assert not behind(doubtful, [fast], BAND) and not level(doubtful, [fast], BAND)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((1.0, 1.01), True),  # the first is as fast as any
        ((1.3, 1.0, 1.01), True),  # the first is out, the second is as fast as any
        ((1.02, 1.0), False),  # the first is at the edge of the band
        ((1.3, 1.02, 1.0), False),
        ((1.0, 1.02), True),  # whoever comes later in canonical order may be at the edge
    ],
)
def test_a_race_is_settled_once_the_choice_is(times: tuple[float, ...], expected: bool) -> None:
    lanes = [lane(seconds, noise=0.003, seed=number) for number, seconds in enumerate(times)]
    assert choice_is_certain(lanes, BAND) is expected
