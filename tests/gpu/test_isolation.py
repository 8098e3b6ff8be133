"""What a kernel does to a GPU it does to a worker's context: the user's process computes on. Kernels as users write them run
in a worker with torch, kernels as they are generated in one that has a context and nothing else."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest
import torch

from polytile.problem import Outcome
from polytile.tuning.headroom import for_measuring
from polytile.tuning.isolation.endings import Failure
from polytile.tuning.isolation.worker import Kind, borrowed, stop_all
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


def generated(*names: str, n: int = 1003) -> Task:
    from polytile.runtime.cuda.device import facts
    from tests.gpu import faulty

    planted = task(*(faulty.generated(name, facts(0)) for name in names), n=n)
    x, y, _ = planted.args
    return dataclasses.replace(
        planted, args=(x.cuda(), y.cuda(), n), target=torch.device("cuda"), trial_seconds=SECONDS
    )


@pytest.mark.parametrize(
    ("name", "outcome", "word"),
    [
        ("illegal_address", Outcome.CRASHED, "illegal memory access"),
        ("endless_loop", Outcome.TIMEOUT, "did not come to an end"),
        ("traps", Outcome.CRASHED, "launch failure"),
        ("beyond_the_tail", Outcome.WRONG, "wrote outside argument 'y'"),
    ],
)
def test_a_generated_kernels_fault_ends_the_worker_and_the_others_run(name: str, outcome: Outcome, word: str) -> None:
    asked = generated("right", name)
    good, bad = tune(asked)
    assert bad.measurement is not None and bad.measurement.outcome is outcome and word in bad.detail, bad.detail
    assert good.ok and good.measurement is not None and good.measurement.samples, good.detail
    assert float(torch.ones(1000, device="cuda").sum()) == 1000.0, "the user's context is whole"
    assert bool((asked.args[1] == 5.0).all())


@pytest.mark.alone
def test_arguments_that_do_not_fit_beside_the_users_are_nobodys_fault() -> None:
    """What is free when the trial is begun leaves room for the context alone; the kernel is then tried here, and runs. As in
    `polytile tune`, what is free may be used: nothing lies below a peak that was just reached."""
    free = torch.cuda.mem_get_info()[0]
    taken = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda") if free > 4 << 30 else None
    try:
        with for_measuring():
            (good,) = tune(generated("right"))
        assert good.ok, good.detail
    finally:
        del taken
        torch.cuda.empty_cache()


@pytest.mark.alone
def test_first_runs_take_milliseconds_once_the_worker_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Says what they take: the context, then sixteen kernels in one message; and how much of the device is taken meanwhile."""
    from polytile.tuning.isolation import gpu

    asked = generated("right")
    handle = asked.candidates[0].handle()
    free, times = torch.cuda.mem_get_info()[0], []
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for handles in ([handle], [handle], [handle] * 16):
        begun = time.perf_counter()
        ended = gpu.run_all(asked.args, asked.roles, handles, 0, SECONDS)
        times.append(time.perf_counter() - begun)
        assert len(ended) == len(handles) and not any(isinstance(one, Failure) for one in ended)
    beside = free - torch.cuda.mem_get_info()[0]
    with capsys.disabled():
        print(
            f"\nfirst run, context included {times[0] * 1e3:.0f} ms; another {times[1] * 1e3:.1f} ms; sixteen "
            f"{times[2] * 1e3:.1f} ms; {beside >> 20} MiB of the device were taken meanwhile"
        )
    assert torch.cuda.max_memory_allocated() - before < 1 << 20, "none of it is torch's"


def test_the_worker_comes_back_after_each_fault() -> None:
    outcomes = [
        attempt.measurement and attempt.measurement.outcome for attempt in tune(on_gpu("illegal_address", "double"))
    ]
    assert outcomes == [Outcome.CRASHED, Outcome.OK]
    with borrowed(Kind.PYTHON) as worker:
        assert worker.started >= 2 and worker.pid is not None
