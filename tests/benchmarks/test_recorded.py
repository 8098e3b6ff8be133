"""Recorded times that stand in for a device, with the noise of one."""

from __future__ import annotations

import json

import pytest

from benchmarks import campaign_agreement, record, reports, search
from benchmarks.recorded import Noise, Noisy
from polytile import options
from polytile.dispatch.replay import replay
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store.reading import Record
from polytile.tuning.replay import Matrix, matrices

QUIET = Noise(process=0, recording=0, replay=0, odd=0)


@pytest.fixture
def matrix() -> Matrix:
    """Of one problem: the prediction puts the fastest second, and one is hopeless."""
    problem = Problem("mm", "k0", (("M", 8),), ("float32",), (), "cuda-recorded")
    times = {"first": 1.1e-5, "second": 1e-5, "third": 1.3e-5, "hopeless": 9e-5}
    rows = [
        Measurement(problem, name, Config.of(n=place), name, Outcome.OK, (seconds,) * 5, origin="triton", predicted=place * 1e-6)
        for place, (name, seconds) in enumerate(times.items(), 1)
    ]
    (found,) = matrices(Record(str(number), 0.0, row) for number, row in enumerate(rows))
    return found


def chosen(matrix: Matrix, seed: int, noise: Noise) -> tuple[str, Noisy]:
    device = Noisy(matrix, seed=seed, noise=noise)
    with options.override(tune="all", learned=False):
        return replay(matrix, device=device).choices[0].candidate, device


def test_a_race_on_it_finds_the_fastest_and_counts_what_it_took(matrix: Matrix) -> None:
    winner, device = chosen(matrix, 0, QUIET)
    assert winner == "second" and len(device.tried) == 4
    assert device.bursts > 20 and device.seconds > 1e-3
    times = {one.candidate: one.samples for one in device.measured}
    assert times["second"] == pytest.approx([1e-5] * len(times["second"])) and len(times["hopeless"]) <= len(times["second"])


def test_a_process_sees_the_same_times_again_and_another_sees_others(matrix: Matrix) -> None:
    one, again, other = (chosen(matrix, seed, Noise())[1].measured for seed in (1, 1, 2))
    assert one == again and one != other


def test_a_device_with_noise_is_timed_by_its_own_clock_alone(matrix: Matrix) -> None:
    from polytile.tuning import measure, racing

    before = measure.time_burst, racing.clock, racing.pause
    chosen(matrix, 0, Noise())
    assert before == (measure.time_burst, racing.clock, racing.pause)


def test_campaigns_that_choose_alike_are_not_apart(matrix: Matrix) -> None:
    alike = campaign_agreement.judged([matrix], [[("second", 1)], [("second", 1)]])
    apart = campaign_agreement.judged([matrix], [[("second", 1)], [("first", 1)]])
    assert alike["agree"] == 1 and alike["apart_most"] == 1
    assert apart["agree"] == 0 and apart["apart_most"] == pytest.approx(1.1) and apart["beyond"] == 1


def test_more_timings_of_an_order_find_no_worse_and_the_needed_share_is_found() -> None:
    found = search.by_share([[1.5, 1.0, 1.2, 1.1], [1.02, 1.3, 1.0, 1.4]])
    assert found["25%"] > found["50%"] == pytest.approx(1.02**0.5) and found["needed"] == 0.38


def test_the_committed_search_needs_a_seventh_of_the_timings_for_a_hundredth() -> None:
    for name, found in json.loads((record.RESULTS / "search.json").read_text())["results"].items():
        learned, exhaustive = (found["tuning"][way] for way in ("by a learned order", "exhaustive"))
        assert learned["timings"] <= 0.15 * found["timings"], name
        assert learned["regret"] <= 1.01 * exhaustive["regret"], name


@pytest.mark.parametrize("name", reports.REPORTS)
def test_the_committed_reports_are_of_the_recorded_times(name: str) -> None:
    text = (reports.FOLDER / f"{name}.html").read_text()
    made = reports.made(name)
    assert len(text) < 2_000_000 and all(panel.name in text for panel in made.panels)
    assert f"{made.overview.measurements:,}".replace(",", " ") in text
