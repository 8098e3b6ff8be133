"""Scores and masks of attention as expressions over batch, head, query and key. Kernels emit them and use their bounds.

    causal              mask   n <= m,  n <= m + Mkv - Mq
    window              mask   n >= m + Mkv - Mq - before  and  n <= m + Mkv - Mq + after
    bias added          score  s + bias[b, h, m, n]
    bias of booleans    score  s + (bias[b, h, m, n] ? 0 : -inf),  bias[b, h, m, n] ? s : fill
    scores of a graph   cap · tanh(s / cap), s + slope[h] · (n - m), ...; what replaces a score by -inf becomes the mask
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from polytile.attention.problem import AXES, AttentionProblem, Bias, Causal, symbol
from polytile.ir import expr, sizes
from polytile.ir.attention import SCORES
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Accumulator, Const, Index, Node, Op
from polytile.ir.loop import Axis, Loop, Store
from polytile.schedule.canonical import LoopKernel

BATCH, HEAD, QUERY, KEY = PLACE = tuple(sizes.axis(f"p{k}") for k in range(4))
"""The axes of scores; the head is one of queries."""
SCORE = expr.make(Accumulator, dtype=torch.float32)
"""The scaled product of a query and a key."""


@dataclass(frozen=True)
class Scores:
    """`score` is an expression of SCORE, or None if it is unchanged. `mask` is false where a query does not attend to a key, or
    None. `slope` is the derivative of the score by SCORE in a backward pass, or None if it is 1."""

    problem: AttentionProblem
    score: Node | None
    mask: Node | None
    slope: Node | None = None

    def mapped(self, change: Callable[[Node], Node]) -> Scores:
        """With `change` applied to each expression."""
        parts = (None if part is None else change(part) for part in (self.score, self.mask, self.slope))
        return Scores(self.problem, *parts)

    @cached_property
    def kernel(self) -> LoopKernel:
        """Both as a loop, for emitters that take loops; its stores stand for the values."""
        problem, lengths = self.problem, map(symbol, ("B", "Hq", "Mq", "Mkv"))
        axes = tuple(Axis(axis, size) for axis, size in zip(PLACE, lengths, strict=True))
        values = [SCORE if self.score is None else self.score]
        values += [value for value in (self.mask, self.slope) if value is not None]
        loop = Loop("scores", axes, (), tuple(Store(SCORES, KEY, value) for value in values))
        return LoopKernel(loop, problem.tensors, problem.symbols)


def scores_of(problem: AttentionProblem) -> Scores:
    """The score and mask of a problem."""
    if problem.scores is not None:
        value, *slopes = (store.value for store in problem.scores.loop.stores)
        return Scores(problem, *_parted(value), *slopes)
    score, mask = None, _causal(problem.causal) if problem.window is None else _window(*problem.window)
    if problem.bias is not None and problem.bias.dtype != torch.bool:
        score = expr.op("add", torch.float32, SCORE, _added(problem.bias))
    elif problem.bias is not None:
        seen, fill = expr.load(torch.bool, "bias", _place("bias")), expr.const(problem.bias.fill, torch.float32)
        if problem.bias.fill == -math.inf and problem.empty_is_0:  # scaled_dot_product_attention adds -inf: NaN stays NaN
            added = expr.op("where", torch.float32, seen, expr.const(0.0, torch.float32), fill)
            score = expr.op("add", torch.float32, SCORE, added)
        else:
            score = expr.op("where", torch.float32, seen, SCORE, fill)
    return Scores(problem, score, mask)


def narrowed(scores: Scores) -> Scores:
    """Compare positions in 32 bits where these suffice: for sums of positions and lengths with coefficients of ±1."""

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children)
        if isinstance(node, Op) and node.name in _COMPARISONS and all(map(_is_short, node.args)):
            return expr.op(node.name, node.dtype, *(expr.index_value(_index(each), torch.int32) for each in node.args))
        return node

    return scores.mapped(lambda part: expr.rewrite((part,), rule)[0])


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_LENGTHS = frozenset(map(symbol, ("B", "Hq", "Hkv", "Mq", "Mkv")))


def _index(node: Node) -> sympy.Expr:
    assert isinstance(node, Index | Const)
    return node.expr if isinstance(node, Index) else sympy.Integer(int(node.value))


def _is_short(node: Node) -> bool:
    if node.dtype != torch.int64 or not isinstance(node, Index | Const):
        return False
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(_index(node))]
    known = _LENGTHS | set(PLACE)
    return all(abs(factor) < 1 << 28 if rest == 1 else abs(factor) == 1 and rest in known for factor, rest in terms)


def _parted(value: Node) -> tuple[Node | None, Node | None]:
    """Split where(mask, score, -inf) into the score, or None if it is the product itself, and the mask, or None."""
    mask: Node | None = None
    while (peeled := _peeled(value)) is not None:
        condition, value = peeled
        mask = condition if mask is None else expr.op("logical_and", torch.bool, mask, condition)
    return None if value is SCORE else value, mask


def _peeled(value: Node) -> tuple[Node, Node] | None:
    """The condition and the value of a node that is -inf where the condition is false.

    This includes a score plus a -inf mask, as in causal masks: a masked key is ignored, whatever its score is.
    """
    match value:
        case Op(name="where", args=(condition, kept, Const(value=fill))) if fill == -math.inf:
            return condition, kept
        case Op(name="where", args=(condition, Const(value=fill), kept)) if fill == -math.inf:
            return expr.op("logical_not", torch.bool, condition), kept
        case Op(name="add", args=(left, right)):
            for one, other in ((left, right), (right, left)):
                inner = _peeled(other)
                if inner is not None and not _has_score(other):
                    condition, kept = inner
                    nothing = isinstance(kept, Const) and kept.value == 0
                    return condition, one if nothing else expr.op("add", value.dtype, one, kept)
        case Op(name="cast" | "round_bf16" | "round_f16" as name, args=(inner_value,)):
            inner = _peeled(inner_value)
            if inner is not None and not _has_score(value):
                condition, kept = inner
                return condition, kept if isinstance(kept, Const) else expr.op(name, value.dtype, kept)
    return None


def _has_score(value: Node) -> bool:
    return any(node is SCORE for node in expr.walk(value))


def _causal(causal: Causal) -> Node | None:
    if causal is Causal.NO:
        return None
    last = QUERY if causal is Causal.TOP_LEFT else QUERY + symbol("Mkv") - symbol("Mq")
    return expr.op("le", torch.bool, expr.index_value(KEY, torch.int32), expr.index_value(last, torch.int32))


def _window(before: int, after: int) -> Node | None:
    """The mask of keys from `before` to `after` the bottom-right diagonal; -1 means unbounded."""
    mask: Node | None = None
    middle = QUERY + symbol("Mkv") - symbol("Mq")
    for name, distance, end in (("ge", before, middle - before), ("le", after, middle + after)):
        if distance >= 0:
            side = expr.op(name, torch.bool, expr.index_value(KEY, torch.int32), expr.index_value(end, torch.int32))
            mask = side if mask is None else expr.op("logical_and", torch.bool, mask, side)
    return mask


def _added(bias: Bias) -> Node:
    stored = compute_dtype(bias.dtype)
    value = expr.load(stored, "bias", _place("bias"))
    return value if stored == torch.float32 else expr.op("cast", torch.float32, value)


def _place(name: str) -> sympy.Expr:
    return sum((axis * symbol(f"{name}_stride_{letter}") for axis, letter in zip(PLACE, AXES[name], strict=True)), sizes.ZERO)
