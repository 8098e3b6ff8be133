"""Axes without elements: results are eager's, and kernels are measured without a word about results that nobody writes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polytile

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda x: x.cumsum(1) * 2 + 1,
    "sum": lambda x: (x * 2).sum(1),
    "softmax": lambda x: torch.softmax(x + 1, 1),
    "product": lambda x: (x.transpose(1, 2) @ x).relu(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 0, 3), (0, 4, 3), (5, 4, 0)])
def test_an_axis_without_elements_causes_no_warning(
    name: str, shape: tuple[int, ...], empty_cache: object, caplog: pytest.LogCaptureFixture
) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="polytile", dynamic=True)
    x = torch.randn(*shape)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "polytile"):
        result = compiled(x)
        assert polytile.wait()
        again = compiled(x)
    expected = function(x)
    assert result.shape == expected.shape and result.stride() == expected.stride()
    assert torch.equal(result, expected) and torch.equal(again, expected)
    assert not caplog.records
