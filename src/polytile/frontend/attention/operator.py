"""The operator polytile::attention, which stands for attention in an ATen graph.

    attention(q, k, v, bias, scale, causal, fill, empty_is_0)

q is (batch, heads, m, d), k (batch, heads of k, n, d), v (batch, heads of k, n, dv), where the heads of k divide those of q; bias
is None or (batch, heads, m, n). Without a scale it is d ** -0.5. See ir.program.Attention for the rest.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.functional import scaled_dot_product_attention

from polytile.ir.attention import EMPTY, attend

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, float? scale, str causal, float fill, bool empty_is_0) -> Tensor"
)


def _new_result(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Memory for the result: row-major if the heads of q lie one after another, else with the heads of a row side by side."""
    (batch, heads, rows, _), length = q.shape, v.shape[3]
    if statically_known_true(q.stride(1) >= q.stride(2)):
        return q.new_empty((batch, heads, rows, length))
    return q.new_empty((batch, rows, heads, length)).transpose(1, 2)


@torch.library.register_fake("polytile::attention", lib=_library)
def _fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float | None, causal: str, fill: float, empty_is_0: bool,
) -> torch.Tensor:  # fmt: skip
    return _new_result(q, v)


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float | None, causal: str, fill: float, empty_is_0: bool,
) -> torch.Tensor:  # fmt: skip
    """The operator before a program is there: PyTorch's own call where that does the same."""
    square = causal == "top left" and bias is None
    if empty_is_0 and fill == EMPTY and (not causal or square):
        grouped = q.shape[1] != k.shape[1]
        out = scaled_dot_product_attention(q, k, v, bias, 0.0, bool(causal), scale=scale, enable_gqa=grouped)
    else:
        out, _ = attend(q, k, v, bias, scale=scale, causal=causal, fill=fill, empty_is_0=empty_is_0)
    result = _new_result(q, v)
    return out if out.stride() == result.stride() and out.dtype == q.dtype else result.copy_(out)


_library.impl("attention", _run, "CompositeExplicitAutograd")

ATTENTION = torch.ops.polytile.attention.default
