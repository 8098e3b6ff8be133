"""What is timed on a GPU: calls themselves, or the replay of a graph of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.runtime.cuda import timing
from polytile.runtime.cuda.timing import Timer
from polytile.tuning import racing
from polytile.tuning.measure import Contender, timer_for

GPU = torch.device("cuda", 0)


class Graph:
    """Stands for a recorded graph."""

    def __init__(self, work: Callable[[], None], pool: Pool) -> None:
        self.replay, self.pool = work, pool


class Pool:
    """Stands for memory of its own."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs recorded so far."""
    found: list[Graph] = []

    def recorded(work: Callable[[], None], pool: Pool) -> Graph:
        found.append(Graph(work, pool))
        return found[-1]

    monkeypatch.setattr(timing, "recorded", recorded)
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    return found


def calls(count: int) -> None:
    """Does nothing, so often."""


def test_single_launches_are_timed_as_they_are_and_bursts_as_graphs(graphs: list[Graph]) -> None:
    timer = Timer(GPU)
    timer._work(calls, 1)
    assert not graphs
    for count, made in ((20, 1), (20, 1), (5, 2)):
        assert timer._work(calls, count) == graphs[-1].replay and len(graphs) == made


def test_bursts_are_recorded_anew_now_and_then_as_a_graph_keeps_its_own_time(graphs: list[Graph]) -> None:
    timer = Timer(GPU)
    made = [timer._work(calls, 20) and len(graphs) for _ in range(3 * timing.REPLAYS)]
    assert made == [1 + replay // timing.REPLAYS for replay in range(3 * timing.REPLAYS)]


def test_recordings_of_one_candidate_share_memory_and_a_race_gives_it_back(graphs: list[Graph]) -> None:
    first, second = Timer(GPU), Timer(GPU)
    for timer, count in ((first, 20), (first, 5), (second, 20)):
        timer._work(calls, count)
    assert graphs[0].pool is graphs[1].pool is not graphs[2].pool
    kept = [weakref.ref(graph.pool) for graph in graphs]
    graphs.clear()
    racing._tidy([Contender("first", NativeEntry(0), (), timer=first), Contender("second", NativeEntry(0), (), timer=second)])
    assert [pool() for pool in kept] == [None] * 3


def test_what_cannot_be_recorded_is_timed_as_it_is(graphs: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(work: Callable[[], None], pool: Pool) -> Graph:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(timing, "recorded", refuses)
    timer = timer_for(GPU, PythonEntry(lambda *args: None, recordable=True))
    assert isinstance(timer, Timer)
    timer._work(calls, 3)()
    assert not timer.graphs
    never = timer_for(GPU, PythonEntry(lambda *args: None))
    assert isinstance(never, Timer) and not never.graphs
