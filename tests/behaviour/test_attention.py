"""Compiled attention is eager's at all lengths and sizes of heads, however operands lie and whatever stands in masked places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs
from tests.behaviour.helpers import assert_as_exact, compiled, multikernels

INF, NAN = float("inf"), float("nan")


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_hand(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.25).masked_fill(~kept, -INF).softmax(-1) @ v


def check(call: Callable[..., Tensor], function: Callable[..., Tensor], *given: Tensor) -> None:
    """Results, and how they lie in memory."""
    assert_as_exact(call(*given), function(*given), function(*(each.double() for each in given)), [each.shape for each in given])


def heads(batch: int, rows: int, size: int, count: int = 2) -> Tensor:
    return torch.randn(batch, count, rows, size)


@pytest.mark.parametrize("function", [plain, causal], ids=lambda function: function.__name__)
def test_lengths_and_sizes_of_heads(function: Callable[..., Tensor]) -> None:
    call = compiled(function)
    for batch, rows, keys, size in ((2, 24, 24, 16), (2, 33, 17, 3), (3, 9, 65, 512), (2, 1, 20, 16), (2, 20, 1, 8), (1, 5, 6, 1),
                                    (2, 0, 5, 8), (2, 5, 0, 8)):  # fmt: skip
        with torch.no_grad():
            check(call, function, heads(batch, rows, size), heads(batch, keys, size), heads(batch, keys, size))


def decoded(keys: Tensor, values: Tensor, at: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keys.index_copy_(2, at, k * 2)
    values.index_copy_(2, at, v)
    seen = torch.arange(keys.shape[2]) <= at
    return masked(q, keys, values, seen[None, None, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_reads_a_cache_where_an_entry_was_written(dtype: torch.dtype) -> None:
    run = compiled(decoded, tune="off", wrapper="python")
    for length, place in ((9, 4), (20, 0), (33, 32)):
        keys, values, q, k, v = (heads(2, rows, 8, 3).to(dtype) for rows in (length, length, 1, 1, 1))
        at, theirs = torch.tensor([place]), (keys.clone(), values.clone())
        got, want = run(keys, values, at, q, k, v), decoded(*theirs, at, q, k, v)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert torch.equal(keys, theirs[0]) and torch.equal(values, theirs[1])
    (program,) = compiled_programs()
    assert "aten.index_put" in program.source and "aten.copy_" not in program.source


class Projected(torch.nn.Module):
    """Attention of projections with biases, two heads of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (projection(x).unflatten(-1, (2, 8)).transpose(1, 2) for projection in self.projections)
        return plain(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projections_store_their_rows_as_attention_reads_them(dtype: torch.dtype) -> None:
    module = Projected().to(dtype)
    run = compiled(module, tune="off", wrapper="python")
    with torch.no_grad():
        for batch, rows in ((2, 24), (3, 7)):
            x = torch.randn(batch, rows, 16, dtype=dtype)
            torch.testing.assert_close(run(x), module(x), rtol=2e-2, atol=2e-2)
    (program,) = compiled_programs()
    assert program.source.count("# aten.addmm.default, polytile.attention.default") == 3, "each product adds its bias"
    assert program.source.count("# polytile.attention.default") == 1, "nothing is stored anew for attention"


def test_views_repetitions_and_misaligned_memory() -> None:
    call = compiled(plain)
    k, v = heads(2, 40, 16), heads(2, 40, 16)
    memory = torch.randn(1 + 2 * 40 * 3 * 32)
    qkv = memory[1:].view(2, 40, 3, 2, 16).permute(2, 0, 3, 1, 4)
    with torch.no_grad():
        check(call, plain, *qkv)
        check(call, plain, k[:, :, ::2], k, v)
        check(call, plain, k, k[:1].expand(2, -1, -1, -1), v[:, :1].expand(-1, 2, -1, -1))
        check(call, plain, *(x.transpose(2, 3).contiguous().transpose(2, 3) for x in (k, v, k)))


def test_rows_without_a_key_and_what_stands_in_masked_places() -> None:
    """A row that sees no key is 0 in scaled_dot_product_attention, and NaN after a softmax written out."""
    q, k, v = heads(2, 24, 16), heads(2, 30, 16), heads(2, 30, 16)
    mask = torch.rand(2, 1, 24, 30) < 0.7
    mask[:, :, 3], mask[..., 7] = False, False
    bias = torch.zeros(2, 1, 24, 30).masked_fill(~mask, -INF)
    broken = k.clone()
    broken[:, :, 7] = NAN
    infinite = k.clone()
    infinite[:, :, 7] = INF
    with torch.no_grad():
        for function, given in ((masked, mask), (masked, bias), (by_hand, mask)):
            call = compiled(function)
            got = call(q, k, v, given)
            torch.testing.assert_close(got, function(q, k, v, given), rtol=1e-5, atol=1e-5, equal_nan=True)
            empty = torch.zeros if function is masked else torch.ones
            assert torch.equal(got[:, :, 3].isnan(), empty(2, 2, 16, dtype=torch.bool))
            for keys in (broken, infinite):
                got, wanted = call(q, keys, v, given), function(q, keys, v, given)
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_one_program_serves_groups_of_heads_and_both_precisions() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2, enable_gqa=True)

    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            call = compiled(grouped)
            for rows in (16, 40):
                q, k, v = (heads(2, rows, 16, n).to(dtype) for n in (6, 2, 2))
                check(call, grouped, q, k, v)
    report = polytile.explain(call, q, k, v)
    assert [row.how for row in report.operators if row.operator == "polytile.attention.default"] == ["template"]
    found = [kernel for kernel in multikernels() if kernel.spec.family == "attention"]
    assert len(found) == 2
    for kernel in found:
        assert {candidate.origin for candidate in kernel.candidates} >= {"library", "sdpa", "unfused", "cpp"}


@pytest.mark.parametrize("how", [{"interpret": True, "sources": "triton"}, {"sources": "cpp"}], ids=["triton", "cpp"])
def test_generated_kernels_serve_masks_and_groups_of_heads(how: dict[str, Any]) -> None:
    """In C++, and in Triton under its interpreter, by prediction alone."""

    def both(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        one = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return one, F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)

    call = compiled(both, **how, tune="off")
    q, k, v, mask = heads(2, 20, 16, 4), heads(2, 20, 16), heads(2, 20, 16), torch.rand(2, 1, 20, 20) < 0.7
    mask[:, :, 3] = False
    with torch.no_grad():
        assert_as_exact(call(q, k, v, mask), both(q, k, v, mask), both(q.double(), k.double(), v.double(), mask))
    chosen = {decision.candidate.split()[0] for decision in polytile.explain(call, q, k, v, mask).decisions}
    assert chosen <= {"flash", "split"}, chosen


def test_what_is_no_attention_is_listed_with_the_reason() -> None:
    def summed_up(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cumsum(q @ k.transpose(-1, -2), -1).softmax(-1) @ v

    q, k, v = (heads(2, rows, 16) for rows in (20, 24, 24))
    call = compiled(summed_up, tune="off")
    with torch.no_grad():
        check(call, summed_up, q, k, v)
        reasons = {row.reason for row in polytile.explain(call, q, k, v).operators if row.operator == "aten.bmm.default"}
    assert "no attention: aten.cumsum.default stands between the product and the softmax" in reasons
