"""What is rounded to 16 bits on its way may be off by a unit of that type, in a tensor of any type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile.candidates import roundings
from polytile.candidates.roundings import Rounded
from polytile.dispatch.specs import template_spec
from polytile.ir.loop import Loop
from polytile.ir.template import Template
from polytile.matmul import gemm_args, gemm_kernel
from polytile.passes.pipeline import optimize
from polytile.schedule import canonical
from polytile.tuning.gate import Gate
from tests.frontend.lowering import lower

BF16 = torch.bfloat16


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def loop_of(function: Callable[..., object], *args: torch.Tensor) -> dict[str, Rounded]:
    program = optimize(lower(function, *args)).program
    loop = next(operation for operation in program.operations if isinstance(operation, Loop))
    return roundings.of_loop(canonical.canonicalize(loop, program.buffers)[0].loop)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * 1.7).bfloat16().float()


def test_a_wider_tensor_of_rounded_values_is_as_coarse_as_they_are() -> None:
    assert set(loop_of(lambda x: rounded(x) * 3, half(4, 6)).values()) == {Rounded(BF16)}
    assert not loop_of(lambda x: x.float() * 3, half(4, 6)), "what is only read from memory is not rounded on its way"


def test_a_sum_spreads_what_its_terms_jump_by_and_an_extreme_does_not() -> None:
    (summed,) = loop_of(lambda x: rounded(x).sum(-1), half(4, 6)).values()
    (largest,) = loop_of(lambda x: rounded(x).amax(-1), half(4, 6)).values()
    assert summed.dtype == BF16 and len(summed.terms) == 1 and largest == Rounded(BF16)


def widened(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w).float()


def test_no_right_product_that_is_rounded_and_widened_is_refused() -> None:
    """The reference's sums, in float64 or in float32, and a candidate's are rounded to different neighbours here and there."""
    x, w = half(16, 256), half(700, 256) / 16
    program = optimize(lower(widened, x, w, symbolic=False)).program
    (template,) = [operation for operation in program.operations if isinstance(operation, Template)]
    kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    spec = template_spec(kernel, "product", ())
    assert spec.make_args is not None and not kernel.symbols
    args = spec.make_args({"M": 16, "N": 700, "K": 256})
    tensors, ints = spec.tensors_of(args), spec.ints_of(args)
    coarse = spec.coarse(ints)
    assert [arg.rounded for arg in spec.args] == [None, None, Rounded(BF16)] and coarse[:2] == (0.0, 0.0)
    a, b = (gemm_args.operands(kernel, args)[0][name].float() for name in "AB")
    exact = (a.double() @ b.double())[0]

    def off(places: int) -> Callable[[tuple[torch.Tensor, ...]], None]:
        def run(given: tuple[torch.Tensor, ...]) -> None:
            result = exact.to(BF16)
            result.view(torch.int16)[:places] += 1
            given[2].view(16, 700).copy_(result)

        return run

    for wide in (True, False):
        gate = Gate(args, spec.roles, spec.names, spec.reference, 256, wide, coarse=coarse)
        assert gate.check(off(0)).ok and gate.check(off(1)).ok
        assert not gate.check(lambda given: given[2].view(16, 700).copy_(exact * 1.05)).ok
        assert not Gate(args, spec.roles, spec.names, spec.reference, 256, wide).check(off(1)).ok
    assert tensors[2].dtype == torch.float32


@pytest.mark.parametrize("rows", [1, 16])
def test_a_gated_layer_compiles_in_16_bits(rows: int) -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    args = half(rows, 64), half(96, 64) / 8, half(97, 64)[:96] / 8
    call = polytile.compile(gated, options={"persist": False})
    torch.testing.assert_close(call(*args), gated(*args), rtol=2e-2, atol=2e-2)
