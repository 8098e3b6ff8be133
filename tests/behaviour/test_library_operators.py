"""The ATen calls that a loop came from are among its candidates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from tests.behaviour.helpers import compiled, multikernels, names


def _index(rows: int, columns: int) -> Tensor:
    return torch.randint(0, columns, (rows, columns))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "running greatest values": lambda x: torch.cummax(x, -1).values,
    "where the greatest values stand": lambda x: torch.cummax(x, 0).indices,
    "of a part": lambda x: torch.cumsum(x[1:, ::2], 1),
    "of a transposed tensor": lambda x: torch.logcumsumexp(x.t(), 1),
    "windows": lambda x: F.avg_pool2d(x[None], 3, 1, 1),
    "a gather": lambda x: x.gather(1, (x > 0).long()),
    "a copy across memory": lambda x: x.t().contiguous(),
    "turned around": lambda x: x.flip(1),
    "padded and cropped": lambda x: F.pad(x, (1, -2, -3, 4), value=1.5),
    "a transposed part, padded": lambda x: F.pad(x.t()[1:], (2, 0)),
    "cropped": lambda x: F.pad(x[None], (-1, -1, -2, 0)),
    "costly": lambda x: torch.special.i1e(x.double()),
}
SIZES = ((5, 4), (17, 33), (64, 20))


def _candidates(function: Callable[..., Tensor], *args: Tensor) -> set[str]:
    """The names of all candidates of all kernels of the compiled function."""
    call = compiled(function, tune="off")
    call(*args)
    return {name for kernel in multikernels() for name in names(kernel)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_library_is_right_where_it_is_forced(name: str) -> None:
    call = compiled(FUNCTIONS[name], force="aten")
    for shape in SIZES:
        x = torch.randn(shape).sort(-1).values
        torch.testing.assert_close(call(x), FUNCTIONS[name](x), equal_nan=True)


def test_scatters_change_their_copy() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x.scatter_add(1, index, x)

    call = compiled(function, force="aten")
    for rows, columns in SIZES:
        x, index = torch.randn(rows, columns), _index(rows, columns)
        before = x.clone()
        torch.testing.assert_close(call(x, index), function(x, index))
        assert torch.equal(x, before)


def test_gradients_by_the_library() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return F.avg_pool2d(x.gather(1, index)[None], 3, 1, 1)

    call = compiled(function, force="aten")
    for rows, columns in SIZES:
        x, index = torch.randn(rows, columns, requires_grad=True), _index(rows, columns)
        (got,), (want,) = (torch.autograd.grad(f(x, index).square().sum(), x) for f in (call, function))
        torch.testing.assert_close(got, want)


def test_what_is_one_operator_asks_the_library() -> None:
    assert "aten" in _candidates(lambda x: torch.cummax(x, 1).values, torch.randn(9, 12))


def _spread(x: Tensor) -> Tensor:
    return x / (x.std(0, keepdim=True) + 1)


FUSED: dict[str, Callable[..., object]] = {
    "a chain": lambda x, y: torch.relu(x * 2 + y) - y,
    "of a reduction": lambda x, y: (torch.relu(x * 2) + y).sum(0),
    "around reductions": lambda x, y: torch.softmax(x * y, -1),
    "several results": lambda x, y: (x + y, (x + y).amax(1), (x + y).std(1)),
    "several results of one operator": lambda x, y: torch.max(x - y, 1),
    "parts": lambda x, y: torch.cat([x.exp(), y], 1)[:, 1:] * 2,
    "other sizes": lambda x, y: (x.t() + 1).reshape(-1).view(2, -1) * y.sum(),
    "mixed types": lambda x, y: (x.half() * y).double().mean(1),
    "sizes alone": lambda x, y: torch.zeros_like(x).add(y).cos(),
    "laid out anew on the way": lambda x, y: _spread(F.layer_norm(x.t(), (x.shape[0],))) + x.t() * 3,
    "gathered": lambda x, y: x.gather(1, (y > 0).long()).sin().sum(1),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_remembers_its_calls(name: str) -> None:
    call = compiled(FUSED[name], force="aten")
    for rows, columns in ((6, 4), (18, 34), (64, 20)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        torch.testing.assert_close(call(x, y), FUSED[name](x, y))
    for kernel in multikernels():
        if kernel.spec.family == "loop":
            assert kernel.decisions[-1].candidate == "aten", kernel.decisions


WHOLE: dict[str, tuple[Callable[..., object], set[str]]] = {
    "softmax": (lambda x: torch.softmax(x * 2, -1), {"aten.mul.Tensor", "aten._softmax.default"}),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), {"aten.native_layer_norm.default"}),
    "gelu": (lambda x: F.gelu(x) + 1, {"aten.gelu.default", "aten.add.Tensor"}),
    "group norm": (lambda x: F.group_norm(x[:, :, None], 2), {"aten.native_group_norm.default"}),
    "a loss": (lambda x: F.smooth_l1_loss(x, x * 2), {"aten.mul.Tensor", "aten.smooth_l1_loss.default"}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_tracer_took_apart_is_called_whole(name: str) -> None:
    """Eager has one kernel for it: several calls in its place would be no measure."""
    function, operators = WHOLE[name]
    call = compiled(function, force="aten")
    for rows, columns in ((6, 4), (18, 34), (64, 20)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(call(x), function(x))
    asked = {op for kernel in multikernels() for c in kernel.candidates for op in c.operators}
    assert asked == operators


def test_gradients_of_what_was_taken_apart() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(F.gelu(F.layer_norm(x, x.shape[1:])) * w, -1)

    call = compiled(function, force="aten")
    for rows, columns in SIZES:
        x, w = torch.randn(rows, columns, requires_grad=True), torch.randn(columns, requires_grad=True)
        got, want = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (call, function))
        torch.testing.assert_close(got, want)


def test_calls_leave_what_they_read_as_it_was_where_results_take_its_memory() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        made = (x @ y).relu()  # a product in memory that nobody needs once the next loop has read it
        return torch.softmax(made.t() * 2 + made, -1) * made

    call = compiled(function, force="aten")
    for n in (5, 16, 33):
        x, y = torch.randn(n, n), torch.randn(n, n)
        torch.testing.assert_close(call(x, y), function(x, y))


def test_random_numbers_are_not_drawn_by_the_library() -> None:
    """polytile counts its own: eager's generator would move on at each trial."""
    assert "aten" not in _candidates(lambda x: F.dropout(x, 0.5) * 2, torch.randn(9, 12))


def test_memory_that_changes_is_not_written_by_calls() -> None:
    def function(x: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return x.sum(1)

    call = compiled(function, force="aten")
    x = torch.randn(9, 12)
    mine, other = x.clone(), x.clone()
    torch.testing.assert_close(call(mine), function(other))
    torch.testing.assert_close(mine, other)


def test_calls_that_win_are_counted() -> None:
    call = compiled(lambda x: (x * 2 + 1).sum(1), force="aten")
    before = dict(polytile.counters["library_calls"])
    call(torch.randn(9, 12))
    now = polytile.counters["library_calls"]
    new = {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)}
    assert new == {"aten.mul.Tensor": 1, "aten.add.Tensor": 1, "aten.sum.dim_IntList": 1}


def test_an_argument_computed_in_the_loop_is_not_left_out() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cummax(torch.full_like(x, 3.0), 1).values

    x = torch.randn(9, 12)
    assert torch.equal(compiled(function, force="aten")(x), function(x))
