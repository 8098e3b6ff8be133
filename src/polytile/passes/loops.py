"""Transformations that passes share (reindexing, renaming, replacing bodies), and queries on loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from polytile import options
from polytile.ir import divisions, expr, sizes
from polytile.ir.attention import Attention
from polytile.ir.expr import Node, Scan
from polytile.ir.loop import Axis, Loop
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template

Mapped = Mapping[sympy.Symbol, sympy.Expr]


def reindexed(loop: Loop, axes: tuple[Axis, ...], reduced: tuple[Axis, ...], mapping: Mapped) -> Loop:
    """`loop` over new axes. `mapping` is applied to every index, which is then simplified for the new ranges."""
    new = replace(loop, axes=axes, reduced=reduced)
    ranges = new.ranges

    def index_map(index: sympy.Expr) -> sympy.Expr:
        return divisions.simplify(sizes.substitute(index, mapping), ranges)

    return new.map_roots(lambda roots: expr.map_indices(roots, index_map), index_map)


def canonical(loop: Loop) -> Loop:
    """`loop` without axes of size 1, and with its axes named p0, p1, … and r0, r1, … in order."""
    mapping: dict[sympy.Symbol, sympy.Expr] = {a.symbol: sizes.ZERO for a in loop.axes + loop.reduced}
    groups = []
    for prefix, kept in zip("pr", kept_axes(loop), strict=True):
        renamed = tuple(Axis(sizes.axis(f"{prefix}{i}"), a.size) for i, a in enumerate(kept))
        mapping.update({a.symbol: b.symbol for a, b in zip(kept, renamed, strict=True)})
        groups.append(renamed)
    if groups == [loop.axes, loop.reduced]:
        return loop
    return reindexed(loop, groups[0], groups[1], {a: b for a, b in mapping.items() if a != b})


def kept_axes(loop: Loop) -> tuple[list[Axis], list[Axis]]:
    """The axes and reduced axes whose size is not 1. A reduction over one element keeps one axis."""
    axes, reduced = ([a for a in group if a.size != 1] for group in (loop.axes, loop.reduced))
    return axes, reduced or list(loop.reduced[:1])


def has_scan(loop: Loop) -> bool:
    """Whether the loop computes a scan."""
    return any(isinstance(node, Scan) for node in expr.walk(*loop.roots))


def indices(loop: Loop) -> list[sympy.Expr]:
    """Every distinct index expression of the loop in evaluation order, followed by those of the stores."""
    of_nodes = [index for node in expr.walk(*loop.roots) for index in node.indices]
    return list(dict.fromkeys(of_nodes + [store.index for store in loop.stores]))


@dataclass(frozen=True)
class Linear:
    """index = Σ coefficient·axis + rest, where neither `rest` nor the coefficients contain an axis."""

    coefficients: Mapped
    rest: sympy.Expr


@functools.lru_cache(maxsize=50_000)
def linear(index: sympy.Expr, axes: tuple[sympy.Symbol, ...]) -> Linear | None:
    """`index` as a linear function of `axes`, without zero coefficients; None if it is not linear."""
    coefficients: dict[sympy.Symbol, sympy.Expr] = {}
    rest = sizes.ZERO
    held = set(axes)
    for term in sympy.Add.make_args(divisions.simplify(index, {})):
        inside = sizes.symbols(term) & held
        if not inside:
            rest += term
            continue
        symbol = next(iter(inside))
        factor = term / symbol
        if len(inside) > 1 or symbol in sizes.symbols(factor):
            return None
        coefficients[symbol] = coefficients.get(symbol, sizes.ZERO) + factor
    return Linear({s: sizes.expand(c) for s, c in coefficients.items()}, rest)


def map_loop(operation: Operation, rule: Callable[[Loop], Loop]) -> Operation:
    """Apply `rule` to a loop, to a product's epilogue or to an attention's scores."""
    match operation:
        case Loop():
            return rule(operation)
        case Template(epilogue=Loop() as epilogue):
            return replace(operation, epilogue=rule(epilogue))
        case Attention(scores=Loop() as scores):
            return replace(operation, scores=rule(scores))
    return operation


def map_loops(program: Program, rule: Callable[[Loop], Loop], epilogues: bool = False) -> Program:
    """Apply `rule` to every loop of the program; with `epilogues`, also to epilogues and to the scores of attentions."""
    mapped = [map_loop(o, rule) if epilogues or isinstance(o, Loop) else o for o in program.operations]
    return replace(program, operations=tuple(mapped))


def on_gpu(device: torch.device) -> bool:
    """Whether kernels for this device are GPU kernels. With option `interpret`, they are, and run on CPU memory."""
    return device.type == "cuda" or bool(options.get("interpret"))


def merged_origins(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """The source operators of several operations, without duplicates, in order."""
    return tuple(dict.fromkeys(origin for group in groups for origin in group))


def node_count(*roots: Node) -> int:
    """Number of distinct nodes under the roots, including the roots."""
    return sum(1 for _ in expr.walk(*roots))


def touching(operations: Sequence[Operation]) -> dict[str, list[int]]:
    """For each buffer, the positions of the operations that read or write it."""
    positions: dict[str, list[int]] = {}
    for i, operation in enumerate(operations):
        for name in operation.reads() | operation.writes():
            positions.setdefault(name, []).append(i)
    return positions
