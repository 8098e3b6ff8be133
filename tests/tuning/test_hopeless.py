"""Candidates of a GPU are compiled in the order of their predictions, until those that are left cannot win."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import record
from polytile.dispatch.links import exact
from polytile.problem import Problem
from polytile.runtime.cuda import cubins, workers
from polytile.store import identity
from polytile.tuning import hopeless, measure
from polytile.tuning.decide import Score
from polytile.tuning.limits import Limits
from polytile.tuning.task import Attempt, Task
from polytile.tuning.tune import tune
from tests.tuning.test_tune import Fake, double

FEW = Limits(rounds=3, seconds=0.001)
ASKED: list[str] = []


@dataclass
class Compiled(Fake):
    """A generated candidate that is compiled when it is asked for its entry."""

    origin: str = "triton"
    done: bool = False
    taken_back: bool = False

    def prepare(self) -> None:
        ASKED.append(self.name)

    def ready(self) -> bool:
        return self.done

    def call_off(self) -> None:
        self.taken_back = True

    def entry(self) -> Any:
        self.done = True
        return super().entry()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Seconds of a call, by candidate; others are compiled as they are asked for."""
    seconds: dict[str, float] = {}
    monkeypatch.setattr(measure, "time_burst", lambda contender, repeats: seconds[contender.name] * repeats)
    monkeypatch.setattr(measure, "timer_for", lambda target, entry: None)
    ASKED.clear()
    yield seconds


def tried(predicted: Mapping[str, float], *compiled: str, device: str = "cuda", whole: bool = False) -> dict[str, Attempt]:
    candidates = tuple(Compiled(name, double, done=name in compiled) for name in predicted)
    problem = Problem("mm", "k", (("n", 100),), ("float32",))
    args = torch.randn(100), torch.full((100,), 5.0), 100
    task = Task(
        problem, candidates, args, ("x", "y"), ("in", "out"), double, limits=FEW, predicted=tuple(predicted.values()),
        target=torch.device(device), whole=whole,
    )  # fmt: skip
    return {attempt.candidate.name: attempt for attempt in tune(task)}


@dataclass
class Predicted(Compiled):
    """One that is predicted to take what PREDICTED says."""

    def cost(self, sizes: Mapping[str, int]) -> float:
        return PREDICTED[self.name]


PREDICTED = {"last": 9e-6, "second": 2e-6, "first": 1e-6, "third": 2.4e-6}


def test_what_can_no_longer_win_is_not_compiled(planted: dict[str, float]) -> None:
    planted |= {"first": 2e-6, "second": 4e-6, "third": 5e-6, "last": 1e-6}
    found = tried(PREDICTED)
    assert ASKED == ["first", "second", "third", "last"]
    assert found["first"].ok and found["second"].ok
    for name in ("third", "last"):  # 2.4 µs x 2 x 0.8 > 2 µs
        left = found[name]
        assert left.untried and left.candidate.taken_back and not left.candidate.done and left.measurement is None  # type: ignore[attr-defined]
        assert "it cannot be faster than 2 µs" in left.detail


def test_predictions_of_a_source_may_all_be_too_slow(planted: dict[str, float]) -> None:
    """The second takes a quarter of what was predicted, so the third may win yet."""
    planted |= {"first": 0.9e-6, "second": 0.5e-6, "third": 0.6e-6, "last": 2e-6}
    found = tried(PREDICTED)
    assert found["third"].ok and found["last"].untried


@pytest.mark.parametrize("how", [{"device": "cpu"}, {"whole": True}])
def test_all_are_tried_where_all_are_wanted_or_compilers_disturb(planted: dict[str, float], how: dict[str, Any]) -> None:
    planted |= {"first": 2e-6, "second": 4e-6, "third": 5e-6, "last": 1e-6}
    if how.get("device") == "cpu":
        assert all(attempt.ok for attempt in tried(PREDICTED, **how).values())
    else:
        assert not any(attempt.untried for attempt in tried(PREDICTED, **how).values())


