"""The library's kernels for the derivative of attention as candidates, each called by its own operator.

Each operator takes the results of the forward operator of the same kind. The result and log-sum-exp of any attention serve as
well, since they are the same numbers; `run` adapts their shapes. Without dropout the random state is not read.
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
from polytile.runtime.efficient_attention import efficient_backward, hidden, no_state

aten = torch.ops.aten

Gradients = Sequence[torch.Tensor]


class _Backward(AttentionLibrary):
    """One of the library's kernels. Subclasses call it and return the gradients of q, k and v, and of the bias if wanted."""

    def gradients(self, given: Operands) -> Gradients:
        raise NotImplementedError

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        for place, value in zip(given.gradients, self.gradients(given), strict=False):
            place.copy_(value)


class PackedFlashBackward(PackedFlashLibrary):
    """FlashAttention's of packed sequences."""

    def _call(self, *args: Any) -> None:
        given = operands(self.problem, args)
        out, saved, grad = given.left
        q, k, v, out, grad = (each.transpose(0, 1) for each in (given.q, given.k, given.v, out, grad))
        starts = given.indices["q_starts"], given.indices["k_starts"]
        found = aten._flash_attention_backward(
            grad, q, k, v, out, hidden(saved), *starts, given.rows, given.keys, 0.0, self.problem.causal is not Causal.NO,
            *no_state(q), scale=self.problem.scale, **self.placed,
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
            grad, q, k, v, out, hidden(saved), None, None, q.shape[2], k.shape[2], 0.0,
            self.problem.causal is not Causal.NO, *no_state(q), scale=scale,
        )  # fmt: skip
        return [each.narrow(3, 0, length) for each in found[:3]]


class EfficientBackward(_Backward, EfficientLibrary):
    """The memory-efficient ones, whose causal mask counts from the top left."""

    gives_changes = True

    def valid(self, sizes: Mapping[str, int]) -> bool:
        square = self.problem.causal is not Causal.BOTTOM_RIGHT or sizes["Mq"] == sizes["Mkv"]
        return square and super().valid(sizes)

    def gradients(self, given: Operands) -> Gradients:
        (out, saved, grad), problem = given.left, self.problem
        how = problem.scale, problem.causal is not Causal.NO, problem.changes
        return efficient_backward(grad, given.q, given.k, given.v, given.bias, out, saved, *how)


class CudnnBackward(_Backward, CudnnLibrary):
    """cuDNN's."""

    def gradients(self, given: Operands) -> Gradients:
        out, saved, grad = given.left
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, given.q, given.k, given.v, out, hidden(saved).unsqueeze(3), *no_state(grad), self.aligned(given),
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


BACKWARD = Kernels(PackedFlashBackward, CpuFlashBackward, (FlashBackward, EfficientBackward, CudnnBackward))
