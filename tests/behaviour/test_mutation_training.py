"""Training through arguments that are changed: gradients, hooks and optimizer steps as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import polytile
from tests.behaviour.helpers import assert_as_exact, compiled, graphs, sized


def test_gradients_accumulate_and_hooks_run() -> None:
    layer = nn.Linear(8, 8)
    run = compiled(lambda x: torch.tanh(layer(x)))
    (x,) = sized((5, 8))
    seen: list[Tensor] = []
    for _ in range(2):
        out = run(x.requires_grad_())
        out.register_hook(seen.append)
        out.sum().backward()
    reference = layer.weight.grad.clone()  # type: ignore[union-attr]
    layer.zero_grad()
    for _ in range(2):
        torch.tanh(layer(x)).sum().backward()
    torch.testing.assert_close(reference, layer.weight.grad)
    assert len(seen) == 2


def test_training_steps_with_an_optimizer_follow_eager() -> None:
    def trained(compile_it: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 4))
        run = compiled(model) if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            x = next(sized((3 + step, 10), seed=step))
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(trained(True), trained(False))
    assert graphs() == (2, 1)


def gated_by_an_average(x: Tensor, average: Tensor) -> Tensor:
    y = torch.sigmoid(average) * x
    average.lerp_(x.detach().mean(0), 0.1)
    return (y * y).sum(-1)


def nearest_codes(x: Tensor, codes: Tensor) -> Tensor:
    """Vectors quantised with a table that follows them, as a VQ-VAE's does."""
    index = torch.cdist(x.detach(), codes).argmin(-1)
    near = codes[index]
    codes.index_add_(0, index, x.detach() - near, alpha=0.1)
    return ((x - near) ** 2).sum(-1).tanh()


@pytest.mark.parametrize("function", [gated_by_an_average, nearest_codes])
def test_gradients_are_of_the_values_that_an_argument_had_before_it_was_changed(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    run = compiled(function)
    for rows in (5, 30, 8):
        x, table = sized((rows, 6), (7, 6) if function is not gated_by_an_average else (6,), seed=rows)
        gradients = []
        for call, dtype in ((run, torch.float32), (function, torch.float32), (function, torch.float64)):
            given, changed = x.to(dtype, copy=True).requires_grad_(), table.to(dtype, copy=True)
            result = call(given, changed)
            (slope,) = torch.autograd.grad(result.square().sum(), given)
            gradients.append((result.detach(), slope, changed))
        assert_as_exact(*gradients, rows)


def test_a_result_of_which_a_later_part_overwrites_some_has_the_gradient_of_before() -> None:
    """The changed argument needs a gradient itself: AOTAutograd writes to it after the graph."""

    def function(x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        x[..., -1] = 2
        normed = torch.nn.functional.layer_norm(y, y.shape[-1:])
        return torch.nn.functional.softplus(torch.logit(normed.sigmoid() * 0.8 + 0.1))

    run = compiled(function)
    for rows in (5, 30):
        (x,) = sized((rows, 3, 16))
        slopes = []
        for call, dtype in ((run, torch.float32), (function, torch.float32), (function, torch.float64)):
            given = x.to(dtype, copy=True).requires_grad_()
            changed = given * 1
            slopes.append((*torch.autograd.grad(call(changed).sum(), given), changed.detach()))
        assert_as_exact(*slopes, rows)


def test_a_graph_kept_for_a_second_backward() -> None:
    """torch asks for the setting, whatever the backend, as a compiled backward pass may reuse saved tensors' memory."""
    run = compiled(lambda x: torch.softmax(x, -1) * x)
    x = next(sized((5, 30))).requires_grad_()
    with torch._functorch.config.patch(donated_buffer=False):
        out = run(x)
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)
        second = torch.autograd.grad(out.sum(), x)
    assert torch.equal(first[0], second[0])


def test_results_that_need_no_gradient_say_so() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.argmax(-1), (x * 2).detach(), torch.exp(x)

    got = compiled(function)(next(sized((5, 30))).requires_grad_())
    assert [t.requires_grad for t in got] == [False, False, True]


def test_a_changed_input_under_autograd() -> None:
    def function(x: Tensor, running: Tensor) -> Tensor:
        running.mul_(0.5).add_(x.detach().mean(0))
        return torch.tanh(x - running)

    run = compiled(function)
    mine, theirs = next(sized((8,))), next(sized((8,)))
    for n in (4, 9, 30):
        x, y = (next(sized((n, 8), seed=n)).requires_grad_() for _ in range(2))
        got, want = run(x, mine), function(y, theirs)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), y))
    assert polytile.counters["graphs_compiled"] == 2
