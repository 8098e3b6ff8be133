"""A training step saves a value for its backward pass once, however often the traced graph copies it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

ROWS = 23
OPTIONS = {"stall": "compile", "tune": "off"}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With weights that have other uses, or none would be saved: see frontend/attention/joint.py."""
    weights = F.dropout(F.softmax(q @ k.transpose(1, 2), -1), 0.0, training=True)
    return weights @ v + weights.sum()


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=OPTIONS)


def test_dropout_of_nothing_saves_nothing() -> None:
    saved = dict[int, Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    given = [torch.randn(2, ROWS, 5, requires_grad=True) for _ in range(3)]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = compiled(attend)(*given)
    assert sum(tensor.numel() == 2 * ROWS * ROWS for tensor in saved.values()) == 1
    direction = torch.randn_like(out)
    wanted = torch.autograd.grad(attend(*given), given, direction)
    torch.testing.assert_close(torch.autograd.grad(out, given, direction), wanted, rtol=1e-5, atol=1e-5)


def copied_result(x: Tensor) -> Tensor:
    return F.dropout(torch.exp(x), 0.0, training=True)


def test_a_result_is_copied() -> None:
    """A caller overwrites it between the two passes: the gradient is that of the values before."""
    x = torch.rand(ROWS, requires_grad=True)
    wanted = torch.autograd.grad(copied_result(x).sum(), x)
    out = compiled(copied_result)(x)
    total = out.sum()
    with torch.no_grad():
        out.detach().zero_()
    torch.testing.assert_close(torch.autograd.grad(total, x), wanted)
