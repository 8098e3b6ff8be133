"""Masks that models make of positions are not read: they are none, or causal, or what is left of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.ir.attention import Attention


def positions(q: Tensor, k: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
    rows = torch.arange(q.shape[2], device=q.device) + offset
    return rows[None, None, :, None], torch.arange(k.shape[2], device=q.device)[None, None, None, :]


def nothing(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, _ = positions(q, k)
    return (rows >= 0).expand(q.shape[0], -1, q.shape[2], k.shape[2])


def causal(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, keys = positions(q, k)
    mask = rows.new_ones((), dtype=torch.bool) & (keys <= rows)
    return mask.expand(q.shape[0], -1, q.shape[2], k.shape[2])


def below(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, keys = positions(q, k)
    return (rows + 1 > keys) & (keys >= 0)


def after_a_cache(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, keys = positions(q, k, k.shape[2] - q.shape[2])
    return keys <= rows


def padded(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, _ = positions(q, k)
    return ((rows >= 0) & padding[:, None, None, :]).expand(q.shape[0], -1, q.shape[2], k.shape[2])


def window(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, keys = positions(q, k)
    return (keys <= rows) & (rows - keys < 5)


def shifted(q: Tensor, k: Tensor, padding: Tensor) -> Tensor:
    rows, keys = positions(q, k)
    return keys <= rows + 1


@pytest.mark.parametrize(
    ("mask", "causal_as", "reads"),
    [
        (nothing, "", False),
        (causal, "top left", False),
        (below, "top left", False),
        (after_a_cache, "bottom right", False),
        (padded, "", True),
        (window, "", False),
        (shifted, "", False),
    ],
)
def test_a_mask_of_positions_is_what_it_says(mask: Callable[..., Tensor], causal_as: str, reads: bool) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q, k, padding))

    call = torch.compile(attend, backend="polytile", dynamic=True, options={"tune": "off"})
    with torch.no_grad():
        for batch, rows, keys in ((2, 12, 12), (3, 7, 19), (2, 19, 23)):
            q, k, v = torch.randn(batch, 3, rows, 8), torch.randn(batch, 3, keys, 8), torch.randn(batch, 3, keys, 8)
            padding = torch.rand(batch, keys) < 0.7
            padding[:, 0] = True
            torch.testing.assert_close(call(q, k, v, padding), attend(q, k, v, padding))
    program = compiled_programs()[-1].program
    assert program is not None
    (found,) = (operation for operation in program.operations if isinstance(operation, Attention))
    assert found.causal == causal_as and (found.bias is not None) == reads
    assert (found.scores is not None) == (mask in (window, shifted))


def test_what_is_left_of_a_mask_keeps_its_repetitions() -> None:
    """The padding of a batch is one row of booleans for each, not one for each pair of a row and a key."""

    def attend(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=padded(q, k, padding))

    call = torch.compile(attend, backend="polytile", dynamic=True, options={"tune": "off"})
    q = torch.randn(2, 3, 12, 8)
    with torch.no_grad():
        call(q, q, q, torch.ones(2, 12, dtype=torch.bool))
    polytile.wait()
    program = compiled_programs()[-1].program
    assert program is not None
    (found,) = (operation for operation in program.operations if isinstance(operation, Attention))
    assert found.bias is not None
    assert [str(stride) for stride in found.bias.strides[1:3]] == ["0", "0"]
