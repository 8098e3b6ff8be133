"""Calls leave a core to whoever makes the program that they wait for."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest
import torch

from polytile.compiler import tiers
from polytile.runtime import background, openmp, spare_core
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher
from tests.runtime.helpers import entry

SEEN: list[int] = []


@torch.library.custom_op("polytile_tests::threads_seen", mutates_args=())
def threads_seen(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(torch.get_num_threads())
    return x.clone()


@threads_seen.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four threads for this thread, on what counts as four cores. What `torch.set_num_threads` sets stays with threads that begin
    meanwhile."""
    if openmp.runtime() is None:
        pytest.skip("PyTorch has brought no OpenMP runtime")
    before = torch.get_num_threads()
    openmp.set_threads(4)
    monkeypatch.setattr(spare_core, "usable_cores", lambda: 4)
    yield
    openmp.set_threads(before)


@pytest.mark.parametrize(("last_call", "most"), [(float("inf"), 1), (0.0, 4)], ids=["a call runs", "no calls come"])
def test_packing_keeps_to_the_core_that_calls_leave(
    four_threads: None, monkeypatch: pytest.MonkeyPatch, last_call: float, most: int
) -> None:
    monkeypatch.setattr(background.background, "last_call", last_call)
    with spare_core.keep_to_one():
        assert torch.get_num_threads() == most
    assert torch.get_num_threads() == 4


def test_a_thread_less_within_the_block(four_threads: None) -> None:
    def in_another() -> int:
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        return found[0]

    elsewhere = in_another()
    with pytest.raises(ValueError), spare_core.leave_one_free():
        assert (torch.get_num_threads(), in_another()) == (3, elsewhere)
        raise ValueError
    assert torch.get_num_threads() == 4


def test_nothing_changes_where_a_core_is_free_anyway(four_threads: None) -> None:
    with pytest.MonkeyPatch.context() as more:
        more.setattr(spare_core, "usable_cores", lambda: 8)
        with spare_core.leave_one_free():
            assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("threads", "asked"), [(2, 2), (4, 3), (6, 5)])
def test_generated_kernels_leave_it(four_threads: None, threads: int, asked: int) -> None:
    told, other = torch.zeros(6, dtype=torch.int64), torch.zeros(2)
    dispatch = new_dispatcher(Interface("k", [1, 0], lambda key, arguments: entry("show", threads=threads)))
    nobody = contextlib.nullcontext()
    for wanted, expected in ((nobody, threads), (spare_core.wanted(), asked), (nobody, threads)):
        with wanted:
            dispatch(told, other, 100, 7)
        assert told[0] == expected


def test_a_forked_child_leaves_none(four_threads: None) -> None:
    with spare_core.wanted():
        child = os.fork()
        if child == 0:
            os._exit(int(spare_core.is_wanted()))
        assert spare_core.is_wanted() and os.waitpid(child, 0)[1] == 0


def test_calls_leave_it_while_their_program_is_made(four_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    torch._dynamo.reset()
    run = torch.compile(lambda x: threads_seen(x) * 2, backend="polytile", dynamic=True, options={"stall": "never"})
    begun, go_on = threading.Event(), threading.Event()
    build = tiers.TieredGraph.build

    def later(graph: tiers.TieredGraph) -> None:
        begun.set()
        go_on.wait(60)
        build(graph)

    monkeypatch.setattr(tiers.TieredGraph, "build", later)
    x = torch.randn(3, 5)
    run(x)
    assert begun.wait(60)
    run(x)
    go_on.set()
    background.wait()
    torch.testing.assert_close(run(x), x * 2)
    assert SEEN == [4, 3, 4] or SEEN == [3, 3, 4]  # the first call may meet the work that it has begun
    torch._dynamo.reset()


def test_calls_of_a_program_that_serves_leave_it_too(four_threads: None) -> None:
    """Such as those of a program from disk, while kernels for new regimes are compiled."""
    found: list[int] = []

    def program(arguments: list[int]) -> list[int]:
        found.append(torch.get_num_threads())
        return arguments

    call = tiers.reported(program)
    call([])
    with spare_core.wanted():
        call([])
    call([])
    assert found == [4, 3, 4]
