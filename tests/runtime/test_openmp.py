"""Threads of parallel loops that other threads than the caller's begin."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import polytile
from polytile.compiler import tiers
from polytile.runtime import background, openmp
from polytile.runtime.background import Background, Disturbance
from polytile.runtime.cpu import usable_cores
from tests.waiting import PATIENCE, until

TASKS = Path("/proc/self/task")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(openmp.runtime() is None, reason="PyTorch has brought no OpenMP runtime")


@dataclass
class Work:
    act: Callable[[], None]
    disturbs: Disturbance = Disturbance.NONE

    def urgency(self) -> tuple[float, ...]:
        return (0.0,)

    def run(self) -> None:
        self.act()


def done(act: Callable[[], None], by: Background = background.background) -> None:
    by.submit(Work(act))
    assert by.wait(60)


@pytest.mark.skipif(not TASKS.exists(), reason="nothing says which threads this process has")
@pytest.mark.skipif(openmp.runtime() is None or openmp.runtime().pause is None, reason="not GNU's runtime")
def test_work_in_the_background_leaves_no_thread_behind() -> None:
    """Threads that it left would take the cores that calls' own loops spin on."""
    begun: set[str] = set()

    def loop() -> None:
        openmp.set_threads(4)
        before = set(os.listdir(TASKS))
        torch.ones(1 << 20).sin()
        begun.update(set(os.listdir(TASKS)) - before)

    done(loop)
    assert len(begun) >= 3
    until(lambda: not begun & set(os.listdir(TASKS)), "the threads of the loop have ended")


@pytest.mark.skipif(not TASKS.exists(), reason="nothing says which threads this process has")
@pytest.mark.skipif(openmp.runtime() is None or openmp.runtime().pause is None, reason="not GNU's runtime")
def test_who_waits_leaves_no_thread_beside_what_is_measured() -> None:
    """Beside the threads of another team, loops of two threads took 30 µs to start on two cores."""
    before, ended = torch.get_num_threads(), list[bool]()
    openmp.end_team()
    try:
        openmp.set_threads(3)
        others = set(os.listdir(TASKS))
        torch.ones(1 << 20).sin()
        begun = set(os.listdir(TASKS)) - others

        def measured() -> None:
            until(lambda: not begun & set(os.listdir(TASKS)), "the caller's threads have ended")
            ended.append(True)

        with background.background.held():
            background.submit(Work(measured))
            assert len(begun) >= 2 and not ended
        assert polytile.wait(timeout=2 * PATIENCE) and ended
    finally:
        openmp.set_threads(before)


@pytest.mark.parametrize(
    ("threads", "cores", "crowded"), [(1, 1, False), (1, 2, False), (2, 2, True), (2, 3, False), (8, 16, False), (16, 16, True)]
)
def test_two_teams_are_too_many_where_they_have_more_threads_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, crowded: bool
) -> None:
    monkeypatch.setattr(openmp, "usable_cores", lambda: cores)
    known = openmp.runtime()
    assert openmp.is_crowded(threads) is (crowded and known is not None and known.pause is not None)


def test_a_team_that_has_ended_starts_again() -> None:
    x = torch.randn(1 << 20)
    expected = x.sin()
    for _ in range(3):
        openmp.end_team()
        torch.testing.assert_close(x.sin(), expected)


def test_at_most_so_many_threads_within_the_block() -> None:
    before = torch.get_num_threads()
    try:
        openmp.set_threads(3)
        with pytest.raises(ValueError), openmp.at_most(2):
            assert torch.get_num_threads() == 2
            with openmp.at_most(4):
                assert torch.get_num_threads() == 2
            raise ValueError
        assert torch.get_num_threads() == 3
    finally:
        openmp.set_threads(before)


def mkl_threads() -> int:
    """How many threads MKL's functions take that this thread calls."""
    return int(next(line.split()[-1] for line in torch.__config__.parallel_info().splitlines() if "mkl_get_max_threads" in line))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch has brought no MKL")
def test_at_most_counts_for_mkl_after_set_num_threads() -> None:
    """`torch.set_num_threads` gives MKL a number of threads of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with openmp.at_most(2):
            assert mkl_threads() == 2
            with openmp.at_most(1):
                assert mkl_threads() == 1
            assert mkl_threads() == 2
        assert mkl_threads() == 3
    finally:
        torch.set_num_threads(before)


def computed(tasks: Iterable[str]) -> float:
    """Seconds that these threads have computed."""
    return sum(int((TASKS / task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@pytest.mark.skipif(not (TASKS / str(os.getpid()) / "schedstat").exists(), reason="the system keeps no account of threads")
@pytest.mark.skipif(openmp.runtime() is None or openmp.runtime().pause is None, reason="not GNU's runtime")
def test_threads_sleep_between_loops_within_the_block() -> None:
    """In a process of its own, whose threads do nothing else."""
    command = "from tests.runtime.test_openmp import spun_within_the_block; print(spun_within_the_block())"
    ran = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert float(ran.stdout or "inf") < 2e-3, f"they spin for 5 ms and more without it\n{ran.stderr}"


def spun_within_the_block() -> float:
    """Seconds that the threads of a loop compute after its end."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with openmp.asleep():
            held.set()
            go_on.wait(PATIENCE)

    background.submit(Work(hold))
    assert held.wait(PATIENCE)
    openmp.set_threads(max(2, usable_cores()))
    try:
        return min(computed_after_a_loop() for _ in range(3))
    finally:
        go_on.set()


def computed_after_a_loop() -> float:
    """Seconds that the threads of a loop compute while nothing follows it."""
    torch.ones(1 << 20).neg_()
    tasks = os.listdir(TASKS)
    before = computed(tasks)
    time.sleep(0.03)
    return computed(tasks) - before


@pytest.mark.parametrize("threads", [1, 3])
def test_work_in_the_background_has_the_threads_of_calls(threads: int) -> None:
    """`torch.set_num_threads` reaches threads that have not used torch yet alone; the background's has."""
    found: list[int] = []
    call, before = tiers.reported(lambda arguments: arguments), torch.get_num_threads()
    done(lambda: found.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(threads)
        call([])
        done(lambda: found.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(before)
    call([])
    done(lambda: found.append(torch.get_num_threads()))
    assert found[1:] == [threads, before]
