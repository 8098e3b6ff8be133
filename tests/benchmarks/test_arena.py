"""What benchmarks.arena says of the memory of programs, on a chain whose memory is known."""

from __future__ import annotations

import gc

import pytest
import torch

from benchmarks import arena
from tests.passes.helpers import S0, S1, Net
from tests.wrapper.helpers import lines_of

ROWS = 16
"""Rows of 16 floats, 64 bytes each: nothing is rounded."""


@pytest.fixture(scope="module")
def program() -> arena.Program:
    net = Net()
    x = net.input("x", S0, S1)
    for _ in range(5):
        x = net.op("sin", x)
    return arena.program_of(lines_of(net.program(x)))


def test_a_chain_needs_two_memories_at_a_time_of_which_one_is_its_result(program: arena.Program) -> None:
    one = ROWS * 64
    call = arena.taken(program, [torch.randn(ROWS, 16)])
    assert call.peak == 2 * one
    assert call.bound <= call.arena <= call.peak


def test_memory_is_proportional_to_sizes(program: arena.Program) -> None:
    small, large = (arena.taken(program, [torch.randn(rows, 16)]) for rows in (ROWS, 3 * ROWS))
    assert large.peak == 3 * small.peak and large.bound == 3 * small.bound


def test_eagers_peak_is_that_of_tensors_that_live_at_once() -> None:
    x = torch.randn(ROWS, 16)
    gc.collect()
    with arena.Held(iter([x])) as held:
        y = x.sin()
        z = y.cos()
        del y
        z.add_(1)
        z.view(-1).exp()
    assert held.peak == 2 * ROWS * 64


def test_memories_that_are_never_needed_together_share_their_place() -> None:
    lives = (arena.Life * 3)(arena.Life(0, 2, 1, 0, 0), arena.Life(2, 4, 1, 0, 0), arena.Life(1, 3, 1, 0, 0))
    sizes, offsets = (arena.ctypes.c_int64 * 3)(64, 64, 128), (arena.ctypes.c_int64 * 3)()
    assert arena.planner()(lives, sizes, 3, offsets) == 1
    assert list(offsets) == [128, 128, 0]
