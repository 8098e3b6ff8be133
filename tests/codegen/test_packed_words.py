"""Products by weights of 4 bits that ATen has packed for GPUs: every schedule against the numbers that the words stand for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from polytile import options
from polytile.candidates.entries import PythonEntry
from polytile.candidates.library import packed_int4
from polytile.candidates.sources import ProductRequest
from polytile.ir.program import Extern
from polytile.ir.template import PackedInt4
from polytile.matmul.triton.schedules import generate
from polytile.passes.pipeline import optimize
from polytile.schedule.facts import Facts
from tests.codegen.test_triton_gemm_prologue import flat, lowered
from tests.codegen.triton_gemm import CHIP, VARIANTS, facts_of, interpreted, small
from tests.frontend.lowering import lower

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, verify_ir=True):
        yield


def packed(numbers: Tensor, tiles: int) -> Tensor:
    """What `torch._convert_weight_to_int4pack` makes of numbers from 0 to 15 [n, k] on a GPU."""
    n, k = numbers.shape
    parts = numbers.view(n // 8, 8, k // (16 * tiles), tiles // 2, 4, 4, 2)  # tile, column, run, c, i, j, b
    bits = 4 * torch.arange(4)[:, None, None] + 16 * torch.arange(2)
    words = (parts << bits).sum((4, 6))
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    return signed.permute(0, 2, 1, 4, 3).reshape(n // 8, k // (16 * tiles), 32, tiles // 2)


class Case:
    """A weight [n, k] with random scales and zeros of groups, and rows of activations."""

    def __init__(self, m: int, n: int, k: int, tiles: int, group: int) -> None:
        torch.manual_seed(0)
        self.group, numbers = group, torch.randint(0, 16, (n, k))
        self.x, scales = torch.randn(m, k).bfloat16(), (torch.rand(k // group, n, 2) - 0.5).bfloat16()
        self.args = (self.x, packed(numbers, tiles), scales)
        scale, zero = scales.float().repeat_interleave(group, 0).unbind(-1)
        self.weight = ((numbers.t() - 8) * scale + zero).bfloat16()

    def product(self, x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm(x, words, self.group, scales)

    def check(self, result: Tensor) -> None:
        """Rounded to bfloat16 once, after sums in float32."""
        wanted = self.x.double() @ self.weight.double()
        torch.testing.assert_close(result.double(), wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))


CASES = {"tiles of 8": (4, 40, 384, 8, 128), "of 2, small groups": (3, 40, 192, 2, 32), "of 4, one row": (1, 24, 512, 4, 256)}
"""(m, n, k, tiles, group)."""
BLOCKS = {"tiles of 8": (16, 128), "of 2, small groups": (128,), "of 4, one row": (256,)}
"""Sizes of blocks along k: smaller than a run of words, of one and of several."""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES)
def test_every_schedule_reads_packed_words(case: str, variant: str) -> None:
    made = Case(*CASES[case])
    program, template = lowered(made.product, made.args, symbolic=False)
    assert template.int4 == PackedInt4(*CASES[case][3:])
    for block in BLOCKS[case]:
        kernel, given, result = flat(program, template, made.args)
        exact = (("M", len(made.x)),) if variant == "rows" else ()
        config = small(variant, k=block, **({"m": len(made.x)} if variant == "rows" else {}))
        interpreted(kernel, config, given, Facts(wide=True, exact=exact) if block == 256 else None)
        made.check(result)


def test_a_program_loads_a_word_once_for_eight_elements() -> None:
    made = Case(4, 64, 256, 8, 128)
    program, template = lowered(made.product, made.args, symbolic=False)
    kernel, given, _ = flat(program, template, made.args)
    for block, words in ((128, True), (64, False)):
        text = generate(kernel, small("tile", k=block), facts_of(kernel, given), CHIP).launches[0].source
        assert ("[BLOCK_N, BLOCK_K]).T" in text) == words


def test_scales_of_a_group_are_loaded_once_for_a_block() -> None:
    made = Case(4, 64, 256, 8, 128)
    program, template = lowered(made.product, made.args, symbolic=False)
    kernel, given, _ = flat(program, template, made.args)
    for block, once in ((64, True), (16, True), (256, False)):
        text = generate(kernel, small("tile", k=block), facts_of(kernel, given), CHIP).launches[0].source
        loads = [line for line in text.splitlines() if "tl.load(B1" in line]
        if block == 256:  # words: a scale for each
            assert not loads and "(k + chunk) // 128" in text
        else:
            assert loads and all("bp1_by_64" in line and "(bp1 // " not in line for line in loads) == once


def test_products_by_weights_of_changing_sizes_are_the_librarys() -> None:
    made = Case(4, 64, 256, 8, 128)
    program = optimize(lower(made.product, *made.args)).program
    assert [type(operation) for operation in program.operations] == [Extern]


def test_the_librarys_call_gets_its_operands_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has no kernel here: one that computes with the numbers stands for it."""
    made = Case(4, 40, 384, 8, 128)
    program, template = lowered(made.product, made.args, symbolic=False)
    kernel, given, result = flat(program, template, made.args)

    def stand_in(x: Tensor, words: Tensor, group: int, scales: Tensor) -> Tensor:
        assert group == 128 and all(torch.equal(*each) for each in zip((x, words, scales), made.args, strict=True))
        return x @ made.weight

    monkeypatch.setattr(torch, "_weight_int4pack_mm", stand_in)
    (candidate,) = packed_int4.candidates(ProductRequest(kernel, "product", torch.device("cuda"), False))
    entry = candidate.entry()
    assert isinstance(entry, PythonEntry)
    entry.call(*given)
    made.check(result)
    assert not packed_int4.candidates(ProductRequest(kernel, "product", torch.device("cpu"), False))
