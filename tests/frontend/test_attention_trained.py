"""scaled_dot_product_attention with gradients: one operator each way, whose kernels are chosen apart; and under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention import whole
from polytile.frontend.attention.trained import TRAINED
from polytile.ir.attention import Attention
from tests.behaviour.helpers import compiled

BF16 = torch.bfloat16


Mask = Callable[[Tensor, Tensor], Tensor]
"""A mask or bias of the lengths (batch,) of sequences, and of any tensor with as many rows as keys."""


def attentions(mask: Mask | None, causal: str = "") -> list[Attention]:
    """Both passes of the operator, whose results and gradients agree with float64: by the operator itself, which
    only a GPU's tensors become, with keys that two heads of q share, laid out as by a projection."""

    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        bias = mask(lengths, k).expand(*q.shape[:3], k.shape[2]) if mask is not None else None
        return TRAINED(q, k, v, bias, 0.3, causal)[0]

    before, call = compiled_programs(), compiled(attend, tune="off")
    for batch, rows in ((5, 33), (3, 17)):
        given = [torch.randn(batch, rows, heads, 16).transpose(1, 2) for heads in (4, 2, 2)]
        lengths = torch.arange(batch) * 7 % rows
        leaves, exact = [each.clone().requires_grad_() for each in given], [each.double().requires_grad_() for each in given]
        seen = mask(lengths, given[1]) if mask is not None else None
        seen = seen.double() if seen is not None and seen.dtype != torch.bool else seen
        how: dict[str, Any] = {"is_causal": bool(causal), "scale": 0.3, "enable_gqa": True}
        out, wanted = call(*leaves, lengths), F.scaled_dot_product_attention(*exact, seen, **how)
        direction = torch.randn_like(out)
        found = torch.autograd.grad(out, leaves, direction)
        pairs = [(out, wanted), *zip(found, torch.autograd.grad(wanted, exact, direction.double()), strict=True)]
        for mine, right in pairs:
            assert_close(mine.double(), right, rtol=1e-4, atol=1e-5)
    return made_since(before)


def made_since(before: list[Any]) -> list[Attention]:
    """The attentions of programs that have been compiled since."""
    programs = [each.program for each in compiled_programs() if each not in before]
    return [operation for each in programs if each for operation in each.operations if isinstance(operation, Attention)]


@pytest.mark.parametrize("causal", ["", "top left", "bottom right"])
def test_both_passes_are_attentions_of_one_family_each(causal: str) -> None:
    found = attentions(None, causal)
    assert [each.gradients is not None for each in found] == [False, True]
    assert [each.causal for each in found] == [causal] * 2


def padding(lengths: Tensor, keys: Tensor) -> Tensor:
    """Hides all keys of the first sequence."""
    return torch.arange(keys.shape[2], device=keys.device) < lengths[:, None, None, None]


def window(lengths: Tensor, keys: Tensor) -> Tensor:
    places = torch.arange(keys.shape[2], device=keys.device)
    return padding(lengths + 1, keys) & (places[:, None] - places < 9) & (places[:, None] >= places)


def alibi(lengths: Tensor, keys: Tensor) -> Tensor:
    places = torch.arange(keys.shape[2], device=keys.device)
    return -(places[:, None] - places).abs() * torch.tensor([0.5, 0.25, 0.125, 0.0625], device=keys.device)[:, None, None]


def bidirectional(lengths: Tensor, keys: Tensor) -> Tensor:
    """As transformers makes it: a value for each row and key."""
    return padding(lengths, keys) & (torch.arange(keys.shape[2], device=keys.device)[:, None] >= 0)


@pytest.mark.parametrize("mask", [padding, bidirectional])
def test_a_mask_that_all_rows_share_has_no_value_for_each_row(mask: Mask) -> None:
    views = [each.bias for each in attentions(mask)]
    assert [view is None or view.strides[1:3] == (0, 0) for view in views] == [True] * 2


@pytest.mark.parametrize("mask", [window, alibi])
def test_both_compute_masks_that_the_graph_makes(mask: Mask) -> None:
    forward, backward = attentions(mask)
    assert forward.scores is not None and backward.scores is not None and forward.bias is backward.bias is None


