"""A complete matrix of measurements stands in for a device: selecting, racing, searching and learning need no GPU, no compiler
and no clock."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from polytile import options
from polytile.candidates.entries import PythonEntry
from polytile.dispatch.links import model
from polytile.dispatch.replay import SHARED, replay
from polytile.errors import CandidateRejected
from polytile.facts import Threads
from polytile.learn.offer import Offer
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.runtime import compile as compiling
from polytile.runtime import launcher
from polytile.store import Store, transfer
from polytile.store.reading import Record
from polytile.tuning import measure, racing
from polytile.tuning.limits import LIMITS, LOOK_ROUNDS
from polytile.tuning.replay import Device, Matrix, Recorded, evaluate, matrices
from tests.store.helpers import KERNEL_TUNERS

RECORDED = transfer.parsed(Path(__file__).with_name("matrix.jsonl")).records
"""A softmax at eight sizes and a matmul at six, with every candidate that could run there, on two busy cores with AVX-512:
two threads lost there to one, which the priors did not expect."""


@pytest.fixture
def softmax() -> Matrix:
    return next(matrix for matrix in matrices(RECORDED) if matrix.problems[0].family == "loop")


@pytest.fixture
def matmul() -> Matrix:
    return next(matrix for matrix in matrices(RECORDED) if matrix.problems[0].family == "mm")


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled and nothing is timed."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a replay asks the matrix alone")

    monkeypatch.setattr(compiling, "_build", forbidden)
    monkeypatch.setattr(launcher, "time_burst", forbidden)


def made(times: dict[int, dict[str, float | Outcome]], predicted: dict[str, float] | None = None) -> Matrix:
    """A matrix from seconds (or how else it ended) by size and candidate."""
    records = [
        Record(f"{m}-{name}", float(number), _measurement(m, name, found, (predicted or {}).get(name)))
        for m, row in times.items()
        for number, (name, found) in enumerate(row.items())
    ]
    (matrix,) = matrices(records)
    return matrix


def _measurement(m: int, name: str, found: float | Outcome, predicted: float | None) -> Measurement:
    problem = Problem("loop", "k0", (("M", m),), ("float32",), (Threads(2),), "gpu-x")
    outcome, samples = (found, ()) if isinstance(found, Outcome) else (Outcome.OK, (found,) * 10)
    return Measurement(problem, name, Config.of(n=len(name)), f"source of {name}", outcome, samples, predicted=predicted)


# The matrix.


def test_the_recorded_matrices_have_what_can_run(softmax: Matrix, matmul: Matrix) -> None:
    """"split" is for long rows, "stream" for few: all else was measured everywhere."""
    assert (len(softmax.problems), len(softmax.names), softmax.missing()) == (8, 6, 5)
    assert (len(matmul.problems), len(matmul.names), matmul.missing()) == (6, 11, 2)


def test_a_matrix_is_in_canonical_order_and_knows_the_fastest() -> None:
    matrix = made({8: {"a": 2e-5, "b": 1e-5}, 16: {"a": 1e-5, "b": Outcome.CRASHED}})
    first, second = matrix.problems
    assert matrix.names == ("a", "b") and matrix.best(first).name == "b" and matrix.best(second).name == "a"
    assert matrix.seconds(second, "b") == matrix.seconds(first, "c") == math.inf


def test_the_latest_source_counts_and_repeated_measurements_are_combined() -> None:
    old = Record("0", 0.0, dataclasses.replace(_measurement(8, "a", 1e-9, None), source_hash="old"))
    again = [Record(str(n), float(n), _measurement(8, "a", s, None)) for n, s in enumerate((3e-5, 2e-5, 9e-5), 1)]
    (matrix,) = matrices([old, *again])
    assert matrix.size == 1 and matrix.best(matrix.problems[0]).score.seconds == pytest.approx(3e-5)


def test_problems_on_which_nothing_ran_are_left_out() -> None:
    assert matrices([Record("0", 0.0, _measurement(8, "a", Outcome.WRONG, None))]) == []


def test_a_recorded_candidate_cannot_be_run(softmax: Matrix) -> None:
    with pytest.raises(CandidateRejected, match="known by its measurements alone and cannot run; ask its Device"):
        softmax.best(softmax.problems[0]).entry()


# Selection.


def test_more_measurements_find_faster_kernels(softmax: Matrix, matmul: Matrix) -> None:
    for matrix in (softmax, matmul):
        found = []
        for settings in ({"tune": "off"}, {"shortlist": 1}, {"shortlist": 4}, {"tune": "all"}):
            with options.override(**settings):
                found.append(replay(matrix))
        assert {choice.problem for choice in found[-1].choices} == set(matrix.problems)
        measured = [report.measured for report in found]
        assert measured == sorted(measured) and measured[0] == 0 and measured[-1] == matrix.size
        assert found[0].regret > found[2].regret >= found[3].regret
        assert found[3].worst.regret <= 1.05, "as fast as the fastest within the band in which candidates are equal"


def test_with_true_predictions_nothing_is_lost(softmax: Matrix) -> None:
    true = {
        problem: tuple(dataclasses.replace(c, predicted=c.score.seconds) for c in found)
        for problem, found in softmax.candidates.items()
    }
    for settings in ({"tune": "off"}, {"tune": "auto"}):
        with options.override(**settings):
            assert replay(Matrix(true, softmax.environment)).worst.regret <= 1.05


def test_without_measuring_the_priors_decide_and_cost_what_they_cost() -> None:
    matrix = made({8: {"a": 2e-5, "b": 1e-5}, 100: {"a": 1e-5, "b": 1e-5}}, {"a": 1e-6, "b": 2e-6})
    with options.override(tune="off"):
        report = replay(matrix)
    assert [choice.candidate for choice in report.choices] == ["a", "a"] and report.measured == 0
    assert report.worst.regret == pytest.approx(2.0) and report.regret == pytest.approx(math.sqrt(2))


def test_a_candidate_that_fails_on_the_device_is_never_chosen() -> None:
    rows: dict[str, float | Outcome] = {"wrong": Outcome.WRONG, "crashes": Outcome.CRASHED, "slow": 5e-5, "fast": 1e-5}
    matrix = made({8: rows, 300: rows}, {"wrong": 1e-6, "crashes": 1e-6, "slow": 5e-5, "fast": 5e-5})
    assert not {choice.candidate for choice in replay(matrix).choices} & {"wrong", "crashes"}
    with options.override(tune="all"):
        assert {choice.candidate for choice in replay(matrix).choices} == {"fast"}


def test_sizes_of_one_regime_share_a_decision() -> None:
    report = replay(made({300: {"a": 1e-5, "b": 2e-5}, 310: {"a": 2e-5, "b": 1e-5}}))
    assert [choice.grounds for choice in report.choices] == ["measured", SHARED]
    assert report.worst.regret == pytest.approx(2.0) and report.measured == 2


def test_what_a_store_knows_beforehand_is_not_measured_again(softmax: Matrix) -> None:
    known = Store(None)
    known.append(*(candidate.measurement for found in softmax.candidates.values() for candidate in found))
    report = replay(softmax, store=known)
    assert report.measured == 0 and {choice.grounds for choice in report.choices} <= {"exact", SHARED}
    assert report.worst.regret <= 1.05


# Racing.


def raced(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, dict[str, measure.Timing]]:
    """A race of all candidates of the first problem, which takes its samples from the matrix."""
    device, problem = Device(matrix), matrix.problems[0]
    monkeypatch.setattr(measure, "time_burst", device.clock(problem))
    monkeypatch.setattr(racing, "_involuntary_switches", lambda: 0)
    contenders = [measure.Contender(c.name, PythonEntry(lambda: None), ()) for c in matrix.candidates[problem]]
    timings = racing.race(contenders, dataclasses.replace(LIMITS, seconds=60.0, longest=60.0))
    return device, {contender.name: timing for contender, timing in zip(contenders, timings, strict=True)}


def test_a_race_on_recorded_samples_finds_the_fastest(softmax: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    _, timings = raced(softmax, monkeypatch)
    assert min(timings, key=lambda name: timings[name].seconds) == softmax.best(softmax.problems[0]).name


def test_a_race_drops_clear_losers_early(monkeypatch: pytest.MonkeyPatch) -> None:
    device, timings = raced(made({8: {"a": 1e-5, "b": 1.02e-5, "c": 5e-5}}), monkeypatch)
    taken = {name: len(timing.samples) for name, timing in timings.items()}
    assert taken["c"] == LOOK_ROUNDS < LIMITS.final_rounds <= min(taken["a"], taken["b"])
    assert device.bursts > sum(taken.values()), "bursts that warm up count as well"


def test_a_candidate_without_samples_leaves_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = made({8: {"a": 1e-5, "b": Outcome.TIMEOUT}})
    monkeypatch.setattr(measure, "time_burst", Device(matrix).clock(matrix.problems[0]))
    a, b = racing.race([measure.Contender(name, PythonEntry(lambda: None), ()) for name in "ab"])
    assert a.error is None and a.seconds == pytest.approx(1e-5)
    assert isinstance(b.error, CandidateRejected) and "'b' has no samples to replay: timed out" in str(b.error)


# Searching.


def searching(device: Device, budget: int, seed: int) -> Callable[[Problem, Sequence[Recorded]], tuple[str, str]]:
    """Tries `budget` candidates of each problem: last problem's winner, then others at random."""
    chance = random.Random(seed)
    winner: list[str] = []

    def choose(problem: Problem, candidates: Sequence[Recorded]) -> tuple[str, str]:
        order = sorted(candidates, key=lambda c: (c.name not in winner[-1:], chance.random()))[:budget]
        tried = {c.name: device.attempt(problem, c) for c in order}
        best = min((name for name in tried if tried[name].ok), key=lambda name: tried[name].seconds)
        winner.append(best)
        return best, f"searched {budget}"

    return choose


