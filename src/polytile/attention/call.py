"""From an attention of a program to its problem and the way it is called there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.ir.program import Attention, Buffer, View


@dataclass(frozen=True)
class AttentionSite:
    """What a call passes: buffers or views whose data starts at their first element, and size expressions, in argument order."""

    buffers: tuple[str | View, ...]
    sizes: tuple[sympy.Expr, ...]


def canonicalize(attention: Attention, buffers: Mapping[str, Buffer]) -> tuple[AttentionProblem, AttentionSite]:
    """The problem that `attention` is, and how to call its kernel here."""
    q, k, v, backward = attention.q, attention.k, attention.v, attention.gradients is not None
    passed = attention.views
    strided = [view for view in passed if backward or view is not attention.lse]
    on_gpu = buffers[q.buffer].device.type == "cuda"
    problem = AttentionProblem(
        dtype=q.dtype,
        scale=attention.scale,
        causal=Causal(attention.causal),
        bias=_bias(attention.bias, attention.fill) if attention.bias is not None else None,
        empty_is_0=attention.empty_is_0,
        lse=attention.lse is not None and not backward,
        dense=(q.strides[3] == 1, k.strides[3] == 1, v.strides[3] == 1),
        tf32=on_gpu and q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32",
        backward=backward,
    )
    sizes = (q.sizes[0], q.sizes[1], k.sizes[1], q.sizes[2], k.sizes[2], q.sizes[3], v.sizes[3])
    strides = (stride for view in strided for stride in view.strides)
    return problem, AttentionSite(tuple(_passed(view, buffers) for view in passed), (*sizes, *strides))


def _bias(view: View, fill: float) -> Bias:
    """Which axes a bias varies along, as far as its strides and sizes say before a call."""
    extents = zip("bhmn", view.sizes, view.strides, strict=True)
    varies = "".join(axis for axis, size, stride in extents if stride != 0 and size != 1)
    along_rows = "n" in varies and view.strides[3] == 1
    return Bias(view.dtype, varies, along_rows, fill if view.dtype == torch.bool else -float("inf"))


def _passed(view: View, buffers: Mapping[str, Buffer]) -> str | View:
    """The buffer itself where the view starts at its first element (strides are passed as integers), else the view."""
    return view.buffer if view.offset == 0 and view.dtype == buffers[view.buffer].dtype else view
