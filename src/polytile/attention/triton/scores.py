"""Scores and masks of attention as expressions over batch, head, query and key, which kernels emit and whose bounds they use.

    causal              mask   n <= m,  n <= m + Mkv - Mq
    bias added          score  s + bias[b, h, m, n]
    bias of booleans    score  s + (bias[b, h, m, n] ? 0 : -inf),  bias[b, h, m, n] ? s : fill
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from polytile.attention.problem import AXES, AttentionProblem, Bias, Causal, symbol
from polytile.ir import expr, sizes
from polytile.ir.expr import Accumulator, Node
from polytile.ir.program import Axis, Loop, Store, compute_dtype
from polytile.schedule.canonical import LoopKernel

BATCH, HEAD, QUERY, KEY = PLACE = tuple(sizes.axis(f"p{k}") for k in range(4))
"""The axes of scores; the head is one of queries."""
SCORE = expr.make(Accumulator, dtype=torch.float32)
"""The product of a query and a key, scaled."""


@dataclass(frozen=True)
class Scores:
    """`score`: what becomes of SCORE, or None where it stays; `mask`: bool, false where a query does not see a key, or None."""

    problem: AttentionProblem
    score: Node | None
    mask: Node | None

    @cached_property
    def kernel(self) -> LoopKernel:
        """Both as a loop, for what emits loops; its stores stand for the values."""
        problem, lengths = self.problem, map(symbol, ("B", "Hq", "Mq", "Mkv"))
        axes = tuple(Axis(axis, size) for axis, size in zip(PLACE, lengths, strict=True))
        values = [self.score if self.score is not None else SCORE, *([self.mask] if self.mask is not None else [])]
        loop = Loop("scores", axes, (), tuple(Store("out", KEY, value) for value in values))
        return LoopKernel(loop, problem.tensors, problem.symbols)


def scores_of(problem: AttentionProblem) -> Scores:
    """The scores and the mask of a problem."""
    score, mask = None, _causal(problem.causal)
    if problem.bias is not None and problem.bias.dtype != torch.bool:
        score = expr.op("add", torch.float32, SCORE, _added(problem.bias))
    elif problem.bias is not None:
        seen, fill = expr.load(torch.bool, "bias", _place("bias")), expr.const(problem.bias.fill, torch.float32)
        if problem.bias.fill == -math.inf and problem.empty_is_0:  # scaled_dot_product_attention adds it: NaN stays
            added = expr.op("where", torch.float32, seen, expr.const(0.0, torch.float32), fill)
            score = expr.op("add", torch.float32, SCORE, added)
        else:
            score = expr.op("where", torch.float32, seen, SCORE, fill)
    return Scores(problem, score, mask)


def _causal(causal: Causal) -> Node | None:
    if causal is Causal.NO:
        return None
    last = QUERY if causal is Causal.TOP_LEFT else QUERY + symbol("Mkv") - symbol("Mq")
    return expr.op("le", torch.bool, expr.index_value(KEY, torch.int32), expr.index_value(last, torch.int32))


def _added(bias: Bias) -> Node:
    stored = compute_dtype(bias.dtype)
    value = expr.load(stored, "bias", _place("bias"))
    return value if stored == torch.float32 else expr.op("cast", torch.float32, value)


def _place(name: str) -> sympy.Expr:
    return sum((axis * symbol(f"{name}_stride_{letter}") for axis, letter in zip(PLACE, AXES[name], strict=True)), sizes.ZERO)
