"""One graph serves every size from 2 on; sizes 0 and 1 are right too; results are about as exact as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from tests.behaviour.helpers import assert_as_exact, check, compiled, graphs, sized
from tests.behaviour.models import MODELS, made

SIZES = (6, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65)
LOWEST = {"batch norm": 2, "encoder": 2, "encoder with one attention operator": 2}


def stepped(model: nn.Module, call: Callable[..., Tensor], inputs: tuple[Any, ...], training: bool) -> dict[str, Any]:
    """Result, gradients of all parameters and buffers after one step; gradients only in training."""
    with torch.set_grad_enabled(training):
        result = call(*inputs)
    found: dict[str, Any] = {"result": result.detach()}
    if training:
        cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result.dtype)
        gradients = torch.autograd.grad(result, list(model.parameters()), cotangent)
        found["gradients"] = gradients
    found["buffers"] = [buffer.clone() for buffer in model.buffers()]
    return found


class Trio:
    """One model three times: compiled, eager, and eager in float64; each with buffers of its own."""

    def __init__(self, name: str, training: bool, **options: Any) -> None:
        self.inputs = MODELS[name][1]
        self.training = training
        self.mine = made(name).train(training)
        self.eager = copy.deepcopy(self.mine)
        self.exact = copy.deepcopy(self.mine).double()
        self.run = compiled(self.mine, **options)

    def step(self, size: int) -> None:
        inputs = self.inputs(size)
        wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        assert_as_exact(
            stepped(self.mine, self.run, inputs, self.training),
            stepped(self.eager, self.eager, inputs, self.training),
            stepped(self.exact, self.exact, wide, self.training),
            [tuple(x.shape) for x in inputs],
            slack=8.0,
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_graph_for_twenty_sizes(name: str, training: bool) -> None:
    trio = Trio(name, training, tune="off")
    for size in SIZES:
        trio.step(size)
    assert graphs() == (2 if training else 1, 1)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_graph_while_tuning(training: bool, empty_cache: object) -> None:
    trio = Trio("mlp", training)
    for size in SIZES[:8]:
        trio.step(size)
    assert polytile.counters["candidates_benchmarked"] > 0
    assert graphs() == (2 if training else 1, 1)


@pytest.mark.parametrize("name", MODELS)
def test_size_one_is_right(name: str) -> None:
    if LOWEST.get(name, 0) > 1 and name == "batch norm":
        size = 1  # rows(3, 3, 1, 4)
    else:
        size = 1
    Trio(name, False, tune="off").step(size)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_batch_of_one_and_an_empty_one_after_others(training: bool) -> None:
    trio = Trio("mlp", training, tune="off")
    for size in (5, 1, 0, 2):
        trio.step(size)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: torch.softmax(x, -1) if x.shape[-1] else x.softmax(-1),
    "sums": lambda x: (x.sum(-1), x.sum(0), x.sum()),
    "mean": lambda x: x.mean(0, keepdim=True),
    "products": lambda x: x @ x.t() + 1,
    "scan": lambda x: torch.cumsum(x, 0),
    "pointwise": lambda x: torch.exp(-x.abs()) * 2,
    "joined": lambda x: torch.cat([x, x * 2, x[:1]]),
    "normed": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_zero_and_one_of_each_dimension(name: str) -> None:
    function = FUNCTIONS[name]
    run = compiled(function, tune="off")
    for shape in ((5, 6), (1, 6), (5, 1), (1, 1), (0, 6), (5, 0), (0, 0), (3, 4)):
        if 0 in shape and name in ("mean", "normed"):
            continue
        check(function, run, *sized(shape))


def test_a_new_size_starts_neither_tracer_nor_compiler_once_its_kernels_exist() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    run = compiled(function)
    for n in range(65, 90):  # one regime, up to the divisibility by 16
        run(*sized((n, 100)))
    before = dict(polytile.counters)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in range(65, 90):
            check(function, run, *sized((n, 100)))
    assert dict(polytile.counters) == before


def test_low_precision_is_about_as_exact_as_eager() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x * y, -1) + x.mean(-1, keepdim=True)

    for dtype in (torch.bfloat16, torch.float16):
        run = compiled(function, tune="off")
        for n in (5, 40, 300):
            x, y = (t.to(dtype) for t in sized((n, n + 1), (n, n + 1)))
            check(function, run, x, y)


def test_large_and_special_values_are_eagers() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return torch.softmax(x, -1), torch.exp(x), torch.log(x), x.amax(-1), x.sum(-1), torch.sigmoid(x), 1 / x

    x = next(sized((6, 40)))
    x[0, 3], x[1, 5], x[2, 7] = float("inf"), float("-inf"), float("nan")
    x[3], x[4, :20] = 1e30, -1e30
    x[5, 1] = -0.0
    for got, want in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
