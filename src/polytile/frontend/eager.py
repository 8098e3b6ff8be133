"""Graphs of which no program can be made: every operator as a library call, right, not fast, and said so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from polytile.counters import counters
from polytile.frontend.graph import OperatorReport

log = logging.getLogger("polytile")

SOURCE = "# the ATen graph is run as it is"

_warned: set[str] = set()


def library_calls(
    graph: torch.fx.GraphModule, why: str
) -> tuple[tuple[OperatorReport, ...], Callable[[list[Any]], list[Any]]]:
    """What became of the graph's operators, and a callable that takes the list of arguments, which it empties. `why` is
    logged once."""
    if why not in _warned:
        _warned.add(why)
        log.warning("polytile generates no kernels for this graph and runs ATen's instead: %s", why)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    operators = [str(target) for target in targets if isinstance(target, torch._ops.OpOverload)]
    for operator in operators:
        counters.add_library_call(operator)

    def call(args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        return list(graph(*values))

    call._boxed_call = True  # type: ignore[attr-defined]
    return tuple(OperatorReport(operator, "library", why) for operator in operators), call
