"""What a kernel does to a GPU it does to a worker's context: the user's process computes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from polytile.problem import Outcome
from polytile.tuning.isolation.worker import borrowed, stop_all
from polytile.tuning.task import Task
from polytile.tuning.tune import tune
from tests.tuning.planted import Function, task

pytestmark = pytest.mark.gpu

SECONDS = 5.0
"""Of a trial: a worker's first has to set up the device and to compile; an endless one is ended after six times as long."""


@pytest.fixture(autouse=True)
def own_worker() -> Iterator[None]:
    yield
    stop_all()


def on_gpu(*names: str) -> Task:
    from tests.gpu import faulty

    planted = task(*(Function(name, getattr(faulty, name)) for name in names))
    x, y, n = planted.args
    return dataclasses.replace(
        planted, args=(x.cuda(), y.cuda(), n), target=torch.device("cuda"), trial_seconds=SECONDS
    )


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("illegal_address", Outcome.CRASHED),
        ("endless_loop", Outcome.TIMEOUT),
        ("out_of_memory", Outcome.OUT_OF_MEMORY),
    ],
)
def test_a_fault_ends_the_worker_and_the_next_best_runs(name: str, outcome: Outcome) -> None:
    asked = on_gpu(name, "double")
    bad, good = tune(asked)
    assert bad.measurement is not None and bad.measurement.outcome is outcome, bad.detail
    assert good.ok and good.measurement is not None and good.measurement.samples, good.detail
    assert float(torch.ones(1000, device="cuda").sum()) == 1000.0, "the user's context is whole"
    assert bool((asked.args[1] == 5.0).all())


def test_the_worker_comes_back_after_each_fault() -> None:
    outcomes = [
        attempt.measurement and attempt.measurement.outcome for attempt in tune(on_gpu("illegal_address", "double"))
    ]
    assert outcomes == [Outcome.CRASHED, Outcome.OK]
    with borrowed(torch=True) as worker:
        assert worker.started >= 2 and worker.pid is not None
