"""Arguments made up to try a kernel in the background are laid out as a call's own are, so that no right candidate is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs


@pytest.fixture(autouse=True)
def sizes_that_are_data() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def add_to_a_column_where(x: Tensor, mask: Tensor) -> Tensor:
    """The column is copied to memory with gaps."""
    x = x.clone()
    x[mask, 2] += 1
    return x


def join_what_is_chosen(x: Tensor, mask: Tensor) -> Tensor:
    """The kernel reads two tensors at all points of the result, where one of them has elements."""
    return torch.cat([x[mask], x])


def products_of_what_is_chosen(x: Tensor, mask: Tensor) -> Tensor:
    """Nothing is chosen at some sizes."""
    rows = x[mask]
    return rows @ rows.t()


@pytest.mark.parametrize("function", [add_to_a_column_where, join_what_is_chosen, products_of_what_is_chosen])
def test_no_candidate_is_refused(function: Callable[[Tensor, Tensor], Tensor], caplog: pytest.LogCaptureFixture) -> None:
    call = polytile.compile(function, options={"stall": "never", "persist": False, "front_door": "off"})
    for n in (5, 2, 8, 33):
        x, mask = torch.randn(n, 4), torch.arange(n) % 2 == 1 if n % 2 else torch.zeros(n, dtype=torch.bool)
        torch.testing.assert_close(call(x, mask), function(x, mask))
        polytile.wait()
        torch.testing.assert_close(call(x, mask), function(x, mask))
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("polytile")]
    assert not [kernel.faulty for program in compiled_programs() for kernel in program.multikernels if kernel.faulty]
