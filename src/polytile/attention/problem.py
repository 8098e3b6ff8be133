"""Attention in canonical form: the problem that equal attentions share.

    out[b, h, m, :] = Σ_n softmax_n(score(b, h, m, n))·v[b, h // group, n, :]
    score(b, h, m, n) = mask(scale·Σ_d q[b, h, m, d]·k[b, h // group, n, d])

With `scores`, the score is instead that expression of the scaled product, of b, h, m and n, and of the tensors that it loads.
group is Hq // Hkv. Scores and accumulators are float32 for 16-bit operands.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from polytile.attention.layout import Extents, Layout
from polytile.ir.dropout import Dropout
from polytile.ir.printer import type_name
from polytile.problem import digest
from polytile.runtime import regime
from polytile.schedule.canonical import LoopKernel, TensorArg

SIZES = ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Dv")
"""Batch, query heads, heads of k and v (a divisor of Hq), query rows, key rows, head size of q and k, and head size of v and
out."""

DECIDING = {
    **dict.fromkeys(("B", "Mq", "Mkv", "Tq", "Tk"), regime.BUCKET),
    **dict.fromkeys(("Hq", "Hkv", "D", "Dv", "Page"), regime.EXACT),
}  # fmt: skip
"""The integers that a choice depends on, and whether by bucket or exactly. For strides, only divisibility by 16 matters."""

AXES = {"q": "bhmd", "k": "bhnd", "v": "bhnd", "bias": "bhmn", "out": "bhmd", "saved": "bhm", "grad": "bhmd",
        "grad_lse": "bhm", "dq": "bhmd", "dk": "bhnd", "dv": "bhnd", "dscores": "bhmn"}  # fmt: skip
"""The dimensions of each tensor. `lse`, a dense (B, Hq, Mq), and `random` have none, so no strides are passed for them."""
EXTENTS = {"q": ("B", "Hq", "Mq", "D"), "k": ("B", "Hkv", "Mkv", "D"), "v": ("B", "Hkv", "Mkv", "Dv"),
           "bias": ("B", "Hq", "Mq", "Mkv"), "out": ("B", "Hq", "Mq", "Dv"), "lse": ("B", "Hq", "Mq"),
           "saved": ("B", "Hq", "Mq"), "grad": ("B", "Hq", "Mq", "Dv"), "grad_lse": ("B", "Hq", "Mq"),
           "dq": ("B", "Hq", "Mq", "D"), "dk": ("B", "Hkv", "Mkv", "D"), "dv": ("B", "Hkv", "Mkv", "Dv"),
           "dscores": ("B", "Hq", "Mq", "Mkv")}  # fmt: skip
"""The sizes of each tensor."""


class Causal(enum.Enum):
    """Which keys a query row may attend to. The two masks are the same if there are as many rows as keys."""

    NO = ""
    TOP_LEFT = "top left"
    """n ≤ m"""
    BOTTOM_RIGHT = "bottom right"
    """n - Mkv ≤ m - Mq"""


@dataclass(frozen=True)
class Bias:
    """A tensor (B, Hq, Mq, Mkv) that modifies the scores. Its strides are 0 along the axes of "bhmn" that are not in `varies`.

    A floating-point tensor is added. Where a boolean one is false, `fill` replaces the score. In scaled_dot_product_attention
    (`empty_is_0`) a fill of -inf is added instead, as in eager, so that a NaN score stays NaN. `along_rows`: the stride along n
    is known to be 1.
    """

    dtype: torch.dtype
    varies: str
    along_rows: bool = True
    fill: float = -float("inf")


@dataclass(frozen=True)
class AttentionProblem:
    """What is common to all attentions that share kernels.

    The forward tensors are q, k, v, then `bias` or the tensors that `scores` loads ("a0", "a1", …), out, and `lse` if it is
    wanted: the natural log Σ_n exp(score) in float32. The `backward` tensors are q, k, v, bias, out, `saved` (the forward pass's
    lse), grad (the gradient of out), grad_lse if lse has a gradient, those of `scores`, and the outputs dq, dk, dv and, if
    it is wanted, dscores. The
    integers are SIZES, then the strides of each tensor but lse ("q_stride_b" and so on, as in AXES), then those of `scores`
    ("n0", …). Any size may be 0, and so may any stride of an input.

    Attributes
    ----------
    dtype
        Dtype of q, k, v and out.
    scale
        Factor of the products; None means D ** -0.5.
    empty_is_0
        Whether a row whose scores are all -inf gives 0, as in scaled_dot_product_attention, instead of NaN, as in a softmax.
    dense
        For each of q, k and v, whether its stride along d is known to be 1.
    tf32
        Whether float32 operands may be rounded to TF32, as PyTorch's switch allowed when the graph was compiled.
    lse
        Whether the log-sum-exp is wanted; in a backward problem, whether it has a gradient.
    changes
        Whether a backward problem also writes `dscores`, the gradient of the scores (B, Hq, Mq, Mkv).
    scores
        The scores as a loop over (B, Hq, Mq, Mkv), in place of bias and causal, and in a backward problem their slopes (see
        ir.attention.Attention).
    window
        How many keys before and after the bottom-right diagonal a row attends to, in addition to the diagonal; -1 means
        unlimited.
    layout
        The memory layout of sequences of varying length (attention/layout.py). Its index tensors follow the bias, and lse is then
        a
        dense (Hq, Tq).
    dropout
        How softmax weights are dropped (ir/dropout.py). `random`, int64 [2], follows the bias: the seed and the offset.
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
    changes: bool = False
    dropout: Dropout | None = None

    @property
    def family(self) -> str:
        return "attention_backward" if self.backward else "attention"

    @cached_property
    def tensors(self) -> tuple[TensorArg, ...]:
        """Every tensor argument, in order."""
        bias: tuple[TensorArg, ...] = (TensorArg("bias", self.bias.dtype, "in"),) if self.bias is not None else ()
        read = (TensorArg(name, self.dtype, "in") for name in "qkv")
        bias += (TensorArg("random", torch.int64, "in"),) if self.dropout is not None else ()
        bias += (
            tuple(TensorArg(name, dtype, "in") for name, dtype in self.layout.indices)
            if self.layout is not None
            else ()
        )
        loaded = self.scores.tensors if self.scores is not None else ()
        if self.backward:
            kept = [("out", self.dtype), ("saved", torch.float32), ("grad", self.dtype)]
            written = (TensorArg(name, self.dtype, "out") for name in ("dq", "dk", "dv", *(["dscores"] if self.changes else [])))
            kept += [("grad_lse", torch.float32)] if self.lse else []
            return (*read, *bias, *(TensorArg(name, dtype, "in") for name, dtype in kept), *loaded, *written)
        lse = (TensorArg("lse", torch.float32, "out"),) if self.lse else ()
        return (*read, *bias, *loaded, TensorArg("out", self.dtype, "out"), *lse)

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        """Every integer argument, in order."""
        more = self.layout.sizes if self.layout is not None else ()
        strides = [f"{tensor.name}_stride_{axis}" for tensor in self.tensors for axis in self.axes(tensor.name)]
        return (*SIZES, *more, *strides, *[each.name for each in self._own_symbols])

    @property
    def computes_scores(self) -> bool:
        """Whether scores, masks or weights need more than a bias and a causal mask."""
        return self.scores is not None or self.window is not None or self.dropout is not None

    def axes(self, name: str) -> str:
        """The dimensions (letters) along which a tensor's strides are passed."""
        return self._dimensions(name)[0] if name != "lse" else ""

    def extents(self, name: str) -> tuple[str, ...]:
        """The names of a tensor's sizes; empty for tensors that only the scores load."""
        return self._dimensions(name)[1]

    def _dimensions(self, name: str) -> Extents:
        plain = ("bhm" if name == "lse" else AXES.get(name, "")), EXTENTS.get(name, ())
        return self.layout.extents(name, plain) if self.layout is not None else plain

    @property
    def _own_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The integers of the scores that are not sizes."""
        return () if self.scores is None else tuple(each for each in self.scores.symbols if each.name not in SIZES)

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The integer arguments as symbols of index expressions."""
        count = len(self.size_names) - len(self._own_symbols)
        return (*map(symbol, self.size_names[:count]), *self._own_symbols)

    @cached_property
    def text(self) -> str:
        """Everything that determines what is computed."""
        bias = f"{type_name(self.bias.dtype)} {self.bias}" if self.bias is not None else ""
        marks = f"{self.causal.value} | {bias} | {self.empty_is_0} | {self.lse} | {self.dense} | {self.tf32}"
        scores = f"\n{self.scores.text}" if self.scores is not None else ""
        marks += f" | window {self.window}" if self.window is not None else ""
        marks += f" | {self.layout}" if self.layout is not None else ""
        marks += " | changes" if self.changes else ""
        marks += f" | {self.dropout}" if self.dropout is not None else ""
        return f"{self.family} {type_name(self.dtype)} {self.scale!r} {marks}{scores}"

    @cached_property
    def digest(self) -> str:
        return digest(self.text)

    def dense_strides(self, size: Mapping[str, int]) -> dict[str, int]:
        """Row-major strides, 0 along axes on which a bias is broadcast."""
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
