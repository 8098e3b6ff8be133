"""Graphs of which no program can be made: every operator is a library call, which is correct but not fast, and is reported."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_map_only

from polytile.counters import counters
from polytile.frontend.channels_last import TRACED
from polytile.frontend.graph import OperatorReport
from polytile.ir.complex_number import ComplexNumber

log = logging.getLogger("polytile")

SOURCE = "# the ATen graph is run as it is"

_warned: set[str] = set()


def say_once(why: str) -> None:
    """Log once why no kernels are generated for a graph."""
    if why not in _warned:
        _warned.add(why)
        log.warning("polytile generates no kernels for this graph and runs ATen's instead: %s", why)


def library_calls(graph: torch.fx.GraphModule, why: str) -> tuple[tuple[OperatorReport, ...], Callable[[list[Any]], list[Any]]]:
    """Reports for the graph's operators, which are counted, and the graph as ATen calls (`as_traced`)."""
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    operators = [str(target) for target in targets if isinstance(target, torch._ops.OpOverload)]
    for operator in operators:
        counters.add_library_call(operator)

    return tuple(OperatorReport(operator, "library", why) for operator in operators), as_traced(graph)


def _with_readable_numbers(graph: torch.fx.Graph) -> None:
    """Has the code of a graph name its complex constants exactly."""
    for node in graph.nodes:
        node.args, node.kwargs = tree_map_only(complex, ComplexNumber, (node.args, node.kwargs))


def as_traced(graph: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
    """The graph run operator by operator: a callable that takes a list of arguments, and empties it."""
    orders = [_eager_order(node) for node in graph.graph.nodes if node.op == "placeholder"]
    _with_readable_numbers(graph.graph)
    graph.recompile()

    def call(args: list[Any]) -> list[Any]:
        values = [value if order is None else _in_order(value, order) for value, order in zip(args, orders, strict=True)]
        args.clear()
        return list(graph(*values))

    with_own_code(call)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def with_own_code(call: Callable[..., Any]) -> None:
    """Give a function a code object of its own, by which `explain` tells whether it ran."""
    assert isinstance(call, types.FunctionType)
    call.__code__ = call.__code__.replace()


def _eager_order(node: torch.fx.Node) -> list[int] | None:
    """The dimensions of an argument, outermost in memory first, as ATen's operators would have laid it out; None if the forward
    graph does the same."""
    traced = node.meta.get(TRACED)
    if traced is None:
        return None
    strides = [getattr(getattr(s, "node", None), "hint", s) or 1 for s in traced.stride()]
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def _in_order(value: torch.Tensor, order: list[int]) -> torch.Tensor:
    """`value` with its dimensions in this memory order, on which the graph's views of it rely."""
    return torch.empty_permuted(value.shape, order, dtype=value.dtype, device=value.device).copy_(value)
