"""What was clearly slower close by is not timed again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from polytile.autotuner.losers import Timed
from polytile.dispatch.decision import Standing


def decided(size: int, **seconds: float) -> Any:
    standings = tuple(Standing(name, taken) for name, taken in seconds.items())
    return SimpleNamespace(sizes=(("M", size),), measured_at=(), standings=standings)


def losers(timed: Timed, size: int) -> set[str]:
    return {name for name in ("a", "b", "c") if timed.is_loser(name, {"M": size})}


def test_the_farther_away_the_slower_a_loser_has_to_be() -> None:
    timed = Timed()
    assert losers(timed, 100) == set()
    timed.read([decided(100, a=1.0, b=1.13, c=1.7)])
    assert losers(timed, 100) == {"b", "c"}
    assert losers(timed, 200) == losers(timed, 50) == {"c"}
    assert losers(timed, 2000) == set()


def test_waves_of_programs_count() -> None:
    timed = Timed(processors=100)
    timed.launched({"M": 100}, {"a": 100, "b": 50})  # a wave each
    timed.read([decided(100, a=1.0, b=1.5)])
    timed.launched({"M": 120}, {"a": 101, "b": 60})
    assert losers(timed, 100) == {"b"} and losers(timed, 120) == {"a"}  # two waves of a, one of b
    timed.launched({"M": 140}, {"a": 140})  # b's grid raises: nothing is known of its waves
    assert losers(timed, 140) == {"a"}


def test_the_nearest_time_counts_and_what_failed_has_none() -> None:
    timed = Timed()
    timed.read([decided(100, a=1.0, b=2.0, c=float("nan")), decided(400, a=1.0, b=1.0)])
    assert losers(timed, 110) == {"b"} and losers(timed, 380) == set()
