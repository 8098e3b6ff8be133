"""Simplifies values and indices, by the rules of `rules.py` and by what a loop's ranges decide.

p0 < s0 holds:   lt (index p0) (index s0)  →  true load x[p0 // 4 * 4 + p0 % 4]               →  load x[p0] load x[p0] where true
→  load x[p0] load x[i0] with i0 = index (p0 + 1)        →  load x[p0 + 1] index p0 + 1  (an addition of indices)     →  index (p0
+ 1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy
import torch

from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Const, Index, Load, Node, Op, Part, Reduce
from polytile.ir.loop import Axis, Loop
from polytile.ir.program import Program
from polytile.passes import rules
from polytile.passes.loops import map_loops


def simplify(program: Program) -> Program:
    """`program` with sizes simplified, and with the values and indices of every loop and epilogue simplified. Floating-point
    results are unchanged."""
    program = replace(program, buffers={name: _simple_buffer(b) for name, b in program.buffers.items()})
    return map_loops(program, lambda loop: simplify_loop(loop, program.buffers), epilogues=True)


def _simple_buffer(buffer: Buffer) -> Buffer:
    """`buffer` with simplified sizes, for example s²//s → s."""
    if not any(sizes.has_division(n) for n in buffer.sizes + buffer.strides):
        return buffer
    shape, strides = (tuple(divisions.simplify(n, {}) for n in group) for group in (buffer.sizes, buffer.strides))
    return replace(buffer, sizes=shape, strides=strides)


def simplify_loop(loop: Loop, buffers: Mapping[str, Buffer]) -> Loop:
    """Simplify one loop's sizes, indices and values.

    Masks and comparisons that the ranges decide become constants, reductions over one element disappear, indirect indices that
    are index expressions become direct, and the algebraic rules (rules.py) are applied. Stores whose mask is false are dropped.
    """
    loop = replace(loop, axes=_simple_axes(loop.axes), reduced=_simple_axes(loop.reduced))
    ranges = loop.ranges
    single = bool(loop.reduced) and all(a.size == 1 for a in loop.reduced)

    def index_map(index: sympy.Expr) -> sympy.Expr:
        return divisions.simplify(index, ranges)

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children, index_map)
        if isinstance(node, Load) and isinstance(node.mask, Const):
            return _decided_load(node)
        if isinstance(node, Load) and any(map(_is_place, node.indirect)):
            return _direct_load(node, index_map)
        if single and isinstance(node, Part | Reduce):
            node = _of_one_element(node)
        if isinstance(node, Op):
            node = _decided(node, ranges, buffers)
        return rules.apply(node)

    new = loop.map_roots(lambda roots: expr.rewrite(roots, rule), index_map)
    stores = tuple(
        replace(s, mask=None) if isinstance(s.mask, Const) and s.mask.value else s
        for s in new.stores
        if not (isinstance(s.mask, Const) and not s.mask.value)
    )
    if single and not any(isinstance(n, Reduce | expr.Scan) for s in stores for n in expr.walk(*s.roots)):
        new = replace(new, axes=new.axes + new.reduced, reduced=())
    return replace(new, stores=stores)


def _simple_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(a.symbol, divisions.simplify(a.size, {})) for a in axes)


def _decided_load(node: Load) -> Node:
    """A load whose mask is constant."""
    assert isinstance(node.mask, Const)
    return expr.load(node.dtype, node.buffer, node.index, node.indirect) if node.mask.value else expr.const(0, node.dtype)


def _is_place(value: Node) -> bool:
    """Whether an indirect index is an index expression and not data."""
    return isinstance(value, Index) and not value.dtype.is_floating_point


def _direct_load(node: Load, index_map: Callable[[sympy.Expr], sympy.Expr]) -> Node:
    """A load with those of its indirect indices substituted that are index expressions."""
    places: dict[sympy.Symbol, sympy.Expr] = {}
    rest: list[Node] = []
    for k, value in enumerate(node.indirect):
        if isinstance(value, Index) and _is_place(value):
            places[expr.indirect_symbol(k)] = value.expr
        else:
            places[expr.indirect_symbol(k)] = expr.indirect_symbol(len(rest))
            rest.append(value)
    index = index_map(sizes.expand(node.index.xreplace(places)))
    return expr.load(node.dtype, node.buffer, index, tuple(rest), node.mask)