def test_what_is_compiled_already_is_tried(planted: dict[str, float]) -> None:
    planted |= {"first": 2e-6, "second": 4e-6, "third": 5e-6, "last": 1e-6}
    found = tried(PREDICTED, "last")
    assert found["last"].ok and found["third"].untried


def test_a_kernel_that_is_called_off_is_not_compiled_and_may_be_asked_for_again(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(workers.Workers, "submit", lambda pool, work: jobs.append(work))
    answer = {"binary": "", "symbol": "f", "num_warps": 4, "shared": 0, "registers": 8, "spills": 0}

    def order(name: str) -> cubins.Order:
        return cubins.Order("k", "module", {"source": name}, "1")

    alone, shared, again = cubins.request(order("a")), cubins.request(order("b")), cubins.request(order("b"))
    for promise in (alone, shared):
        cubins.call_off(promise)
    assert alone.cancelled() and not alone.failed and not alone.compiled and not again.cancelled()
    later = cubins.request(order("a"))
    worked = threading.Event()
    for job in jobs:
        job(lambda given: worked.set() or answer)
    assert later.compiled and again.compiled and later is not alone and worked.is_set()


def test_what_was_left_out_is_not_measured_by_later_processes() -> None:
    """The record covers a shortlist without those that could not win. On a CPU all are measured."""
    times = {"first": 2e-6, "second": 4e-6}
    candidates = [Predicted(name, double) for name in PREDICTED]
    scores = [Score(times[c.name], 0.01) if c.name in times else None for c in candidates]
    known = {identity(c) for c in candidates if c.name in times}

    def covers(device: str, *wanted: Fake) -> bool:
        spec = SimpleNamespace(target=torch.device(device))
        request: Any = SimpleNamespace(problem=SimpleNamespace(family="mm"), spec=spec, candidates=candidates, sizes={})
        return exact.covers(request, known, scores, wanted, {})

    assert covers("cuda", *candidates) and not covers("cpu", *candidates)
    scores[1] = None
    assert not covers("cuda", *candidates), "one candidate does not tell how far off predictions are"


def test_predictions_at_recorded_sizes_take_the_sizes_that_no_choice_depends_on_from_the_request() -> None:
    class AtAllSizes(Predicted):
        def cost(self, sizes: Mapping[str, int]) -> float:
            assert dict(sizes) == {"n0": 7, "n1": 2}
            return super().cost(sizes)

    candidates = [AtAllSizes(name, double) for name in PREDICTED]
    scores = [Score(2e-6, 0.01), Score(4e-6, 0.01), *[None] * (len(candidates) - 2)]
    known = {identity(candidate) for candidate in candidates[:2]}
    spec = SimpleNamespace(target=torch.device("cuda"))
    of = SimpleNamespace(family="mm")
    request: Any = SimpleNamespace(problem=of, spec=spec, candidates=candidates, sizes={"n0": 3, "n1": 2})
    exact.covers(request, known, scores, candidates, {"n0": 7})


@pytest.mark.parametrize(("count", "left_out"), [(6, 55), (12, 477)])
def test_the_bound_leaves_out_none_that_is_fastest_on_recorded_products(count: int, left_out: int) -> None:
    """Of products whose candidates were all measured on an H200, those of shortlists of six, and of twelve."""
    cells = json.loads((record.RESULTS / "gpu_unseen_products.json").read_text())["results"]["cells"]
    left = 0
    for cell in cells:
        us, predicted = cell["us"], cell["predicted_us"]
        generated = [name for name in us if not name.startswith(("aten", "cublaslt", "materialised"))]
        ranked, standing = sorted(generated, key=predicted.__getitem__)[:count], hopeless.Standing()
        for name in ranked:
            origin = "cutlass" if name.startswith("cutlass") else "triton"
            if standing.cannot_win(origin, predicted[name]):
                left += 1
            else:
                standing.add(origin, us[name], predicted[name])
        assert standing.best == min(us[name] for name in ranked)
    assert left == left_out
