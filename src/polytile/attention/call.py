"""Maps an attention of a program to its problem and the arguments of the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from polytile.attention.layout import Layout
from polytile.attention.problem import AttentionProblem, Bias, Causal, symbol
from polytile.ir import expr
from polytile.ir.attention import SCORES, SLOPES, Attention, Sequences
from polytile.ir.buffer import Buffer, View
from polytile.ir.loop import Axis
from polytile.ir.sizes import contiguous_strides
from polytile.schedule import canonical
from polytile.schedule.canonical import LoopKernel


@dataclass(frozen=True)
class AttentionSite:
    """What a call passes: buffers (or views that start at a later element) and size expressions, in argument order."""

    buffers: tuple[str | View, ...]
    sizes: tuple[sympy.Expr, ...]


def canonicalize(attention: Attention, buffers: Mapping[str, Buffer]) -> tuple[AttentionProblem, AttentionSite]:
    """The problem of an attention, and how to call its kernel."""
    q, k, v, backward = attention.q, attention.k, attention.v, attention.gradients is not None
    dense = (attention.random, None if backward else attention.lse)
    strided = [view for view in attention.views if not any(view is each for each in dense)]
    scores, captured, integers = _scores(attention, buffers)
    on_gpu = buffers[q.buffer].device.type == "cuda"
    problem = AttentionProblem(
        dtype=q.dtype,
        scale=attention.scale,
        causal=Causal(attention.causal),
        bias=_bias(attention.bias, attention.fill) if attention.bias is not None else None,
        empty_is_0=attention.empty_is_0,
        lse=(attention.lse if attention.gradients is None else attention.gradients.lse) is not None,
        dense=(q.strides[-1] == 1, k.strides[-1] == 1, v.strides[-1] == 1),
        tf32=on_gpu and q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32",
        backward=backward,
        scores=scores,
        window=attention.window,
        layout=_layout(attention.sequences),
        changes=attention.gradients is not None and attention.gradients.dscores is not None,
        dropout=attention.dropout,
    )
    strides = (stride for view in strided for stride in view.strides)
    read, written = ([view.passed(buffers) for view in views] for views in (attention.read, attention.written))
    return problem, AttentionSite((*read, *captured, *written), (*_sizes(attention, problem), *strides, *integers))


def _layout(sequences: Sequences | None) -> Layout | None:
    return None if sequences is None else Layout(**{name: view.dtype for name, view in sequences.named.items()})


def _sizes(attention: Attention, problem: AttentionProblem) -> tuple[sympy.Expr, ...]:
    """The values of the problem's sizes."""
    if problem.layout is None:
        return attention.extents
    known = {"Ends": attention.extents[0] + 1}
    views = {
        "q": attention.q,
        "k": attention.k,
        **(attention.sequences.named if attention.sequences is not None else {}),
    }
    for name, view in views.items():
        known = {**dict(zip(problem.extents(name), view.sizes, strict=True)), **known}
    return (*attention.extents, *[known[name] for name in problem.layout.sizes])


def _scores(
    attention: Attention, buffers: Mapping[str, Buffer]
) -> tuple[LoopKernel | None, tuple[str, ...], tuple[sympy.Expr, ...]]:
    """The scores under the problem's names, the buffers that they load, and the further integers that they need."""
    if attention.scores is None:
        return None, (), ()
    made = {name: _like_scores(name, attention, buffers) for name in (SCORES, SLOPES)}
    kernel, site = canonical.canonicalize(attention.scores, {**buffers, **made})
    names = dict(zip((axis.size for axis in kernel.loop.axes), map(symbol, ("B", "Hq", "Mq", "Mkv")), strict=True))
    known = {size: name for size, name in names.items() if size.is_Symbol}

    def renamed(e: sympy.Expr) -> sympy.Expr:
        return e.xreplace(known)

    loop = kernel.loop.map_roots(lambda roots: expr.map_indices(roots, renamed), renamed)
    axes = (Axis(axis.symbol, symbol(name)) for axis, name in zip(loop.axes, ("B", "Hq", "Mq", "Mkv"), strict=True))
    tensors = tuple(tensor for tensor in kernel.tensors if tensor.role == "in")
    own = [(each, size) for each, size in zip(kernel.symbols, site.sizes, strict=True) if each not in known]
    stores = tuple(replace(store, buffer=name) for store, name in zip(loop.stores, made, strict=False))
    scores = LoopKernel(replace(loop, axes=tuple(axes), stores=stores), tensors, tuple(each for each, _ in own))
    return scores, tuple(name for name in site.buffers if name not in made), tuple(size for _, size in own)


def _like_scores(name: str, attention: Attention, buffers: Mapping[str, Buffer]) -> Buffer:
    """A buffer of the shape of the scores."""
    batch, heads, _, rows, keys, _, _ = attention.extents
    shape = (batch, heads, rows, keys)
    return Buffer(name, torch.float32, shape, contiguous_strides(shape), buffers[attention.q.buffer].device)


def _bias(view: View, fill: float) -> Bias:
    """The problem's description of a bias: the axes along which it varies, as far as strides and sizes are known before a
    call."""
    extents = zip("bhmn", view.sizes, view.strides, strict=True)
    varies = "".join(axis for axis, size, stride in extents if stride != 0 and size != 1)
    along_rows = "n" in varies and view.strides[3] == 1
    return Bias(view.dtype, varies, along_rows, fill if view.dtype == torch.bool else -float("inf"))