def _of_one_element(node: Node) -> Node:
    """A reduction over one element."""
    if isinstance(node, Reduce) and node.kind in ("sum", "prod", "max", "min", "any", "all"):
        value = node.args[0]
        return value if value.dtype == node.dtype else expr.op("cast", node.dtype, value)
    if isinstance(node, Part) and isinstance(node.node, Reduce) and node.node.kind in ("argmax", "argmin"):
        return node.node.args[node.k]
    return node


# what the ranges decide ----------------------------------------------------------------------------------------------


def _decided(node: Op, ranges: divisions.Ranges, buffers: Mapping[str, Buffer]) -> Node:
    if node.name in _COMPARISONS:
        sides = [_as_index(a) for a in node.args]
        if sides[0] is not None and sides[1] is not None:
            answer = _COMPARISONS[node.name](sides[0] - sides[1], ranges)
            return node if answer is None else expr.const(answer, torch.bool)
    if node.name in _INDEX_ARITHMETIC and node.dtype == torch.int64:
        sides = [_as_index(a) for a in node.args]
        if sides[0] is not None and sides[1] is not None and any(isinstance(a, Index) for a in node.args):
            return expr.index_value(divisions.simplify(_INDEX_ARITHMETIC[node.name](*sides), ranges), torch.int64)
    if node.name == "cast" and isinstance(node.args[0], Index) and node.dtype.is_floating_point:
        return expr.index_value(node.args[0].expr, node.dtype) if node.args[0].dtype == torch.int64 else node
    if node.name in _HALF and is_rounded(node.args[0], node.name, buffers):
        return node.args[0]
    return node


_HALF = {name: dtype for dtype, name in ROUNDING.items()}
_KEEPS_ROUNDING = ("neg", "abs", "minimum", "maximum", "trunc", "floor", "ceil", "round", "sign")


def is_rounded(node: Node, rounding: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether `node` is known to be representable in the dtype that `rounding` rounds to, so that rounding changes nothing."""
    if isinstance(node, Const):
        value = torch.tensor(node.value, dtype=torch.float64, device="cpu")
        return bool(value.to(_HALF[rounding]).to(torch.float64) == value)
    if isinstance(node, Load):
        return buffers[node.buffer].dtype == _HALF[rounding]
    if isinstance(node, Reduce):
        return node.kind in ("max", "min") and is_rounded(node.args[0], rounding, buffers)
    if not isinstance(node, Op):
        return False
    if node.name == "where":
        return all(is_rounded(a, rounding, buffers) for a in node.args[1:])
    keeps = node.name in _KEEPS_ROUNDING and all(is_rounded(a, rounding, buffers) for a in node.args)
    return node.name == rounding or keeps


def _as_index(node: Node) -> sympy.Expr | None:
    """The exact index expression of an int64 node, if it is one. No axis or size overflows int64."""
    if node.dtype != torch.int64:
        return None
    if isinstance(node, Index):
        return node.expr
    return sympy.Integer(node.value) if isinstance(node, Const) else None


_INDEX_ARITHMETIC: dict[str, Callable[..., sympy.Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


def _at_most(difference: sympy.Expr, limit: int, ranges: divisions.Ranges) -> bool:
    """Whether `difference` ≤ limit at every point."""
    top = divisions.highest(difference, ranges)
    return top is not None and sizes.is_nonnegative(sizes.expand(limit - top))


def _less(difference: sympy.Expr, ranges: divisions.Ranges) -> bool | None:
    """Whether `difference` < 0; None if that varies between points or is unknown."""
    if _at_most(difference, -1, ranges):
        return True
    return False if _at_most(-difference, 0, ranges) else None


def _equal(difference: sympy.Expr, ranges: divisions.Ranges) -> bool | None:
    if divisions.simplify(difference, ranges) == 0:
        return True
    return False if _at_most(difference, -1, ranges) or _at_most(-difference, -1, ranges) else None


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


_COMPARISONS: dict[str, Callable[[sympy.Expr, divisions.Ranges], bool | None]] = {
    "lt": _less,
    "le": lambda difference, ranges: _less(difference - 1, ranges),
    "gt": lambda difference, ranges: _less(-difference, ranges),
    "ge": lambda difference, ranges: _less(-difference - 1, ranges),
    "eq": _equal,
    "ne": lambda difference, ranges: _negated(_equal(difference, ranges)),
}
