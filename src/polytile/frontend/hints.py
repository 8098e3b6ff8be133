"""Hints: concrete sizes for a graph's dynamic ones, named by the user in argument order."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.fx

from polytile.errors import HintError
from polytile.problem import digest
from polytile.runtime import sizes_file, sizes_seen

log = logging.getLogger("polytile")


@dataclass(frozen=True)
class Recorded:
    """Hints taken from the most frequent sizes in a file (runtime/sizes_file.py)."""

    path: Path


@dataclass(frozen=True)
class Joint:
    """Hints that are combinations, each of (name, size) pairs."""

    combinations: tuple[tuple[tuple[str, int], ...], ...]


Hints = tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...] | Joint | Recorded
"""Sizes that every dynamic size takes in turn, (name, its sizes) pairs, combinations, or a file of recorded sizes."""

Values = dict[sympy.Symbol, int]

MOST = 2**63 - 1
"""The largest size that a torch tensor can have."""

LEAST = 2
"""The smallest size that can be dynamic: torch.compile specialises graphs on 0 and 1."""


Given = Sequence[int] | Sequence[Mapping[str, int]] | Mapping[str, Sequence[int]] | str | os.PathLike[str] | None
"""The form in which users give hints; a path is that of a file of recorded sizes."""


def checked(hints: Given, word: str = "hints") -> Hints:
    """`hints` in hashable form.

    Raises
    ------
    HintError
        If they are not sizes or a file of sizes. The message names the parameter `word`.
    """
    if hints is None:
        return ()
    if isinstance(hints, os.PathLike) or (isinstance(hints, str) and Path(hints).expanduser().exists()):
        path = Path(hints).expanduser().absolute()
        sizes_file.read(path)
        return Recorded(path)
    if isinstance(hints, list | tuple) and hints and all(isinstance(each, Mapping) for each in hints):
        joint = tuple(tuple(each.items()) for each in hints if isinstance(each, Mapping))
        if all(isinstance(n, str) and type(size) is int and 0 <= size <= MOST for each in joint for n, size in each):
            return Joint(joint)
    named = isinstance(hints, Mapping)
    groups: list[Any] = list(hints.values()) if isinstance(hints, Mapping) else [hints]
    listed = all(isinstance(group, Sequence) and not isinstance(group, str) for group in groups)
    listed &= all(isinstance(name, str) for name in hints) if named else True
    if not listed or not all(type(size) is int and 0 <= size <= MOST for group in groups for size in group):
        raise HintError(
            f"{word}= takes a list of sizes, or a mapping from names such as 's0' to lists of sizes, integers from 0 to "
            f"2**63 - 1, or the path of a file of recorded sizes; it was given {hints!r}."
        )
    if named:
        return tuple((str(name), tuple(group)) for name, group in zip(hints, groups, strict=True))
    return tuple(size for size in groups[0] if isinstance(size, int))


def sizes_of(graph: Any) -> Values:
    """The dynamic sizes of a graph's tensors in argument order, then other dynamic integers, then strides, with their traced
    values.

    Strides are arguments too, so everything that is not a size must come after all sizes. Works for Dynamo's and AOTAutograd's
    graphs. Reads the tracer's values, and never specialises.
    """
    sizes: Values = {}
    for number in _symbolic_numbers(graph):
        for symbol in sorted(number.node.expr.free_symbols, key=str):
            value = _traced(number.node.shape_env, symbol)
            if value is not None:
                sizes.setdefault(symbol, value)
    return sizes


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
    """The traced value of a symbol. Versions of torch name the attribute differently, and newer ones warn about the old name. The
    ragged sizes of nested tensors are not numbers."""
    known = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    value = known.get(symbol)
    return int(value) if getattr(value, "is_Integer", isinstance(value, int)) else None


USUAL = 64
"""The value assumed for a size that was never traced."""


def traced_size(size: int | torch.SymInt) -> int:
    """The traced value of a size, at least 0; USUAL if it has none. Never specialises."""
    if not isinstance(size, torch.SymInt):
        return size
    expr = size.node.expr
    values = {symbol: _traced(size.node.shape_env, symbol) for symbol in expr.free_symbols}
    number = expr.xreplace(
        {symbol: sympy.Integer(USUAL if value is None else value) for symbol, value in values.items()}
    )
    return max(0, int(number)) if number.is_number else USUAL


def marked(graph: Any, traced: Values) -> list[Values]:
    """The sizes given by `torch._dynamo.mark_dynamic(tensor, dim, hint_override=size)`, with the traced values of the others.
    Empty if no mark gives a hint."""
    for number in _symbolic_numbers(graph):
        given = getattr(number.node.shape_env, "var_to_hint_override", {})
        asked = {symbol: int(given[symbol]) for symbol in traced if symbol in given}
        return [{**traced, **asked}] if asked else []
    return []


def identity(graph: torch.fx.GraphModule, traced: Values) -> str:
    """A digest of a Dynamo graph: its operators in order, and the dtypes and sizes of its inputs, with the symbols `traced` by
    position. It is the same in each process that compiles the function."""
    names = {symbol: sympy.Symbol(f"s{place}") for place, symbol in enumerate(traced)}

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{value.dtype} {value.device.type} [{', '.join(map(text, value.shape))}]"
        return str(value.node.expr.xreplace(names)) if isinstance(value, torch.SymInt) else type(value).__name__

    lines = []
    for node in graph.graph.nodes:
        given = (
            text(node.meta.get("example_value"))
            if node.op == "placeholder"
            else getattr(node.target, "__name__", node.target)
        )
        lines.append(f"{node.op} {given}")
    return digest("\n".join(lines), 24)


def meanings(graph: torch.fx.GraphModule, traced: Values) -> dict[str, str]:
    """What each dynamic size is in the function's arguments, in Dynamo's notation, by its name in hints."""
    env = next((number.node.shape_env for number in _symbolic_numbers(graph)), None)
    sources = getattr(env, "var_to_sources", {})
    said = {}
    for place, symbol in enumerate(traced):
        source = next(iter(sources.get(symbol, ())), None)
        name = getattr(source, "name", symbol)
        said[f"s{place}"] = str(name() if callable(name) else name)
    return said


def beginning(graph: torch.fx.GraphModule) -> str:
    """Where a Dynamo graph begins in the source: "model.py:12 in forward"; "" if unknown."""
    traces = (node.meta.get("stack_trace") for node in graph.graph.nodes)
    first = next((trace for trace in traces if trace), "")
    places = re.findall(r'File "(.*?)", line (\d+), in (\S+)', first)
    return f"{Path(places[0][0]).name}:{places[0][1]} in {places[0][2]}" if places else ""


def places_of(graph: torch.fx.GraphModule, symbols: Sequence[sympy.Symbol]) -> sizes_seen.Places:
    """Where the symbols are among the arguments of an AOTAutograd graph; empty if one does not appear by itself."""
    places: dict[sympy.Symbol, tuple[int, int | None]] = {}
    for number, node in enumerate(node for node in graph.graph.nodes if node.op == "placeholder"):
        value = node.meta.get("val")
        parts = value.shape if isinstance(value, torch.Tensor) and value.layout is torch.strided else [value]
        for dimension, part in enumerate(parts):
            if isinstance(part, torch.SymInt) and isinstance(part.node.expr, sympy.Symbol):
                places.setdefault(part.node.expr, (number, dimension if isinstance(value, torch.Tensor) else None))
    return tuple(places[symbol] for symbol in symbols) if all(symbol in places for symbol in symbols) else ()


def of_file(path: Path, graph: str, traced: Values) -> list[Values]:
    """The most frequent sizes in a file for the graph with this digest."""
    seen = sizes_file.read(path).get(graph)
    if seen is None:
        log.warning("%s has no sizes of the graph %s, which is compiled without hints.", path, graph)
        return []
    chosen = (sizes for sizes, _ in seen.frequent() if len(sizes) == len(traced) and min(sizes, default=0) >= LEAST)
    return [dict(zip(traced, sizes, strict=True)) for sizes in chosen]


def combinations(
    hints: Hints, traced: Values, strict: bool = True, word: str = "hints", graph: Callable[[], str] = str
) -> list[Values]:
    """Every combination of the hints, as values of the graph's dynamic sizes. Sizes that no hint names keep the traced value.

    Names are "s0", "s1", … for the first, second, … dynamic size in argument order, or the tracer's own, such as "s77". A name
    that matches no size is ignored, or, if `strict`, rejected with HintError. Hints below LEAST are ignored. From a file, the
    sizes of the graph with the digest `graph` are used.
    """
    if not hints:
        return []
    if isinstance(hints, Recorded):
        return of_file(hints.path, graph(), traced) if traced else []
    if isinstance(hints, Joint):
        parts = [tuple((name, (size,)) for name, size in each) for each in hints.combinations]
        return [values for part in parts for values in combinations(part, traced, strict, word)]
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
