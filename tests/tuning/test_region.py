"""What a parallel region costs beside a race: a condition of the measurement, and a sign that the cores have moved."""

from __future__ import annotations

import math

import pytest
import torch

from polytile.runtime import launcher
from polytile.tuning import measure, racing, region
from polytile.tuning.decide import Entrant
from polytile.tuning.limits import Limits
from polytile.tuning.region import Region, time_region


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "_least", {})


def costs(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    left = list(seconds)
    monkeypatch.setattr(launcher, "region_seconds", lambda threads: left.pop(0) if len(left) > 1 else left[0])


def test_the_least_of_each_number_of_threads_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    costs(monkeypatch, 9e-7, 4e-7, 8e-7, math.nan)
    assert time_region(2) == Region(9e-7, 9e-7) and time_region(2).excess == 0.0
    assert time_region(2).excess == pytest.approx(4e-7)
    assert time_region(2).excess == 0.0, "other programs have the cores"


def test_nothing_is_timed_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(launcher, "region_seconds")
    assert time_region(1) is region.UNKNOWN


def test_an_empty_region_of_this_machine_takes_less_than_a_millisecond() -> None:
    torch.ones(1)  # the OpenMP runtime is torch's
    seconds = launcher.region_seconds(2)
    assert math.isnan(seconds) or 0 < seconds < 1e-3


def test_a_race_during_which_the_cores_moved_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    costs(monkeypatch, 4e-7, 9e-7, 9e-7)
    monkeypatch.setattr(measure, "replaced", lambda: False)
    monkeypatch.setattr(measure, "time_burst", lambda contender, repeats: 5e-6 * repeats)
    monkeypatch.setattr(racing, "pause", lambda seconds: None)
    monkeypatch.setattr("polytile.runtime.cpu.waited", lambda: 0.0)
    limits = Limits(rounds=5, seconds=1e-3, final_seconds=1e-3, open_seconds=1e-3, races=3)
    both = [measure.Contender(name, None, (), entrant=Entrant(1.0, 2)) for name in ("a", "b")]  # type: ignore[arg-type]
    assert [timing.region for timing in racing.race(both, limits)] == [Region(9e-7, 4e-7)] * 2
