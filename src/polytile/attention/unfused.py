"""Attention with its scores in memory: a product, a row softmax, and a product.

    scores[i, m, n] = Σ_d q[i, m, d]·k[i, n, d]
    shares[b, h, m, n] = softmax_n(mask(scale·scores[b, h, m, n]))
    out[i, m, d] = Σ_n shares[i, m, n]·v[i, n, d]

i runs over the key heads of all batches. The query heads that share a key head are rows of it: row h·Mq + m of i is row m of head
h. Shares have the operands' dtype. So do scores on a GPU, as in eager. On a CPU they are float32, as in ATen's kernel: with
scores rounded to bfloat16, the result is three times as far from the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from polytile.attention.problem import AttentionProblem, Causal, symbol
from polytile.attention.scores import PLACE, SCORE
from polytile.ir import expr, sizes
from polytile.ir.attention import EMPTY
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.template import Template

ITEMS, ROWS = symbol("I"), symbol("R")
"""Number of key heads over all batches, and of query rows per key head."""
ORIGIN = ("attention_scores",)


@dataclass(frozen=True)
class Unfused:
    """The three operations in order, and their buffers: q, k, v, scores, bias, shares and out."""

    first: Template
    softmax: Loop
    last: Template
    buffers: dict[str, Buffer]


def unfused_attention(problem: AttentionProblem, device: torch.device) -> Unfused:
    """The operations, over the problem's sizes, ITEMS and ROWS, for operands with stride 1 along d. The other strides are symbols
    such as "q_stride_i" and "q_stride_r"."""
    keys, size, length = symbol("Mkv"), symbol("D"), symbol("Dv")
    shapes = {"q": (ITEMS, ROWS, size), "k": (ITEMS, keys, size), "v": (ITEMS, keys, length)}
    buffers = {}
    for name, shape in shapes.items():
        strides = symbol(f"{name}_stride_i"), symbol(f"{name}_stride_r"), sizes.ONE
        buffers[name] = Buffer(name, problem.dtype, shape, strides, device, "input")
    for name, shape in {"scores": (ITEMS, ROWS, keys), "shares": (ITEMS, ROWS, keys), "out": (ITEMS, ROWS, length)}.items():
        wide = name == "scores" and device.type == "cpu"
        dtype = compute_dtype(problem.dtype) if wide else problem.dtype
        buffers[name] = Buffer(name, dtype, shape, sizes.contiguous_strides(shape), device)
    if problem.bias is not None:
        extents = tuple(symbol(name) for name in ("B", "Hq", "Mq", "Mkv"))
        along = tuple(_bias_stride(problem, axis) for axis in "bhmn")
        buffers["bias"] = Buffer("bias", problem.bias.dtype, extents, along, device, "input")
    for tensor in problem.scores.tensors if problem.scores is not None else ():  # of which an expression says where it is read
        buffers[tensor.name] = Buffer(tensor.name, tensor.dtype, (keys,), (sizes.ONE,), device, "input")
    k = buffers["k"]
    turned = View("k", k.dtype, (k.sizes[0], k.sizes[2], k.sizes[1]), (k.strides[0], k.strides[2], k.strides[1]))
    return Unfused(
        Template("first", "mm", whole(buffers["q"]), turned, whole(buffers["scores"]), origins=ORIGIN),
        _softmax(problem, buffers),
        Template("last", "mm", whole(buffers["shares"]), whole(buffers["v"]), whole(buffers["out"]), origins=ORIGIN),
        buffers,
    )


def _bias_stride(problem: AttentionProblem, axis: str) -> sympy.Expr:
    assert problem.bias is not None
    if axis not in problem.bias.varies:
        return sizes.ZERO
    return sizes.ONE if axis == "n" and problem.bias.along_rows else symbol(f"bias_stride_{axis}")


def _softmax(problem: AttentionProblem, buffers: dict[str, Buffer]) -> Loop:
    axes = tuple(Axis(sizes.axis(f"p{k}"), symbol(name)) for k, name in enumerate(("B", "Hq", "Mq")))
    along = Axis(sizes.axis("r0"), symbol("Mkv"))
    b, h, m, n = (axis.symbol for axis in (*axes, along))
    place = ((b * symbol("Hq") + h) * symbol("Mq") + m) * symbol("Mkv") + n
    place = sizes.expand(place)
    dtype = compute_dtype(problem.dtype)
    scores = _masked(problem, buffers, dtype, (b, h, m, n), place)
    largest = expr.reduce("max", dtype, scores)
    powers = expr.op("exp", dtype, expr.op("sub", dtype, scores, largest))
    shares: Node = expr.op("div", dtype, powers, expr.reduce("sum", dtype, powers))
    if problem.empty_is_0:
        empty = expr.op("eq", torch.bool, largest, expr.const(EMPTY, dtype))
        shares = expr.op("where", dtype, empty, expr.const(0.0, dtype), shares)
    return Loop("softmax", axes, (along,), (Store("shares", place, shares),), ORIGIN)


def _masked(
    problem: AttentionProblem, buffers: dict[str, Buffer], dtype: torch.dtype, point: tuple[sympy.Expr, ...], place: sympy.Expr
) -> Node:
    """The score of a point after scale, bias and masks, or as the problem's own expression has it."""
    score: Node = expr.load(dtype, "scores", place)
    if problem.scale is None:
        length = expr.op("cast", dtype, expr.index_value(symbol("D")))
        score = expr.op("mul", dtype, score, expr.op("rsqrt", dtype, length))
    else:
        score = expr.op("mul", dtype, score, expr.const(problem.scale, dtype))
    if problem.scores is not None:
        return _expressed(problem.scores.loop.stores[0].value, score, point)
    if problem.bias is not None:
        boolean = problem.bias.dtype == torch.bool
        bias: Node = expr.load(torch.bool if boolean else compute_dtype(problem.bias.dtype), "bias", buffers["bias"].index(point))
        if boolean and problem.empty_is_0 and problem.bias.fill == EMPTY:  # a NaN score stays NaN
            zero, low = expr.const(0.0, dtype), expr.const(EMPTY, dtype)
            score = expr.op("add", dtype, score, expr.op("where", dtype, bias, zero, low))
        elif boolean:
            score = expr.op("where", dtype, bias, score, expr.const(problem.bias.fill, dtype))
        else:
            score = expr.op("add", dtype, score, bias)
    if problem.causal is not Causal.NO:
        shift = symbol("Mkv") - symbol("Mq") if problem.causal is Causal.BOTTOM_RIGHT else sizes.ZERO
        seen = expr.op("le", torch.bool, expr.index_value(point[3]), expr.index_value(point[2] + shift))
        score = expr.op("where", dtype, seen, score, expr.const(EMPTY, dtype))
    return score


def _expressed(value: Node, product: Node, point: tuple[sympy.Expr, ...]) -> Node:
    """The score that `value` makes of a scaled product at this point."""
    (here,) = expr.substitute((value,), dict(zip(PLACE, point, strict=True)))
    return expr.rewrite((here,), lambda node, children: product if node is SCORE else expr.rebuild(node, children))[0]
