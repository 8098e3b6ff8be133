"""Attention whose keys and values are gathered from pages of a cache, as people write it, against eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import polytile

BATCH, SLOTS, COUNT, HEADS, WIDTH = 3, 5, 10, 2, 16


def masked(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Keys before the length of each sequence."""
    seen = torch.arange(k.shape[2])[None, :] < lengths[:, None]
    return scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :], enable_gqa=True)


def rows_first(q: Any, cache_k: Any, cache_v: Any, table: Any, lengths: Any) -> Any:
    k, v = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (cache_k, cache_v))
    return masked(q, k, v, lengths)


def heads_first(q: Any, cache_k: Any, cache_v: Any, table: Any, lengths: Any) -> Any:
    k, v = (
        cache[table].permute(0, 2, 1, 3, 4).reshape(q.shape[0], cache.shape[1], -1, cache.shape[3])
        for cache in (cache_k, cache_v)
    )
    return masked(q, k, v, lengths)


def slots(q: Any, cache_k: Any, cache_v: Any, table: Any, lengths: Any) -> Any:
    """A number for each key."""
    return masked(q, cache_k[table].transpose(1, 2), cache_v[table].transpose(1, 2), lengths)


SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows first": (rows_first, (COUNT, 8, HEADS, WIDTH)),
    "heads first": (heads_first, (COUNT, HEADS, 8, WIDTH)),
    "slots": (slots, (COUNT, HEADS, WIDTH)),
}


def inputs(shape: tuple[int, ...], batch: int = BATCH, count: int = SLOTS) -> tuple[torch.Tensor, ...]:
    caches = (torch.randn(shape) for _ in range(2))
    table = torch.randint(-COUNT, COUNT, (batch, count))  # a negative page counts from the end
    most = count * (shape[1] if len(shape) == 4 and shape[2] == HEADS else shape[2] if len(shape) == 4 else 1)
    lengths = torch.linspace(0, most, batch).long()
    return torch.randn(batch, 2 * HEADS, 2, WIDTH), *caches, table, lengths


@pytest.mark.parametrize("name", SPELLINGS)
def test_pages_are_read_where_they_are(name: str) -> None:
    """One compile for all batches and lengths, 0 and 1 among them."""
    function, shape = SPELLINGS[name]
    compiled = torch.compile(function, backend="polytile", dynamic=True)
    with torch.no_grad():
        with torch._dynamo.config.patch(error_on_recompile=True):
            for batch, count in ((BATCH, SLOTS), (2, 3), (6, 4)):
                given = inputs(shape, batch, count)
                wide = [each.double() if each.is_floating_point() else each for each in given]
                torch.testing.assert_close(compiled(*given).double(), function(*wide), rtol=1e-5, atol=1e-5)
        text = str(polytile.explain(function, *inputs(shape)))
        assert "polytile.paged_attention" in text and "aten.index" not in text


def test_a_page_that_is_not_there_is_an_error() -> None:
    q, cache_k, cache_v, table, lengths = inputs((COUNT, 8, HEADS, WIDTH))
    table[1, 2] = COUNT
    compiled = torch.compile(rows_first, backend="polytile")
    with torch.no_grad(), pytest.raises(IndexError):
        compiled(q, cache_k, cache_v, table, lengths)


def test_tables_that_differ_are_gathered() -> None:
    def apart(q: Any, cache_k: Any, cache_v: Any, table: Any, lengths: Any) -> Any:
        k, v = cache_k[table].flatten(1, 2).transpose(1, 2), cache_v[table + 0].flatten(1, 2).transpose(1, 2)
        return masked(q, k, v, lengths)

    given = inputs((COUNT, 8, HEADS, WIDTH))
    with torch.no_grad():
        out = torch.compile(apart, backend="polytile")(*given)
        torch.testing.assert_close(out, apart(*given), rtol=1e-4, atol=1e-5)
        assert "paged" not in str(polytile.explain(apart, *given))
