"""The background thread and the processes that work for it take a bounded share of the time, and no priority that harms calls."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from polytile import options as settings
from polytile.runtime import background as module
from polytile.runtime import builder, pytorch
from polytile.runtime.background import SWITCH_SECONDS, Background, Disturbance
from polytile.runtime.cpu import usable_cores
from tests.waiting import until

LONG = 1e9
"""Of `REST`: whatever was computed, the thread rests until the test ends or somebody waits."""


@dataclass
class Work:
    act: Callable[[], None]
    disturbs: Disturbance = Disturbance.NONE
    rank: Callable[[], float] = lambda: 0.0

    def urgency(self) -> tuple[float, ...]:
        return (self.rank(),)

    def run(self) -> None:
        self.act()


@dataclass
class Heard:
    background: Background
    times: int = 0

    def hear(self) -> None:
        self.times += 1


def niceness(task: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, task)


@pytest.fixture
def alone() -> Iterator[Background]:
    made = Background()
    yield made
    made._closed = True
    made._ring()


@pytest.fixture
def beside_calls(alone: Background, monkeypatch: pytest.MonkeyPatch) -> Background:
    """Calls come all the time, and each rest is long."""
    monkeypatch.setattr(module, "REST", LONG)
    alone.last_call = float("inf")
    return alone


def compute() -> None:
    end = time.thread_time() + 1e-3
    while time.thread_time() < end:
        pass


def test_the_thread_has_the_priority_of_calls_and_knows_that_it_is_there(alone: Background) -> None:
    found: list[tuple[int, bool]] = []
    alone.submit(Work(lambda: found.append((niceness(threading.get_native_id()), alone.is_here()))))
    until(lambda: bool(found), "the job")
    assert found == [(niceness(), True)] and not alone.is_here()


def test_a_job_that_cannot_tell_its_urgency_runs_last_and_ends_nothing(alone: Background) -> None:
    done: list[str] = []
    with alone.held():
        alone.submit(Work(lambda: done.append("unknown"), rank=lambda: 1 / 0))
        alone.submit(Work(lambda: done.append("known")))
    until(lambda: len(done) == 2, "both jobs")
    assert done == ["known", "unknown"]


@pytest.mark.parametrize("waited_for", [False, True])
def test_a_job_goes_on_after_its_turn_once_no_caller_needs_the_gil_or_somebody_waits_for_it(
    alone: Background, waited_for: bool
) -> None:
    begun, held, done = (threading.Event() for _ in range(3))

    def job() -> None:
        begun.set()
        held.wait()
        alone.turn()
        done.set()

    alone.submit(Work(job))
    assert begun.wait(10)
    with alone.held():
        held.set()
        assert not done.wait(0.05)
        if waited_for:
            assert alone.wait(10) and done.is_set()
    assert done.wait(10)


def test_a_call_gets_the_gil_soon_while_the_thread_works_and_as_always_while_it_sleeps(alone: Background) -> None:
    usual, found = sys.getswitchinterval(), list[float]()

    def note() -> float:
        found.append(sys.getswitchinterval())
        return 0.0

    alone.submit(Work(lambda: found.append(sys.getswitchinterval()), rank=note))
    until(lambda: len(found) == 2, "looking for the job, and the job")
    assert found == pytest.approx([SWITCH_SECONDS] * 2)
    until(lambda: sys.getswitchinterval() == pytest.approx(usual), "the thread sleeps")


@pytest.mark.parametrize("disturbs", [Disturbance.COMPUTES, Disturbance.COMPILES, Disturbance.MEASURES])
def test_what_takes_time_from_calls_waits_for_the_end_of_a_rest(beside_calls: Background, disturbs: Disturbance) -> None:
    done: list[str] = []

    def first() -> None:
        compute()
        done.append("first")
        beside_calls.submit(Work(lambda: done.append("second"), Disturbance.COMPUTES, lambda: 2.0))
        beside_calls.submit(Work(lambda: done.append("free"), Disturbance.NONE, lambda: 1.0))

    beside_calls.submit(Work(first, disturbs))
    until(lambda: "free" in done, "the job that disturbs nobody")
    assert done == ["first", "free"]
    assert beside_calls.wait(60)  # who waits is not made to wait for rests
    assert done == ["first", "free", "second"]


def test_what_needs_no_compiler_does_not_wait_for_the_end_of_the_rest_after_one(
    beside_calls: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 0.0)  # this thread's own work counts for nothing
    done: list[str] = []

    def compiled() -> None:
        beside_calls.helped += 1.0
        done.append("compiled")
        beside_calls.submit(Work(lambda: done.append("compiled again"), Disturbance.COMPILES, lambda: 2.0))
        beside_calls.submit(Work(lambda: done.append("computed"), Disturbance.COMPUTES, lambda: 1.0))

    beside_calls.submit(Work(compiled, Disturbance.COMPILES))
    until(lambda: "computed" in done, "the job that needs no compiler")
    assert done == ["compiled", "computed"]
    assert beside_calls.wait(60) and done == ["compiled", "computed", "compiled again"]


def test_what_delayed_no_call_is_followed_by_no_rest(beside_calls: Background) -> None:
    """As what is computed while the first call is traced: the calls after it do not wait for kernels because of that."""
    done = threading.Event()

    def job() -> None:
        compute()
        done.set()

    beside_calls.last_call = 0.0
    beside_calls.submit(Work(job, Disturbance.COMPUTES))
    assert done.wait(60)
    until(lambda: not beside_calls.pending(), "the end of the job")
    beside_calls.last_call = float("inf")
    assert not beside_calls._rests()


def test_a_job_may_need_what_queued_ones_of_some_kind_do(alone: Background) -> None:
    """As a program that is to take over needs its kernels loaded. One of them fails, which is reported and no more."""
    order: list[str] = []

    class Loads(Work):
        pass

    def builds() -> None:
        alone.submit(Loads(lambda: order.append("loaded")))
        alone.submit(Loads(lambda: 1 // 0))
        alone.submit(Work(lambda: order.append("other")))
        alone.run_now(Loads)
        order.append("built")

    alone.submit(Work(builds))
    assert alone.wait(60) and order == ["loaded", "built", "other"]


def test_a_job_that_waits_lets_due_ones_of_some_kind_run(beside_calls: Background) -> None:
    """As the kernels of a program that serves, while another graph's program is made at a slow pace: the most urgent first, each
    followed by its rest, and outside the contexts of the job that waits."""
    order: list[str] = []

    class Predicts(Work):
        pass

    def waits() -> None:
        beside_calls.submit(Predicts(lambda: order.append("rare"), Disturbance.COMPUTES, lambda: 1.0))
        beside_calls.submit(Work(lambda: order.append("another kind"), rank=lambda: 3.0))

        def predicts() -> None:
            compute()
            order.append(f"often, debug={settings.get('debug')}")

        beside_calls.submit(Predicts(predicts, Disturbance.COMPUTES, lambda: 2.0))
        with settings.override(debug=1):
            for _ in range(2):
                beside_calls.run_due(Predicts)
        order.append("built")

    beside_calls.submit(Work(waits))
    until(lambda: "another kind" in order, "the jobs that disturb no call")
    assert order == ["often, debug=0", "built", "another kind"] and beside_calls._rests()


def test_looking_for_work_counts_as_work(beside_calls: Background) -> None:
    done: list[str] = []

    def rank() -> float:
        compute()
        return 0.0

    beside_calls.submit(Work(lambda: done.append("found"), Disturbance.NONE, rank))
    until(lambda: beside_calls._rests(), "the rest after a job that took nothing itself")
    assert done == ["found"]


def test_a_source_interrupts_no_call_during_a_rest(beside_calls: Background) -> None:
    source = Heard(beside_calls)
    beside_calls._thread = threading.current_thread()  # it sleeps by acquiring the bell
    beside_calls._bell.acquire()
    beside_calls._rest_until = time.monotonic() + LONG
    beside_calls.wake(source)
    assert beside_calls._bell.locked() and list(beside_calls._sources) == [source]
    beside_calls._rest_until = 0.0
    beside_calls.wake(source)
    assert not beside_calls._bell.locked()
    beside_calls.hear()
    assert source.times == 2


def test_a_source_that_did_not_ring_is_heard_during_or_after_the_rest(beside_calls: Background) -> None:
    source = Heard(beside_calls)
    beside_calls.submit(Work(compute, Disturbance.COMPUTES))
    until(lambda: beside_calls._rests(), "the rest")
    beside_calls.wake(source)
    until(lambda: source.times == 1, "hearing the source")


def test_the_builder_is_a_little_nicer_whether_anybody_waits_or_not() -> None:
    builder.stop()
    try:
        first = builder._builder.running()
        until(lambda: niceness(first.pid) == min(19, niceness() + builder.NICENESS), "its priority")
        with module.background.hurried():
            assert builder._builder.running() is first and not first.ended()
        autogroup = Path(f"/proc/{first.pid}/autogroup")
        if autogroup.exists():
            assert autogroup.read_text().split()[-1] == str(min(19, niceness() + builder.NICENESS))
    finally:
        builder.stop()


def test_compilers_take_the_cores_that_calls_leave_free_or_all_for_who_waits() -> None:
    free = max(1, usable_cores() - pytorch.torch_threads())
    assert builder.here()["options"]["compile_workers"] == free
    with module.background.hurried():
        assert builder.here()["options"]["compile_workers"] == 0
