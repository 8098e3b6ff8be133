"""Collectives begin as early and are waited for as late as what they work on allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from polytile.ir.buffer import whole
from polytile.ir.library_call import Ref
from polytile.ir.program import Extern, Program
from polytile.passes.overlap import is_start, is_wait, overlap_collectives
from tests.passes.helpers import optimized

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")

if distributed.is_available():
    import torch.distributed._functional_collectives  # registers what the operators give for fake tensors

ops = torch.ops._c10d_functional


def reduced(x: Tensor) -> Tensor:
    return ops.all_reduce(x, "sum", "0")


def wait(x: Tensor) -> Tensor:
    return ops.wait_tensor(x)


def words(program: Program) -> str:
    """The program's operations: s(tart), w(ait), and . for all others."""
    return "".join("s" if is_start(o) else "w" if is_wait(o) else "." for o in program.operations)


def order(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    return words(optimized(function, *(torch.randn(shape) for shape in shapes)))


def test_work_that_needs_no_result_is_done_before_the_wait() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        got = wait(reduced(x))
        return (y @ z) @ got

    assert order(function, (4, 5), (3, 6), (6, 4)) == "s.w."


def test_a_collective_begins_once_its_argument_is_there() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        product = (y @ z).softmax(-1) @ y
        return product, wait(reduced(x)).cos()

    assert order(function, (6, 7), (6, 7), (7, 6)) == "s...w."


def test_collectives_keep_their_order_and_few_are_under_way_for_what_comes_later() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
        for weight in (x, y, z, w):
            gathered = wait(ops.all_gather_into_tensor(weight, 1, "0"))
            w = torch.softmax(w @ gathered, -1)
        return w

    program = optimized(function, *(torch.randn(8, 8) for _ in range(4)))
    text = words(program)
    under_way = [text[:k].count("s") - text[:k].count("w") for k in range(len(text) + 1)]
    assert max(under_way) == 2 and text.startswith("ss"), text
    arguments = [next(iter(o.reads())) for o in program.operations if is_start(o)]
    assert arguments == [name for name in program.buffers if name in arguments], "in the order of the graph"


def test_memory_that_a_collective_works_on_is_not_written_before_the_wait() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        got = wait(reduced(x))
        x.copy_(y @ y)
        return got + 1

    program = optimized(function, torch.randn(4, 4), torch.randn(4, 4))
    [at] = [k for k, o in enumerate(program.operations) if is_wait(o)]
    assert not [o for o in program.operations[:at] if "x" in o.writes() or o.writes() & program.input_buffers()]


def test_a_collective_that_changes_its_argument_is_waited_for_before_that_is_read() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return wait(reduced(x)) + y

    program = optimized(function, torch.randn(4, 4), torch.randn(4, 4))
    start, waiting, loop = program.operations
    assert isinstance(start, Extern) and start.reads()
    [argument] = start.reads()
    given = program.buffers[argument]
    fresh = replace(given, name="fresh", role="temp")
    reader = Extern("reader", torch.ops.aten.neg.default, (Ref(whole(given)),), (), ("fresh",))

    def moved(collective: Extern) -> str:
        operations = (collective, waiting, reader, loop)
        return words(overlap_collectives(replace(program, operations=operations, buffers={**program.buffers, "fresh": fresh})))

    assert moved(start) == "s.w."
    assert moved(replace(start, mutates=(argument,))) == "sw.."
