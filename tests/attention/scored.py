"""Problems whose scores are expressions, with what they load."""

from __future__ import annotations

import math

import sympy
import torch

from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.scores import BATCH, HEAD, KEY, PLACE, QUERY, SCORE
from polytile.ir import expr, sizes
from polytile.ir.attention import SCORES, SLOPES
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.schedule.canonical import LoopKernel, TensorArg

STRIDE = sympy.Symbol("n0", integer=True, positive=True)
"""Elements between rows of the table that `soft_capped` looks up."""
LENGTHS, TABLE = TensorArg("a0", torch.int64, "in"), TensorArg("a1", torch.float32, "in")


def at(e: sympy.Expr) -> Node:
    return expr.index_value(e, torch.int64)


def compared(name: str, one: Node, other: Node) -> Node:
    return expr.op(name, torch.bool, one, other)


def both(*masks: Node) -> Node:
    return expr.op("logical_and", torch.bool, *masks)


def number(op: str, *args: Node) -> Node:
    return expr.op(op, torch.float32, *args)


def hidden(mask: Node, score: Node = SCORE) -> Node:
    return number("where", mask, score, expr.const(-math.inf, torch.float32))


def window() -> Node:
    """The 40 keys up to a query, and the first 5."""
    near = both(compared("le", at(KEY), at(QUERY)), compared("gt", at(KEY), at(QUERY - 40)))
    return hidden(expr.op("logical_or", torch.bool, near, compared("lt", at(KEY), at(sympy.Integer(5)))))


def padded() -> Node:
    """As many keys as a sequence has."""
    return hidden(compared("lt", at(KEY), expr.load(torch.int64, "a0", BATCH)))


def soft_capped() -> Node:
    """2 tanh(score / 2) plus a number from a table of relative positions for each head, where padding and a triangle allow."""
    two = expr.const(2.0, torch.float32)
    capped = number("mul", two, number("tanh", number("div", SCORE, two)))
    place = HEAD * STRIDE + KEY - QUERY + symbol("Mq")
    mask = both(compared("lt", at(KEY), expr.load(torch.int64, "a0", BATCH)), compared("le", at(KEY), at(QUERY + 30)))
    return hidden(mask, number("add", capped, expr.load(torch.float32, "a1", place)))


def relative() -> Node:
    """Scores without a mask."""
    slope = number("mul", expr.load(torch.float32, "a1", HEAD), expr.const(0.01, torch.float32))
    slope = number("mul", slope, expr.index_value(KEY - QUERY, torch.float32))
    return number("add", SCORE, slope)


def soft_capped_slope() -> Node:
    """1 - tanh²(score / 2)."""
    capped = number("tanh", number("div", SCORE, expr.const(2.0, torch.float32)))
    return number("sub", expr.const(1.0, torch.float32), number("mul", capped, capped))


def scored(dtype: torch.dtype, value: Node, slope: Node | None = None, **more: bool) -> AttentionProblem:
    """The problem of these scores, without a scale of its own."""
    lengths = tuple(map(symbol, ("B", "Hq", "Mq", "Mkv")))
    axes = tuple(Axis(axis, size) for axis, size in zip(PLACE, lengths, strict=True))
    place = sum((axis * step for axis, step in zip(PLACE, sizes.contiguous_strides(lengths), strict=True)), sizes.ZERO)
    stores = (Store(SCORES, place, value), *((Store(SLOPES, place, slope),) if slope is not None else ()))
    loaded = {load.buffer for load in expr.loads(value)}
    tensors = tuple(tensor for tensor in (LENGTHS, TABLE) if tensor.name in loaded)
    own = (STRIDE,) if STRIDE in expr.free_symbols(value) else ()
    kernel = LoopKernel(Loop(SCORES, axes, (), stores), tensors, own)
    return AttentionProblem(dtype, None, scores=kernel, **more)


VALUES = {"window": window, "padded": padded, "relative": relative, "soft capped": soft_capped}
SLOPES_OF = {"soft capped": soft_capped_slope}
"""The derivatives by the product of those above for which these are not 1."""
