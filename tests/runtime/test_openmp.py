"""Threads of parallel loops that other threads than the caller's begin."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from polytile.compiler import tiers
from polytile.runtime import background, openmp
from polytile.runtime.background import Background, Disturbance
from tests.waiting import until

TASKS = Path("/proc/self/task")

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


@pytest.mark.parametrize("threads", [1, 3])
def test_work_in_the_background_has_the_threads_of_calls(threads: int) -> None:
    """`torch.set_num_threads` reaches threads that have not used torch yet alone; the background's has."""
    found: list[int] = []
    call, before = tiers.noticed(lambda arguments: arguments), torch.get_num_threads()
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
