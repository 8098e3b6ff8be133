"""8-bit floats in C++ loops: every one of the 256 is read as torch reads it, in each form of load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polytile
from polytile.ir.dtypes import FLOAT8
from tests.behaviour.helpers import compiled

LOADS: dict[str, Callable[[Tensor], Tensor]] = {
    "one after the other": lambda x: x.float() * 2,
    "with a rest": lambda x: x[3:].float() + 1,
    "apart": lambda x: x[::3].to(torch.bfloat16) * 2,
    "transposed": lambda x: x.view(8, 32).t().float().contiguous() * 2,
    "one for all": lambda x: x.view(256, 1).float() * torch.ones(7),
    "of a row's sum": lambda x: x.view(8, 32).double().nan_to_num(0.0, 0.0, 0.0).sum(-1),
}


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("load", LOADS)
def test_every_one_is_read_as_torch_reads_it(dtype: torch.dtype, load: str) -> None:
    x = torch.arange(256).to(torch.uint8).view(dtype)
    got = compiled(LOADS[load], tune="off")(x)
    torch.testing.assert_close(got, LOADS[load](x), rtol=0, atol=0, equal_nan=True)
    assert not polytile.counters["library_calls"]
