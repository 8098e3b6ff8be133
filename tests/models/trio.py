"""One model three times, compiled, in eager and in eager with float64, taking the same steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.behaviour.helpers import assert_as_exact, compiled, tensors

SLACK = 8.0
"""A whole model may be this many times as far from float64 as eager is: roundings of many layers add up."""


def stepped(model: nn.Module, call: Callable[..., Any], inputs: Sequence[Any], training: bool) -> dict[str, Any]:
    """Results, gradients of all parameters (zeros where there are none) and buffers after one step; gradients only in
    training. The cotangents are the same in every call."""
    torch.manual_seed(3)
    with torch.set_grad_enabled(training):
        results = tensors(call(*inputs))
    found: dict[str, Any] = {"results": [r.detach() for r in results]}
    if training:
        differentiable = [r for r in results if r.requires_grad]
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in differentiable]
        found["gradients"] = torch.autograd.grad(
            differentiable, list(model.parameters()), cotangents, allow_unused=True, materialize_grads=True
        )
    found["buffers"] = [buffer.clone() for buffer in model.buffers()]
    return found


class Trio:
    """The model that `make` makes, with weights and buffers of its own for each of the three."""

    def __init__(self, make: Callable[[], nn.Module], training: bool, **options: Any) -> None:
        torch.manual_seed(7)
        self.training = training
        self.mine = make().train(training)
        self.eager = copy.deepcopy(self.mine)
        self.exact = copy.deepcopy(self.mine).double()
        self.run = compiled(self.mine, **options)

    def step(self, *inputs: Any) -> None:
        """One step with `inputs`; raises AssertionError where the compiled model is not as exact as eager."""
        wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
        assert_as_exact(
            stepped(self.mine, self.run, inputs, self.training),
            stepped(self.eager, self.eager, inputs, self.training),
            stepped(self.exact, self.exact, wide, self.training),
            [tuple(x.shape) if isinstance(x, Tensor) else x for x in inputs],
            slack=SLACK,
        )
