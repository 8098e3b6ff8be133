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


def chain(length: int) -> arena.Program:
    """x → sin → sin → ..., every step stored."""
    net = Net()
    x = net.input("x", S0, S1)
    for _ in range(length):
        x = net.op("sin", x)
    return arena.program_of(lines_of(net.program(x)))


@pytest.fixture(scope="module")
def program() -> arena.Program:
    return chain(5)


def test_a_chain_needs_two_memories_at_a_time_of_which_one_is_its_result(program: arena.Program) -> None:
    one = ROWS * 64
    call = arena.taken(program, [torch.randn(ROWS, 16)])
    assert call.peak == 2 * one
    assert call.bound <= call.arena <= call.peak


def test_memory_is_proportional_to_sizes(program: arena.Program) -> None:
    small, large = (arena.taken(program, [torch.randn(rows, 16)]) for rows in (ROWS, 3 * ROWS))
    assert large.peak == 3 * small.peak and large.bound == 3 * small.bound


def test_an_input_that_is_the_callers_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    x, program = torch.randn(ROWS, 16), chain(1)
    assert arena.taken(program, [x]).peak == 2 * ROWS * 64
    monkeypatch.setattr(arena, "given", {x.untyped_storage()._cdata})
    assert arena.taken(program, [x]).peak == ROWS * 64


def test_eagers_peak_is_that_of_tensors_that_live_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(ROWS, 16)
    monkeypatch.setattr(arena, "given", {x.untyped_storage()._cdata})
    gc.collect()
    with arena.Held() as held:
        y = x.sin()
        z = y.cos()
        del y
        z.add_(1)
        z.view(-1).exp()
    assert held.peak == 2 * ROWS * 64