def test_a_causal_mask_that_the_graph_makes_is_the_attribute() -> None:
    found = attentions(lambda lengths, keys: torch.ones(keys.shape[2], keys.shape[2], dtype=torch.bool).tril())
    assert [(each.causal, each.bias, each.scores) for each in found] == [("top left", None, None)] * 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_both_read_masks_that_a_call_is_given(dtype: torch.dtype) -> None:
    """A numeric one without its repetitions: a row hides the same keys in each head."""
    before = compiled_programs()
    call = compiled(lambda q, bias: TRAINED(q, q, q, bias.expand(*q.shape[:3], -1), None, "")[0], tune="off")
    q = torch.randn(2, 3, 20, 16, requires_grad=True)
    bias = torch.randn(2, 1, 20, 20) > -1 if dtype == torch.bool else torch.randn(2, 1, 20, 20)
    out, wanted = call(q, bias), F.scaled_dot_product_attention(q, q, q, bias)
    assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    assert_close(*(torch.autograd.grad(each.square().sum(), q)[0] for each in (out, wanted)), rtol=1e-3, atol=1e-4)
    views = [each.bias for each in made_since(before)]
    assert [view is not None and view.dtype == dtype and view.strides[1] == 0 for view in views] == [True] * 2


def chosen(
    monkeypatch: pytest.MonkeyPatch, function: Any, dtype: torch.dtype = BF16, keys: int = 64,
    masked: torch.dtype | None = None, **how: Any,
) -> bool:  # fmt: skip
    """Whether the operator runs for q of 64 rows on a GPU."""
    names: list[str] = []

    def noted(name: str) -> Any:
        return lambda query, *rest, **others: names.append(name) or (query,)

    monkeypatch.setattr(whole, "TRAINED", noted("trained"))
    monkeypatch.setattr(whole, "scaled_dot_product_attention", noted("PyTorch's"))
    with FakeTensorMode():
        q, k = (torch.empty(2, 4, rows, 64, device="cuda", dtype=dtype, requires_grad=True) for rows in (64, keys))
        mask = {"attn_mask": torch.empty(64, keys, device="cuda", dtype=masked)} if masked else {}
        function(q, k, k, **mask, **how)
    return names == ["trained"]


def test_calls_without_dropout_on_a_gpu_become_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, whole.attention, is_causal=True) and chosen(monkeypatch, whole.attention, torch.float16, 65)
    assert chosen(monkeypatch, whole.attention, torch.float32)
    assert chosen(monkeypatch, whole.attention, masked=torch.bool)
    assert chosen(monkeypatch, whole.attention, masked=BF16)
    assert not chosen(monkeypatch, whole.attention, keys=65, is_causal=True)
    assert not chosen(monkeypatch, whole.attention, dropout_p=0.1)
    assert not chosen(monkeypatch, whole.attention_inside, is_causal=True)


@pytest.mark.parametrize("shape", [(4, 20, 20), (1, 1, 1, 20), (2, 1, 20, 1)])
def test_a_bias_has_a_gradient_where_it_is_wanted(shape: tuple[int, ...]) -> None:
    def attend(q: Tensor, bias: Tensor) -> Tensor:
        return TRAINED(q, q, q, (bias * 2).expand(2, 4, 20, 20), None, "")[0]

    before, call = compiled_programs(), compiled(attend, tune="off")
    q, bias = torch.randn(2, 4, 20, 16, requires_grad=True), torch.randn(shape, requires_grad=True)
    wanted = F.scaled_dot_product_attention(q, q, q, (bias * 2).expand(2, 4, 20, 20))
    direction = torch.randn_like(wanted)
    found, right = (torch.autograd.grad(out, (q, bias), direction) for out in (call(q, bias), wanted))
    for mine, exact in zip(found, right, strict=True):
        assert_close(mine, exact, rtol=1e-4, atol=1e-5)
    written = [each.gradients.dscores is not None for each in made_since(before) if each.gradients is not None]
    assert written == [True]


@pytest.mark.parametrize("trains", [False, True])
def test_autocast_has_it_compute_in_its_dtype(trains: bool) -> None:
    given = [torch.randn(2, 4, 24, 16, requires_grad=trains) for _ in range(3)]
    with torch.autocast("cpu", BF16):
        mine, wanted = compiled(F.scaled_dot_product_attention, tune="off")(*given), F.scaled_dot_product_attention(*given)
    assert mine.dtype == wanted.dtype == BF16
    assert_close(mine, wanted, rtol=2e-2, atol=2e-2)