def test_a_search_costs_what_its_budget_leaves_unfound(matmul: Matrix) -> None:
    regrets = {}
    for budget in (2, 5, 100):
        found = []
        for seed in range(20):
            device = Device(matmul)
            report = evaluate(matmul, searching(device, budget, seed), device=device)
            assert report.measured <= budget * len(matmul.problems)
            found.append(report.regret)
        regrets[budget] = statistics.fmean(found)
    assert regrets[2] > regrets[5] > regrets[100] == 1.0


def test_a_device_counts_what_it_is_asked(softmax: Matrix) -> None:
    device, problem = Device(softmax), softmax.problems[0]
    for candidate in softmax.candidates[problem][:2] * 3:
        assert device.attempt(problem, candidate).ok
    assert list(device.tried.values()) == [3, 3]


# Learning.


class Neighbour:
    """Learns the fastest candidate of each problem it is shown; answers with that of the nearest sizes (by logarithms)."""

    name = "nearest neighbour"

    def __init__(self, matrix: Matrix, problems: Sequence[Problem]) -> None:
        self.known = {problem.sizes: matrix.best(problem).name for problem in problems}

    def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
        def distance(sizes: tuple[tuple[str, int], ...]) -> float:
            return sum(abs(math.log(a / b)) for (_, a), (_, b) in zip(sizes, problem.sizes, strict=True))

        offered = {offer.name for offer in offers}
        able = [sizes for sizes, name in self.known.items() if name in offered]
        return self.known[min(able, key=distance)] if able else None


