"""Attention in canonical form: the problem that equal attentions share.

    out[b, h, m, :] = Σ_n softmax_n(score(b, h, m, n))·v[b, h // group, n, :]
    score(b, h, m, n) = mask(scale·Σ_d q[b, h, m, d]·k[b, h // group, n, d])

or, where the problem has `scores`, that expression of the scaled product, of b, h, m and n and of what it loads. group is
Hq // Hkv. Scores and sums are float32 for 16-bit types, whatever the operands' type.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from polytile.attention.layout import Extents, Layout
from polytile.ir.printer import type_name
from polytile.problem import digest
from polytile.runtime import regime
from polytile.schedule.canonical import LoopKernel, TensorArg

SIZES = ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Dv")
"""Batch, heads of q, heads of k and v (a divisor of Hq), rows of q, rows of k and v, length of a row of q and k, of v and out."""

DECIDING = {
    **dict.fromkeys(("B", "Mq", "Mkv", "Tq", "Tk"), regime.BUCKET),
    **dict.fromkeys(("Hq", "Hkv", "D", "Dv", "Page"), regime.EXACT),
}  # fmt: skip
"""Integers on which the choice depends, and what matters of them. Of strides it matters whether 16 divides them."""

AXES = {"q": "bhmd", "k": "bhnd", "v": "bhnd", "bias": "bhmn", "out": "bhmd", "saved": "bhm", "grad": "bhmd", "dq": "bhmd",
        "dk": "bhnd", "dv": "bhnd"}  # fmt: skip
"""The dimensions of each tensor. `lse` is a dense (B, Hq, Mq), so that no strides are passed for it."""
EXTENTS = {"q": ("B", "Hq", "Mq", "D"), "k": ("B", "Hkv", "Mkv", "D"), "v": ("B", "Hkv", "Mkv", "Dv"),
           "bias": ("B", "Hq", "Mq", "Mkv"), "out": ("B", "Hq", "Mq", "Dv"), "lse": ("B", "Hq", "Mq"),
           "saved": ("B", "Hq", "Mq"), "grad": ("B", "Hq", "Mq", "Dv"), "dq": ("B", "Hq", "Mq", "D"),
           "dk": ("B", "Hkv", "Mkv", "D"), "dv": ("B", "Hkv", "Mkv", "Dv")}  # fmt: skip
"""The sizes of each tensor."""


class Causal(enum.Enum):
    """Which keys a row of q may see. With as many rows as keys both are the same."""

    NO = ""
    TOP_LEFT = "top left"
    """n ≤ m"""
    BOTTOM_RIGHT = "bottom right"
    """n - Mkv ≤ m - Mq"""


@dataclass(frozen=True)
class Bias:
    """A tensor (B, Hq, Mq, Mkv) that changes the scores; its strides are 0 along the axes that are not in `varies`, a subset of
    "bhmn". A tensor of a floating type is added. Where one of booleans is false, `fill` replaces the score, whatever that is; in
    scaled_dot_product_attention (`empty_is_0`) a fill of -inf is added, as eager does, so that a score of NaN stays.
    `along_rows`: it is known to have stride 1 along n."""

    dtype: torch.dtype
    varies: str
    along_rows: bool = True
    fill: float = -float("inf")


@dataclass(frozen=True)
class AttentionProblem:
    """What is the same for all attentions that share kernels.

    Its tensors are q, k, v, `bias` where there is one or what `scores` load ("a0", "a1", ...), then out, then `lse` where it
    is wanted: log Σ_n exp(score), natural, float32. Of the `backward` problem they are q, k, v, bias, out, `saved` (lse as the
    attention left it), grad (the gradient of out), then the gradients dq, dk and dv, which it writes. Its integers are SIZES,
    then the strides of each tensor but lse, "q_stride_b" and so on as in AXES, then those of `scores` ("n0", ...). Any size
    may be 0, and any stride of what is read.

    dtype       of q, k, v and out
    scale       factor of the products; None: D ** -0.5
    empty_is_0  a row of q all of whose scores are -inf gives 0, as in scaled_dot_product_attention; else NaN, as a softmax does
    dense       for q, k and v whether they are known to have stride 1 along d
    tf32        float32 operands may be rounded to TF32, as PyTorch's switch allowed when the graph was compiled
    scores      the scores as a loop over (B, Hq, Mq, Mkv), in place of bias and causal: see ir.program.Attention
    window      how many keys before and after the diagonal from the bottom right a row sees, itself besides; -1 for all of them
    layout      where sequences lie that have lengths of their own (attention/layout.py); its tensors follow the bias. Then lse is
                a dense (Hq, Tq)
    """

    dtype: torch.dtype
    scale: float | None
    causal: Causal = Causal.NO
    bias: Bias | None = None
    empty_is_0: bool = True
    lse: bool = False
    dense: tuple[bool, bool, bool] = (True, True, True)
    tf32: bool = False
    backward: bool = False
    scores: LoopKernel | None = None
    window: tuple[int, int] | None = None
    layout: Layout | None = None

    @property
    def family(self) -> str:
        return "attention_backward" if self.backward else "attention"

    @cached_property
    def tensors(self) -> tuple[TensorArg, ...]:
        """Every tensor argument, in order."""
        bias: tuple[TensorArg, ...] = (TensorArg("bias", self.bias.dtype, "in"),) if self.bias is not None else ()
        lse = (TensorArg("lse", torch.float32, "out"),) if self.lse else ()
        read = (TensorArg(name, self.dtype, "in") for name in "qkv")
        bias += (
            tuple(TensorArg(name, dtype, "in") for name, dtype in self.layout.indices)
            if self.layout is not None
            else ()
        )
        bias += self.scores.tensors if self.scores is not None else ()
        if self.backward:
            kept = (("out", self.dtype), ("saved", torch.float32), ("grad", self.dtype))
            written = (TensorArg(name, self.dtype, "out") for name in ("dq", "dk", "dv"))
            return (*read, *bias, *(TensorArg(name, dtype, "in") for name, dtype in kept), *written)
        return (*read, *bias, TensorArg("out", self.dtype, "out"), *lse)

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        """Every integer argument, in order."""
        more = self.layout.sizes if self.layout is not None else ()
        strides = [f"{tensor.name}_stride_{axis}" for tensor in self.tensors for axis in self.axes(tensor.name)]
        return (*SIZES, *more, *strides, *[each.name for each in self._own_symbols])

    @property
    def computes_scores(self) -> bool:
        """Whether scores or masks are expressions beyond a bias and a causal mask."""
        return self.scores is not None or self.window is not None

    def axes(self, name: str) -> str:
        """The letters of the dimensions along which strides of a tensor are passed."""
        return self._dimensions(name)[0] if name != "lse" else ""

    def extents(self, name: str) -> tuple[str, ...]:
        """The names of a tensor's sizes; none for what only scores load."""
        return self._dimensions(name)[1]

    def _dimensions(self, name: str) -> Extents:
        plain = ("bhm" if name == "lse" else AXES.get(name, "")), EXTENTS.get(name, ())
        return self.layout.extents(name, plain) if self.layout is not None else plain

    @property
    def _own_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The integers that the scores have besides the sizes."""
        return () if self.scores is None else tuple(each for each in self.scores.symbols if each.name not in SIZES)

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The integer arguments as symbols of index expressions."""
        count = len(self.size_names) - len(self._own_symbols)
        return (*map(symbol, self.size_names[:count]), *self._own_symbols)

    @cached_property
    def text(self) -> str:
        """Everything that decides what is computed."""
        bias = f"{type_name(self.bias.dtype)} {self.bias}" if self.bias is not None else ""
        marks = f"{self.causal.value} | {bias} | {self.empty_is_0} | {self.lse} | {self.dense} | {self.tf32}"
        scores = f"\n{self.scores.text}" if self.scores is not None else ""
        marks += f" | window {self.window}" if self.window is not None else ""
        marks += f" | {self.layout}" if self.layout is not None else ""
        return f"{self.family} {type_name(self.dtype)} {self.scale!r} {marks}{scores}"

    @cached_property
    def digest(self) -> str:
        return digest(self.text)

    def dense_strides(self, size: Mapping[str, int]) -> dict[str, int]:
        """The strides of row-major tensors, 0 along the axes along which a bias does not vary."""
        strides: dict[str, int] = {}
        size = self.layout.completed(size) if self.layout is not None else size
        for tensor in self.tensors:
            axes = self.axes(tensor.name)
            varies = self.bias.varies if tensor.name == "bias" and self.bias is not None else axes
            step = 1
            for axis, name in reversed(list(zip(axes, self.extents(tensor.name) if axes else (), strict=True))):
                extent = size[name]
                strides[f"{tensor.name}_stride_{axis}"] = step if axis in varies else 0
                step *= max(1, extent) if axis in varies else 1
        return strides


def symbol(name: str) -> sympy.Symbol:
    """The integer argument `name` in index expressions."""
    return sympy.Symbol(name, integer=True, positive=True)
