"""The library's kernels for the derivative of attention as candidates, each called by its own operator.

Their operators take what the forward ones of the same kind leave. Any attention's result and log-sum-exp do, as they are the same
numbers: only their shapes differ, which `run` mends. Without dropout the state of the random numbers is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from polytile.attention.arguments import Operands, operands
from polytile.attention.problem import Causal
from polytile.candidates.library.attention import (
    AttentionLibrary,
    CpuFlashLibrary,
    CudnnLibrary,
    EfficientLibrary,
    FlashLibrary,
    Kernels,
    PackedFlashLibrary,
)

aten = torch.ops.aten

Gradients = Sequence[torch.Tensor]
EFFICIENT_ROWS = 32
"""The memory-efficient kernels have room for a multiple of so many rows in the log-sum-exp of each head."""


class _Backward(AttentionLibrary):
    """One of the library's kernels. Subclasses call it and return the gradients of q, k and v."""

    def gradients(self, given: Operands) -> Gradients:
        raise NotImplementedError

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        for place, value in zip(given.gradients, self.gradients(given), strict=True):
            place.copy_(value)


class PackedFlashBackward(PackedFlashLibrary):
    """FlashAttention's of packed sequences."""

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        out, saved, grad = given.left
        q, k, v, out, grad = (each.transpose(0, 1) for each in (given.q, given.k, given.v, out, grad))
        starts = given.indices["q_starts"], given.indices["k_starts"]
        found = aten._flash_attention_backward(
            grad, q, k, v, out, _hidden(saved), *starts, given.rows, given.keys, 0.0, self.problem.causal is not Causal.NO,
            *_no_state(q), scale=self.problem.scale, **self.placed,
        )  # fmt: skip
        for place, value in zip(given.gradients, found, strict=True):
            place.copy_(value.transpose(0, 1))


class FlashBackward(_Backward, FlashLibrary):
    """FlashAttention's. Its sums over blocks of keys are in a fixed order where torch wants deterministic algorithms."""

    def gradients(self, given: Operands) -> Gradients:
        length, over = given.q.shape[3], -given.q.shape[3] % 8
        out, saved, grad = given.left
        q, k, v, out, grad = (pad(each, (0, over)) if over else each for each in (given.q, given.k, given.v, out, grad))
        scale = length**-0.5 if self.problem.scale is None else self.problem.scale
        found = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, _hidden(saved), None, None, q.shape[2], k.shape[2], 0.0,
            self.problem.causal is not Causal.NO, *_no_state(q), scale=scale,
        )  # fmt: skip
        return [each.narrow(3, 0, length) for each in found[:3]]


class EfficientBackward(_Backward, EfficientLibrary):
    """The memory-efficient ones, whose causal mask counts from the top left. Heads of q that share one of k read a copy of it.
    They take it for granted that the rows of the result follow each other in memory with all heads side by side, and read other
    memory where they do not."""

    def valid(self, sizes: Mapping[str, int]) -> bool:
        square = self.problem.causal is not Causal.BOTTOM_RIGHT or sizes["Mq"] == sizes["Mkv"]
        return square and super().valid(sizes)

    def gradients(self, given: Operands) -> Gradients:
        heads = given.k.shape[1]
        group = given.q.shape[1] // heads
        out, saved, grad = given.left
        if not out.transpose(1, 2).is_contiguous():
            out = out.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
        k, v = (each.repeat_interleave(group, 1) if group > 1 else each for each in (given.k, given.v))
        saved = pad(_hidden(saved), (0, -saved.shape[2] % EFFICIENT_ROWS), value=float("inf"))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            grad, given.q, k, v, self.aligned(given), out, saved, *_no_state(grad), 0.0, [True, True, True, False],
            self.problem.causal is not Causal.NO, scale=self.problem.scale,
        )  # fmt: skip
        if group > 1:
            dk, dv = (each.unflatten(1, (heads, group)).sum(2) for each in (dk, dv))
        return dq, dk, dv


class CudnnBackward(_Backward, CudnnLibrary):
    """cuDNN's."""

    def gradients(self, given: Operands) -> Gradients:
        out, saved, grad = given.left
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, given.q, given.k, given.v, out, _hidden(saved).unsqueeze(3), *_no_state(grad), self.aligned(given),
            None, None, given.q.shape[2], given.k.shape[2], 0.0, self.problem.causal is not Causal.NO, scale=self.problem.scale,
        )  # fmt: skip


class CpuFlashBackward(_Backward, CpuFlashLibrary):
    """ATen's for CPUs, whose mask is of q's type."""

    def gradients(self, given: Operands) -> Gradients:
        bias = self.added(given)
        bias = bias.expand(*given.q.shape[:3], given.k.shape[2]) if bias is not None else None
        out, saved, grad = given.left
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, given.q, given.k, given.v, out, saved, 0.0, self.problem.causal is not Causal.NO, attn_mask=bias,
            scale=self.problem.scale,
        )  # fmt: skip


def _hidden(saved: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp as kernels want it, row-major: infinite in rows that see no key, whose weights are 0 then."""
    return torch.where(saved == -float("inf"), float("inf"), saved).contiguous()


def _no_state(near: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Seed and offset of random numbers that are not drawn."""
    return torch.empty((), dtype=torch.int64, device=near.device), torch.empty((), dtype=torch.int64, device=near.device)


BACKWARD = Kernels(PackedFlashBackward, CpuFlashBackward, (FlashBackward, EfficientBackward, CudnnBackward))
