"""A loop that is one operator of the library has the library's kernel among its candidates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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
    "costly": lambda x: torch.special.i1e(x.double()),
    "found in rows": lambda x: torch.searchsorted(x, x.neg().contiguous()),
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


def test_what_goes_through_memory_in_order_does_not() -> None:
    assert "aten" not in _candidates(lambda x: x + 1, torch.randn(9, 12))


def test_what_is_fused_is_no_operator() -> None:
    assert "aten" not in _candidates(lambda x: torch.cummax(x * 2, 1).values, torch.randn(9, 12))


def test_an_argument_computed_in_the_loop_is_not_left_out() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cummax(torch.full_like(x, 3.0), 1).values

    x = torch.randn(9, 12)
    assert torch.equal(compiled(function, force="aten")(x), function(x))