def test_a_learned_model_is_judged_on_problems_that_it_has_not_seen(matmul: Matrix) -> None:
    """Each problem once left out of what is learned."""
    regrets = []
    for left_out in matmul.problems:
        learned = Neighbour(matmul, [problem for problem in matmul.problems if problem != left_out])
        model.register(learned)
        try:
            report = replay(matmul, [left_out])
        finally:
            model.unregister(learned)
        assert report.choices[0].grounds == "model" and report.measured == 0
        regrets.append(report.regret)
    with options.override(tune="off"):
        prior = replay(matmul)
    assert 1.0 < statistics.geometric_mean(regrets) < prior.regret, "what was learned beats what was expected"


def test_a_model_that_was_shown_a_problem_knows_its_fastest(matmul: Matrix) -> None:
    learned = Neighbour(matmul, matmul.problems)
    def choose(problem: Problem, found: Sequence[Recorded]) -> tuple[str, str]:
        return learned.choose(problem, [Offer(c.name, c.config, c.origin, c.predicted) for c in found]) or "", ""

    report = evaluate(matmul, choose)
    assert report.regret == 1.0 and report.measured == 0


# Another tuner's results.


def test_another_tuners_results_are_a_matrix_too(tmp_path: Path) -> None:
    (tmp_path / "convolution.json").write_text(json.dumps(KERNEL_TUNERS))
    (matrix,) = matrices(transfer.parsed(tmp_path / "convolution.json").records)
    assert matrix.size == 3 and matrix.best(matrix.problems[0]).config["block_size_x"] == 64
    assert replay(matrix).regret == 1.0


def test_a_regime_whose_neighbour_decides_otherwise_is_split() -> None:
    rows: dict[int, dict[str, float | Outcome]] = {
        300: {"a": 1e-5, "b": 2e-5}, 400: {"a": 4e-5, "b": 1e-5}, 350: {"a": 3e-5, "b": 1e-5}, 330: {"a": 3e-5, "b": 1e-5},
    }  # fmt: skip
    report = replay(made(rows))
    assert [choice.candidate for choice in report.choices] == ["a", "b", "b", "b"]
    assert [choice.grounds for choice in report.choices] == ["measured", "measured", "measured", SHARED]
