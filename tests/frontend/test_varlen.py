"""torch.nn.attention.varlen through the backend, against attention of each sequence in float64. Eager has it on GPUs alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import polytile
from polytile.ir.attention import attend
from tests.behaviour.helpers import multikernels

varlen = pytest.importorskip("torch.nn.attention.varlen")

Lengths = Sequence[int]
ROWS, KEYS = (5, 0, 1, 20, 3), (5, 7, 0, 33, 1)
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters else {}
"""Torch has heads that share keys from 2.12 on."""


def starts(lengths: Lengths) -> torch.Tensor:
    return pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()


def inputs(rows: Lengths, keys: Lengths, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    q = torch.randn(sum(rows), 4, 16, dtype=dtype)
    return q, *(torch.randn(sum(keys), 2 if GROUPED else 4, 16, dtype=dtype) for _ in range(2))


def expected(operands: Sequence[torch.Tensor], rows: Lengths, keys: Lengths, window: tuple[int, int]) -> torch.Tensor:
    """Each sequence by itself, in float64."""
    parts = [
        (each.double().transpose(0, 1).unsqueeze(0).split(n, 2))
        for each, n in zip(operands, (rows, keys, keys), strict=True)
    ]
    found = [attend(*each, scale=None, window=window)[0] for each in zip(*(map(list, parts)), strict=True)]
    return torch.cat(found, 2)[0].transpose(0, 1)


def call(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, window: tuple[int, int] = (-1, 0)
) -> torch.Tensor:
    out: torch.Tensor = varlen.varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, window_size=window, **GROUPED)
    return out * 2


def test_one_compile_serves_all_lengths_and_batches() -> None:
    compiled = torch.compile(call, backend="polytile", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True), torch.no_grad():
        for rows, keys in ((ROWS, KEYS), ((2, 3), (2, 3)), ((0, 0, 9), (4, 0, 30)), ((7, 6, 5, 4), (0, 6, 9, 9))):
            q, k, v = inputs(rows, keys)
            out = compiled(q, k, v, starts(rows), starts(keys), max(rows), max(keys))
            torch.testing.assert_close(out.double(), 2 * expected((q, k, v), rows, keys, (-1, 0)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [(-1, -1), (4, 2), (3, 0)], ids=str)
def test_windows_and_their_gradients(window: tuple[int, int]) -> None:
    """Lengths of 0 and 1 among them; rows of more than the keys see none."""
    q, k, v = (each.requires_grad_() for each in inputs(ROWS, KEYS))
    wide = [each.detach().double().requires_grad_() for each in (q, k, v)]
    compiled = torch.compile(call, backend="polytile")
    out = compiled(q, k, v, starts(ROWS), starts(KEYS), max(ROWS), max(KEYS), window)
    right = 2 * expected(wide, ROWS, KEYS, window)
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for one, other in zip(found, torch.autograd.grad(right, wide, grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    assert {kernel.spec.family for kernel in multikernels()} >= {"attention", "attention_backward"}


def test_the_report_names_it_and_the_logarithm_is_as_in_eager() -> None:
    """FlashAttention gives inf in rows that see no key."""

    def with_lse(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> Any:
        aux = varlen.AuxRequest(lse=True)
        return varlen.varlen_attn(q, k, v, cu_q, cu_k, max(ROWS), max(KEYS), return_aux=aux, **GROUPED)

    given = (*inputs(ROWS, KEYS, torch.bfloat16), starts(ROWS), starts(KEYS))
    with torch.no_grad():
        out, lse = torch.compile(with_lse, backend="polytile")(*given)
    assert lse.shape == (4, sum(ROWS)) and lse[:, 5].eq(torch.inf).all() and lse[:, :5].isfinite().all()
    torch.testing.assert_close(out.double(), expected(given[:3], ROWS, KEYS, (-1, -1)), rtol=2e-2, atol=2e-2)
    assert "polytile.varlen_attention" in str(polytile.explain(with_lse, *given))


def test_nested_tensors_by_their_values_and_offsets() -> None:
    """PyTorch breaks the graph at scaled_dot_product_attention of nested tensors on a CPU; this is how to write it."""
    rows = [each for each in ROWS if each]
    given = [torch.nested.nested_tensor(list(torch.randn(sum(rows), 2, 16).split(rows)), layout=torch.jagged) for _ in range(3)]

    def attend(q: Any, k: Any, v: Any) -> Any:
        starts = q.offsets()
        out = varlen.varlen_attn(q.values(), k.values(), v.values(), starts, starts, max(rows), max(rows))
        return torch.nested.nested_tensor_from_jagged(out, starts)

    with torch.no_grad():
        out = torch.compile(attend, backend="polytile", dynamic=True, fullgraph=True)(*given)
    right = expected([each.values() for each in given], rows, rows, (-1, -1))
    torch.testing.assert_close(out.values().double(), right, rtol=1e-5, atol=1e-5)


def test_flash_attention_of_packed_sequences_by_its_own_operator() -> None:
    """As nested tensors have it on a GPU."""
    q, k, v = inputs(ROWS, KEYS, torch.bfloat16)

    def attend(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> Any:
        given = cu_q, cu_k, max(ROWS), max(KEYS), 0.0, True, False
        return torch.ops.aten._flash_attention_forward(q, k, v, *given, scale=0.3)[0] + 1

    with torch.no_grad():
        out = torch.compile(attend, backend="polytile")(q, k, v, starts(ROWS), starts(KEYS))
    right = expected((q * 1.2, k, v), ROWS, KEYS, (-1, 0)) + 1
    torch.testing.assert_close(out.double(), right, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif("block_table" not in varlen.varlen_attn.__kwdefaults__, reason="needs torch 2.12")
def test_pages_of_a_cache() -> None:
    rows, keys, page = (1, 3, 2, 1), (9, 3, 0, 1), 4
    q, _, _ = inputs(rows, keys)
    cache_k, cache_v = (torch.randn(6, page, 2, 16) for _ in range(2))
    table = torch.tensor([[5, 0, 3], [2, 9, 9], [9, 9, 9], [1, 9, 9]], dtype=torch.int32)  # there is no page 9

    def paged(q: Any, k: Any, v: Any, cu_q: Any, used: Any, table: Any) -> Any:
        more = {"seqused_k": used, "block_table": table, "window_size": (-1, 0), "enable_gqa": True}
        return varlen.varlen_attn(q, k, v, cu_q, None, max(rows), 12, **more)

    with torch.no_grad():
        used = torch.tensor(keys, dtype=torch.int32)
        out = torch.compile(paged, backend="polytile", dynamic=True)(q, cache_k, cache_v, starts(rows), used, table)
    k, v = (
        torch.cat([each[table[b, : -(-n // page)].long()].flatten(0, 1)[:n] for b, n in enumerate(keys)])
        for each in (cache_k, cache_v)
    )
    torch.testing.assert_close(out.double(), expected((q, k, v), rows, keys, (-1, 0)), rtol=1e-5, atol=1e-5)
