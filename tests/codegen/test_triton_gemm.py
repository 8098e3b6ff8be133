"""Products as Triton, run by its interpreter: every schedule, layout, type and tail against eager."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch

from polytile.codegen.triton.kernel import Kind
from polytile.errors import LoweringError
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import EVEN_K
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.codegen.triton_gemm import CHIP, VARIANTS, facts_of, integers, interpreted, operands, product, small

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
FIRST = (("k", "n"), ("m", "k"), ("any", "any"))
"""Layouts that are tried each time: both operands in each of the three."""
REST = [pair for pair in itertools.product(("k", "m", "any"), ("n", "k", "any")) if pair not in FIRST]
LAYOUTS = [*FIRST, *[pytest.param(*pair, marks=pytest.mark.slow) for pair in REST]]
SHAPES = ((1, 1, 1), (3, 17, 33), (40, 70, 96), (32, 64, 64))


def check(
    kernel: GemmKernel, config: Config, batch: int, m: int, n: int, k: int, facts: Facts | None = None, pad: int = 0
) -> None:
    a, b, c = operands(kernel, batch, m, n, k, pad)
    interpreted(kernel, config, (a, b, c, *integers(a, b, c)), facts)
    exact = a.double() @ b.double()
    if not c.is_floating_point():
        assert torch.equal(c.double(), exact)
        return
    torch.testing.assert_close(c.double(), exact, rtol=TOLERANCE[c.dtype], atol=TOLERANCE[c.dtype] * max(1, k) ** 0.5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("a", "b"), LAYOUTS)
def test_every_schedule_and_layout(variant: str, a: str, b: str) -> None:
    kernel = product(torch.float32, a, b)
    for m, n, k in ((2, 17, 33), (3, 64, 64)) if variant == "rows" else SHAPES:
        check(kernel, small(variant), 1, m, n, k)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_of_16_bits(variant: str, dtype: torch.dtype) -> None:
    kernel = product(dtype, "k", "k")
    for m, n, k in ((4, 64, 128), (1, 7, 5)):
        check(kernel, small(variant), 1, m, n, k)


@pytest.mark.parametrize("variant", VARIANTS)
def test_batches(variant: str) -> None:
    kernel = product(torch.float32, "k", "n", batched=True)
    for batch, m, n, k in ((1, 3, 17, 16), (3, 4, 33, 40), (2, 2, 64, 64)):
        check(kernel, small(variant), batch, m, n, k)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_may_share_an_operand(variant: str) -> None:
    kernel = product(torch.float32, "k", "n", batched=True)
    a, b, c = operands(kernel, 3, 4, 33, 40)
    b = b[1:2].expand(3, -1, -1)
    interpreted(kernel, small(variant), (a, b, c, *integers(a, b, c)))
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_to_add_up_gives_zeros_and_no_rows_give_nothing(variant: str) -> None:
    kernel = product(torch.float32)
    check(kernel, small(variant), 1, 3, 5, 0)
    if variant != "rows":
        check(kernel, small(variant), 1, 0, 5, 4)
    check(kernel, small(variant), 1, 3, 0, 4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_positions_of_64_bits(variant: str) -> None:
    kernel = product(torch.float32, "m", "k", batched=True)
    facts = Facts(wide=True, exact=(("M", 4),) if variant == "rows" else ())
    check(kernel, small(variant), 2, 4, 40, 33, facts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_that_are_apart_and_columns_of_the_result(variant: str) -> None:
    check(product(torch.float32, "k", "n", c="m"), small(variant), 1, 4, 40, 48, pad=5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_products_are_kept_in_int32(variant: str) -> None:
    kernel = product(torch.int8, "k", "k", out=torch.int32)
    config = small(variant, k=32)
    for m, n, k in ((4, 33, 64), (2, 16, 70)):
        check(kernel, config, 1, m, n, k)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_operand_is_widened_on_its_way(variant: str) -> None:
    kernel = product(torch.float16, "k", "k", stored=(torch.float16, torch.int8))
    check(kernel, small(variant), 1, 4, 33, 64)
    check(kernel, small(variant), 1, 1, 16, 7)


def test_facts_decide_masks_and_alignment() -> None:
    kernel = product(torch.bfloat16, "k", "k")
    a, b, c = operands(kernel, 1, 64, 64, 128)
    facts = facts_of(kernel, (a, b, c, *integers(a, b, c)))
    assert facts.holding == {EVEN_K} and {"K", "a_stride_m", "b_stride_n"} <= facts.divisible
    config = small("tile", k=64)
    (launch,) = generate(kernel, config, facts, CHIP).launches
    assert "mask=ks" not in launch.source and {"A", "B", "C", "K", "a_stride_m"} <= dict(launch.divisible).keys()
    a, b, c = operands(kernel, 1, 64, 64, 120)
    (launch,) = generate(kernel, config, facts_of(kernel, (a, b, c, *integers(a, b, c))), CHIP).launches
    assert launch.source.count("mask=ks") == 2 and "a_stride_m" not in dict(launch.divisible)


def test_descriptors_are_used_where_the_facts_allow_them() -> None:
    kernel, config = product(torch.bfloat16, "k", "k"), small("persistent", k=64)

    def described(m: int, n: int, k: int, pad: int = 0) -> list[tuple[str, str]]:
        a, b, c = operands(kernel, 1, m, n, k, pad)
        launch = generate(kernel, config, facts_of(kernel, (a, b, c, *integers(a, b, c))), CHIP).launches[0]
        return [(a.name, a.type) for a in launch.arguments if a.kind is Kind.DESCRIPTOR]

    assert described(64, 64, 128) == [("desc_A", "tensordesc<bf16[16,64]>"), ("desc_B", "tensordesc<bf16[32,64]>")]
    assert not described(64, 64, 128, pad=1) and not described(64, 64, 100)


@pytest.mark.parametrize(("a", "b"), [("k", "n"), ("k", "k"), ("m", "n"), ("m", "k")])
def test_descriptors_of_all_four_transposes(a: str, b: str) -> None:
    kernel = product(torch.bfloat16, a, b)
    config = Config.of(variant="persistent", m=32, n=32, k=32, stages=2, warps=4, group=2)
    for m, n, k in ((64, 96, 64), (48, 80, 112), (16, 16, 16)):
        check(kernel, config, 1, m, n, k)


def test_the_sums_of_a_split_come_in_one_order() -> None:
    kernel = product(torch.float32)
    a, b, c = operands(kernel, 1, 20, 40, 100)
    results = []
    for _ in range(2):
        interpreted(kernel, small("split"), (a, b, c, *integers(a, b, c)))
        results.append(c.clone())
    assert torch.equal(*results)


def test_shared_blocks_that_overhang_are_written_up_to_the_last_row() -> None:
    kernel, rows = product(torch.float32), 48
    whole = torch.full((1, 64, 32), 7.0)
    a, b, c = torch.randn(1, rows, 128), torch.randn(1, 128, 32), whole[:, :rows]
    interpreted(kernel, small("stream", m=32), (a, b, c, *integers(a, b, c)))
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-4)
    assert torch.all(whole[:, rows:] == 7.0)


def test_few_rows_need_a_regime_that_knows_how_many() -> None:
    with pytest.raises(LoweringError, match="number of rows is not known"):
        generate(product(torch.float32), small("rows"), Facts(), CHIP)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_launch_that_overlaps_waits_first_of_all(variant: str) -> None:
    kernel, facts = product(torch.bfloat16), Facts(exact=(("M", 2),))
    for launch in generate(kernel, small(variant), facts, Chip(5, overlaps=True)).launches:
        body = launch.source[launch.source.index("def polytile_kernel") :].splitlines()[1:]
        assert launch.overlaps and body[:2] == ["    gdc_wait()", "    gdc_launch_dependents()"]
    for launch in generate(kernel, small(variant), facts, CHIP).launches:
        assert not launch.overlaps and "gdc" not in launch.source
