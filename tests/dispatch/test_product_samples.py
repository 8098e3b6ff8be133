"""Samples that stand in for the reference of grouped products too large for one."""

from __future__ import annotations

import pytest
import torch

from polytile.dispatch.product_samples import sampler
from polytile.dispatch.specs import template_spec
from polytile.ir.products import grouped_product
from polytile.tuning.sample import SampledGate
from tests.codegen.test_grouped import BF16, ENDINGS, arguments
from tests.codegen.triton_gemm import grouped_product as product
from tests.codegen.triton_gemm import product as plain


@pytest.mark.parametrize("axis", ["m", "k"])
@pytest.mark.parametrize("precision", [torch.float64, None])
def test_samples_are_what_the_product_has_there(axis: str, precision: torch.dtype | None) -> None:
    torch.manual_seed(0)
    kernel = product(axis, BF16, *(("k", "k") if axis == "m" else ("m", "n")))
    draw = sampler(kernel)
    assert draw is not None
    for ends in ENDINGS.values():
        args = arguments(kernel, ends, *((60, 150, 50) if axis == "m" else (50, 150, 60)))
        args[3].copy_(grouped_product(args[0].double(), args[1].double(), args[2], axis))
        samples = draw(args, precision)
        assert samples and any(sample.expected.shape == (8, 64) for sample in samples)
        for sample in samples:
            torch.testing.assert_close(sample.elements_of(args).double(), sample.expected.double(), rtol=2e-2, atol=0.3)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (59, 149), (33, 149), (45, 0)])
def test_an_element_at_a_corner_that_is_wrong_is_found_out(row: int, column: int) -> None:
    """In the first and the last group, where one begins, and behind the last one."""
    torch.manual_seed(0)
    kernel = product("m", BF16, "k", "k")
    spec = template_spec(kernel, "product", ())
    args = arguments(kernel, (3, 33, 40), 60, 150, 50)
    draw = spec.sampler
    assert draw is not None
    samples = draw(args, torch.float64)
    assert samples is not None
    gate = SampledGate(args, spec.roles, spec.names, draw, samples, 50)

    def run(off: float, given: tuple[object, ...]) -> None:
        out = given[3]
        assert isinstance(out, torch.Tensor)
        out.copy_(grouped_product(args[0], args[1], args[2], "m"))
        out[0, row, column] += off

    assert gate.check(lambda given: run(0.0, given)).ok
    assert not gate.check(lambda given: run(20.0, given)).ok


def test_other_products_have_none() -> None:
    assert sampler(plain(BF16)) is None
