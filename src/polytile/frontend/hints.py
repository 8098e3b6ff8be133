"""Hints: concrete sizes for a graph's dynamic ones, named by the user in the order of the arguments."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile.errors import HintError

log = logging.getLogger("polytile")

Hints = tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]
"""Sizes that every dynamic size takes in turn, or (name, its sizes) pairs."""

Values = dict[sympy.Symbol, int]

MOST = 2**63 - 1
"""The largest size that torch can give a tensor."""

LEAST = 2
"""The smallest size that can be dynamic: of 0 and 1 torch.compile makes graphs of their own, in which they are constants."""


def checked(hints: Sequence[int] | Mapping[str, Sequence[int]] | None, word: str = "hints") -> Hints:
    """`hints` in hashable form; raises HintError, naming the parameter `word`, for what is no size."""
    if hints is None:
        return ()
    named = isinstance(hints, Mapping)
    groups = list(hints.values()) if isinstance(hints, Mapping) else [hints]
    listed = all(isinstance(group, Sequence) and not isinstance(group, str) for group in groups)
    listed &= all(isinstance(name, str) for name in hints) if named else True
    if not listed or not all(type(size) is int and 0 <= size <= MOST for group in groups for size in group):
        raise HintError(
            f"{word}= takes a list of sizes, or a mapping from names such as 's0' to lists of sizes, integers from 0 to "
            f"2**63 - 1; it was given {hints!r}."
        )
    if named:
        return tuple((str(name), tuple(group)) for name, group in zip(hints, groups, strict=True))
    return tuple(groups[0])


def sizes_of(graph: Any) -> Values:
    """The dynamic sizes of a graph's tensors in argument order, then other dynamic integers, then strides, and what the
    tracer saw of each. (Strides are arguments too, so what is no size must wait for all sizes.) Dynamo's graphs and
    AOTAutograd's will do. Reads the tracer's values; never specialises."""
    found: Values = {}
    for number in _symbolic_numbers(graph):
        for symbol in sorted(number.node.expr.free_symbols, key=str):
            value = _traced(number.node.shape_env, symbol)
            if value is not None:
                found.setdefault(symbol, value)
    return found


def _symbolic_numbers(graph: Any) -> Iterator[torch.SymInt]:
    nodes = [node for node in getattr(getattr(graph, "graph", None), "nodes", ()) if node.op == "placeholder"]
    values = [node.meta.get("val", node.meta.get("example_value")) for node in nodes]
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided]
    sizes = [part for v in values if isinstance(v, torch.Tensor) for part in v.shape]
    others = [v for v in values if not isinstance(v, torch.Tensor)]
    strides = [part for tensor in tensors for part in tensor.stride()]
    for part in (*sizes, *others, *strides):
        if isinstance(part, torch.SymInt) and isinstance(part.node.expr, sympy.Expr):
            yield part


def _traced(env: Any, symbol: sympy.Symbol) -> int | None:
    """ShapeEnv keeps traced values under different names in different versions of torch, of which the older warns in the newer
    ones; those of nested tensors' ragged sizes are no numbers."""
    known = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    value = known.get(symbol)
    return int(value) if getattr(value, "is_Integer", isinstance(value, int)) else None


USUAL = 64
"""What a size of which nothing was seen is taken for."""


def traced_size(size: int | torch.SymInt) -> int:
    """What the tracer saw of a size, at least 0; USUAL for one of which it saw nothing. Never specialises."""
    if not isinstance(size, torch.SymInt):
        return size
    expr = size.node.expr
    values = {symbol: _traced(size.node.shape_env, symbol) for symbol in expr.free_symbols}
    number = expr.xreplace({symbol: sympy.Integer(USUAL if value is None else value) for symbol, value in values.items()})
    return max(0, int(number)) if number.is_number else USUAL


def marked(graph: Any, traced: Values) -> list[Values]:
    """The sizes that `torch._dynamo.mark_dynamic(tensor, dim, hint_override=size)` has asked for, with the traced value of the
    others; nothing where no mark gives a hint."""
    for number in _symbolic_numbers(graph):
        given = getattr(number.node.shape_env, "var_to_hint_override", {})
        asked = {symbol: int(given[symbol]) for symbol in traced if symbol in given}
        return [{**traced, **asked}] if asked else []
    return []


def combinations(hints: Hints, traced: Values, strict: bool = True, word: str = "hints") -> list[Values]:
    """Every combination of the hints, as values of the graph's dynamic sizes: those that no hint names keep the traced
    value.

    Names are "s0", "s1", ... for the first, second, ... dynamic size in argument order, or the tracer's own, such as
    "s77". A name that fits no size is passed over, or, if `strict`, refused with HintError. Hints below LEAST are passed over.
    """
    if not hints:
        return []
    if not isinstance(hints[0], tuple):
        return [dict.fromkeys(traced, int(size)) for size in hints if size >= LEAST] if traced else []
    order = list(traced)
    known = {s.name: s for s in order} | {f"s{k}": s for k, s in enumerate(order)}
    chosen: dict[sympy.Symbol, tuple[int, ...]] = {}
    for name, values in hints:
        if name in known:
            chosen[known[name]] = tuple(size for size in values if size >= LEAST)
            continue
        names = ", ".join(f"s{k}" for k in range(len(order))) or "none, every size is static"
        text = f"{word}= names {name!r}, which is no dynamic size of this graph; its dynamic sizes: {names}."
        if strict:
            raise HintError(text)
        log.info("%s", text)
    chosen = {symbol: values for symbol, values in chosen.items() if values}
    return [{**traced, **dict(zip(chosen, c, strict=True))} for c in itertools.product(*chosen.values()) if chosen]
