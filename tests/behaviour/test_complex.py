"""Complex numbers: operators on them are library calls, with constants as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polytile import options
from tests.behaviour.helpers import compiled

CONSTANTS = ("nan+nanj", "inf-1j", "-0.0-0.0j", "1-infj", "-0.0+2j", "1.5+2j")


@pytest.mark.parametrize("stall", ["compile", "never"])
@pytest.mark.parametrize("wrapper", ["cpp", "python", "fx"])
def test_constants_keep_infinities_and_signs_of_zeros(wrapper: str, stall: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        chosen = [torch.view_as_real(torch.where(x.real > 0, x, complex(text))) for text in CONSTANTS]
        return [*chosen, torch.logaddexp(x, x).abs()]

    with options.override(on_failure="raise"):
        run = compiled(function, wrapper=wrapper, stall=stall)
        for n in (3, 7):
            x = torch.randn(n, 2, dtype=torch.complex64)
            x[0, 0] = complex("inf")
            for mine, eagers in zip(run(x), function(x), strict=True):
                torch.testing.assert_close(mine, eagers, equal_nan=True)
                assert torch.equal(mine.signbit() & ~mine.isnan(), eagers.signbit() & ~eagers.isnan())


def test_equal_results_of_which_one_is_returned_as_a_view_stay_apart() -> None:
    """Equal calls are made once, but not where a write to one result would show in another."""
    run = compiled(lambda x: (-x, torch.view_as_real(-x)))
    for n in (3, 7):
        whole, parts = run(torch.randn(n, dtype=torch.complex64))
        assert whole.untyped_storage().data_ptr() != parts.untyped_storage().data_ptr()


SINGLE: dict[str, Callable[[Tensor], Tensor]] = {
    "running sum": lambda x: x.cumsum(0),
    "running product": lambda x: x.cumprod(0),
    "turned": lambda x: x.cumsum(0).flip(0),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "gather": lambda x: x.gather(0, torch.tensor(0)),
    "choice": lambda x: torch.where(x.real > 0, x, -x),
    "fill": lambda x: x.masked_fill(x.real > 0, 2),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_number_is_a_tensor_too(name: str) -> None:
    with options.override(on_failure="raise"):
        for dtype in (torch.complex64, torch.float32):
            x = torch.randn((), dtype=dtype)
            torch.testing.assert_close(compiled(SINGLE[name])(x), SINGLE[name](x))
