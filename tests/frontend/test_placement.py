"""What is stored for attention and library calls, and how it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from polytile.frontend.graph import lower_graph
from polytile.ir.attention import Attention
from polytile.ir.library_call import views_in
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Program
from tests.frontend.lowering import trace

WIDTH, HEADS = 32, 2


def lowered(fn: Callable[..., Any], *args: torch.Tensor) -> Program:
    return lower_graph(trace(fn, *args), "test").program


def library_call(fn: Callable[..., Any], *args: torch.Tensor) -> Extern:
    (call,) = (operation for operation in lowered(fn, *args).operations if isinstance(operation, Extern))
    return call


def attention(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    batch, length, _ = x.shape
    parts = torch.addmm(bias, x.reshape(-1, WIDTH), weight).view(batch, length, 3 * WIDTH).split(WIDTH, dim=2)
    q, k, v = (part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
    return F.scaled_dot_product_attention(q, k, v)


def test_queries_keys_and_values_are_views_of_what_the_product_stored() -> None:
    args = torch.randn(3, 7, WIDTH), torch.randn(WIDTH, 3 * WIDTH), torch.randn(3 * WIDTH)
    (operation,) = [each for each in lowered(attention, *args).operations if isinstance(each, Attention)]
    views = [operation.q, operation.k, operation.v]
    assert len({view.buffer for view in views}) == 1 and [int(view.offset) for view in views] == [0, WIDTH, 2 * WIDTH]


def test_one_view_of_many_is_stored_alone() -> None:
    """All but one column of what is computed are nobody's."""
    program = lowered(lambda x: (x.exp() + 1)[:, 0].sort().values, torch.randn(5, 100))
    assert [len(loop.axes) for loop in program.operations if isinstance(loop, Loop)] == [1]


def test_a_library_is_given_the_traced_strides() -> None:
    """Its results may follow them."""
    (view,) = views_in(library_call(lambda x: (x.t() * 2).sort(0).values, torch.randn(5, 7)).args)
    assert view.strides == (1, view.sizes[0])
