"""Records from which operator nodes came that the tracer decomposed: eager has one kernel for a softmax, the graph has five
operators. The record is attached to the nodes that compute its results, so that a loop can be replaced by the whole operator
(trace.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, get_proxy_slot
from torch.utils._pytree import tree_leaves

from polytile.frontend.circular_pads import PAD_CIRCULAR
from polytile.ir import sizes

KEY = "polytile_taken_apart"
"""The key in a node's `meta`."""

CHANGING = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
"""Operators that mutate arguments although their schema does not say so: the running statistics of a norm."""

OF_ATEN = {PAD_CIRCULAR: torch.ops.aten._pad_circular.default}
"""ATen's operators in whose place the tracer meets one of polytile's."""

Decomposition = Callable[..., Any]
Shape = tuple[tuple[sympy.Expr, ...], torch.dtype]
"""Sizes and dtype of a tensor."""


@dataclass(frozen=True)
class Name:
    """An argument that is the result of the node with this name."""

    node: str


@dataclass(frozen=True, eq=False)
class Whole:
    """A call of a decomposed operator, with a Name for every tensor, and the sizes and dtypes of its results."""

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Shape | None, ...]


@dataclass(frozen=True)
class Result:
    """The value of a node: result number `output` of a call, or None for a single result."""

    call: Whole
    output: int | None


def noting(table: Mapping[OpOverload, Decomposition]) -> dict[OpOverload, Decomposition]:
    """A table of decompositions, each of which records what it decomposes."""
    return {op: _noting(OF_ATEN.get(op, op), rule) if isinstance(op, OpOverload) else rule for op, rule in table.items()}


def _noting(operator: OpOverload, rule: Decomposition) -> Decomposition:
    if operator._schema.is_mutable or operator._schema.name.partition("::")[2] in CHANGING:
        return rule

    @functools.wraps(rule)
    def run(*args: Any, **kwargs: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return rule(*args, **kwargs)
        last = next(iter(reversed(mode.tracer.graph.nodes)), None)
        result = rule(*args, **kwargs)
        if result is not NotImplemented:
            with disable_proxy_modes_tracing():  # comparing sizes must not be traced into the graph
                _note(operator, args, kwargs, result, mode.tracer, last)
        return result

    return run


def _note(operator: OpOverload, args: Any, kwargs: Any, found: Any, tracer: Any, last: torch.fx.Node | None) -> None:
    """Record the call on those nodes after `last` that are its results."""
    try:
        given, named = _named(args, tracer), _named(kwargs, tracer)
    except _Unnamed:
        return
    many = isinstance(found, tuple | list)
    results = tuple(found) if many else (found,)
    call = Whole(operator, given, named, tuple(map(shape_of, results)))
    for k, result in enumerate(results):
        node = _node_of(result, tracer) if isinstance(result, torch.Tensor) else None
        if node is not None and node.op == "call_function" and (last is None or last < node):
            node.meta[KEY] = Result(call, k if many else None)


def shape_of(value: Any) -> Shape | None:
    """Sizes and dtype of a fake tensor; None for anything else."""
    return (tuple(sizes.as_size(n) for n in value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


class _Unnamed(Exception):
    """Raised for a tensor without a node."""


def _named(value: Any, tracer: Any) -> Any:
    if isinstance(value, torch.Tensor):
        node = _node_of(value, tracer)
        if node is None:
            raise _Unnamed
        return Name(node.name)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    if isinstance(value, tuple | list):
        return type(value)(_named(v, tracer) for v in value) if type(value) is tuple else [_named(v, tracer) for v in value]
    if isinstance(value, dict):
        return {k: _named(v, tracer) for k, v in value.items()}
    return value


def _node_of(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    slot = get_proxy_slot(tensor, tracer, None)
    proxy = getattr(slot, "proxy", None)
    return getattr(proxy, "node", None)


def names_in(call: Whole) -> list[str]:
    """The names of the nodes among a call's arguments."""
    return [leaf.node for leaf in tree_leaves((call.args, dict(call.kwargs))) if isinstance(leaf, Name)]
