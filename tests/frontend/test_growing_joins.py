"""Concatenations that grow are the beginnings of one buffer, in which each part is stored once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from lowering import trace

import polytile
from polytile.frontend.graph import lower_graph
from polytile.frontend.lower import growing_joins
from polytile.ir.buffer import View
from polytile.ir.loop import Loop
from polytile.ir.program import Program

LAYERS = 4


def _listed(x: Tensor) -> Tensor:
    """A dense block that keeps a list of what its layers have made."""
    parts = [x]
    for k in range(LAYERS):
        parts.append(torch.tanh(torch.cat(parts, 1) * (k + 1)).mean(1, keepdim=True) @ x[:, :1])
    return torch.cat(parts, 1).exp()


def _nested(x: Tensor) -> Tensor:
    """One that puts each layer's result behind what there is."""
    joined = x
    for k in range(LAYERS):
        joined = torch.cat((joined, torch.tanh(joined * (k + 1)).mean(1, keepdim=True) @ x[:, :1]), 1)
    return joined.exp()


BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {"listed": _listed, "nested": _nested}


def program(function: Callable[..., Any], *args: Tensor) -> Program:
    return lower_graph(trace(function, *args), "test").program


def stores_of_parts(lowered: Program) -> list[str]:
    """The loops that store to a buffer to which others store too."""
    written = [name for each in lowered.operations if isinstance(each, Loop) for name in each.writes()]
    return [name for name in written if written.count(name) > 1]


@pytest.mark.parametrize("name", BLOCKS)
def test_each_part_is_stored_once(name: str) -> None:
    stores = stores_of_parts(program(BLOCKS[name], torch.randn(2, 3, 6, 6)))
    assert len(stores) == LAYERS + 1 and len(set(stores)) == 1


@pytest.mark.parametrize("name", BLOCKS)
def test_dense_blocks_and_their_gradients(name: str) -> None:
    call = polytile.compile(BLOCKS[name], fullgraph=True)
    for n in (4, 7):
        x = torch.randn(2, 3, n, n, dtype=torch.float64, requires_grad=True)
        (got,), (want,) = (torch.autograd.grad(f(x).sum(), x) for f in (call, BLOCKS[name]))
        torch.testing.assert_close(got, want)
        with torch.no_grad():
            torch.testing.assert_close(call(x), BLOCKS[name](x))
    assert polytile.counters["failures"] == 0


def test_what_is_returned_has_memory_of_its_own() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = [torch.cat((x, y) * k, 1) for k in range(1, 5)]
        return *found[:2], found[2].sum(1), found[3].sum(1)

    lowered = program(function, torch.randn(2, 3), torch.randn(2, 4))
    returned = [each.buffer for each in lowered.outputs if isinstance(each, View)]
    assert len(set(returned)) == 4 and not stores_of_parts(lowered)


OTHERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "two": lambda x, y: [torch.cat((x, y) * k, 1).softmax(1) for k in (1, 2)],
    "other orders": lambda x, y: [torch.cat(parts, 1).softmax(1) for parts in ((x, y), (x, x, y), (y, x, y))],
    "other dimensions": lambda x, y: [torch.cat((x, x), 0).sum(0), torch.cat((x, y), 1).sum(1), torch.cat((x, x, y), 1).sum(1)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_share_nothing(name: str) -> None:
    assert not stores_of_parts(program(OTHERS[name], torch.randn(2, 3), torch.randn(2, 4)))


def test_families_of_one_first_part() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        """Two families, which differ in their dtypes."""
        return [torch.cat((x, *(each,) * k), 1).cumsum(1) for each in (y, y.double()) for k in range(1, 5)]

    x, y = torch.randn(3, 4), torch.randn(3, 5)
    stores = stores_of_parts(program(function, x, y))
    assert len(stores) == 10 and len(set(stores)) == 2
    torch.testing.assert_close(polytile.compile(function)(x, y), function(x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64], ids=str)
def test_parts_of_several_types(dtype: torch.dtype) -> None:
    """A first part that has been rounded on its way is not the same as one that has not."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        rounded = torch.cat((torch.cat((x, y.bfloat16()), 1), y), 1)
        found = [torch.cat((x, y.bfloat16(), *(y,) * k), 1) for k in range(1, 4)]
        return [each.cumsum(1) for each in (rounded, *found, torch.cat((found[0], y), 1))]

    x, y = (torch.randn(3, 4) * 1000).to(dtype), torch.randn(3, 4)
    torch.testing.assert_close(polytile.compile(function)(x, y), function(x, y))


def test_a_family_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its concatenations: lowering 200 of them took 30 s."""
    asked: list[torch.fx.Node] = []
    found = growing_joins._family
    monkeypatch.setattr(growing_joins, "_family", lambda node, dim: asked.append(node) or found(node, dim))
    program(_nested, torch.randn(2, 3, 6, 6))
    assert len(asked) == 1


def test_a_family_may_be_longer_than_calls_nest() -> None:
    graph = torch.fx.Graph()
    joined = x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 1)
    for _ in range(sys.getrecursionlimit() + 1):
        joined = graph.call_function(torch.ops.aten.cat.default, ([joined, x], 1))
        joined.meta["val"] = torch.empty(1, 1)
    assert len(growing_joins.parts_of(joined, 1)) == sys.getrecursionlimit() + 2
