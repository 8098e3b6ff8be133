"""scaled_dot_product_attention with gradients: one operator each way, whose kernels are chosen apart; and under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention import whole
from polytile.frontend.attention.trained import TRAINED
from tests.behaviour.helpers import compiled

BF16 = torch.bfloat16


@pytest.mark.parametrize("causal", [False, True])
def test_both_passes_are_attentions_of_one_family_each(causal: bool) -> None:
    """By the operator itself, which only a GPU's tensors become: keys that two heads of q share, laid out as by a projection."""
    before = compiled_programs()
    call = compiled(lambda q, k, v: TRAINED(q, k, v, 0.3, causal)[0], tune="off")
    for batch, rows in ((5, 33), (3, 17)):
        given = [torch.randn(batch, rows, heads, 16).transpose(1, 2) for heads in (4, 2, 2)]
        leaves, exact = [each.clone().requires_grad_() for each in given], [each.double().requires_grad_() for each in given]
        out, wanted = call(*leaves), F.scaled_dot_product_attention(*exact, is_causal=causal, scale=0.3, enable_gqa=True)
        direction = torch.randn_like(out)
        found = torch.autograd.grad(out, leaves, direction)
        pairs = [(out, wanted), *zip(found, torch.autograd.grad(wanted, exact, direction.double()), strict=True)]
        for mine, right in pairs:
            assert_close(mine.double(), right, rtol=1e-4, atol=1e-5)
    families = [[kernel.spec.family for kernel, _ in each.calls] for each in compiled_programs() if each not in before]
    assert families == [["attention"], ["attention_backward"]]


def chosen(monkeypatch: pytest.MonkeyPatch, function: Any, dtype: torch.dtype = BF16, keys: int = 64, **how: Any) -> bool:
    """Whether the operator runs for q of 64 rows on a GPU."""
    names: list[str] = []

    def noted(name: str) -> Any:
        return lambda query, *rest, **others: names.append(name) or (query,)

    monkeypatch.setattr(whole, "TRAINED", noted("trained"))
    monkeypatch.setattr(whole, "scaled_dot_product_attention", noted("PyTorch's"))
    with FakeTensorMode():
        q, k = (torch.empty(2, 4, rows, 64, device="cuda", dtype=dtype, requires_grad=True) for rows in (64, keys))
        function(q, k, k, **how)
    return names == ["trained"]


def test_calls_without_mask_and_dropout_on_a_gpu_become_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, whole.attention, is_causal=True) and chosen(monkeypatch, whole.attention, torch.float16, 65)
    assert not chosen(monkeypatch, whole.attention, torch.float32)
    assert not chosen(monkeypatch, whole.attention, keys=65, is_causal=True)
    assert not chosen(monkeypatch, whole.attention, dropout_p=0.1)
    assert not chosen(monkeypatch, whole.attention, attn_mask=torch.ones(64, 64, dtype=torch.bool))
    assert not chosen(monkeypatch, whole.attention_inside, is_causal=True)


@pytest.mark.parametrize("trains", [False, True])
def test_autocast_has_it_compute_in_its_dtype(trains: bool) -> None:
    given = [torch.randn(2, 4, 24, 16, requires_grad=trains) for _ in range(3)]
    with torch.autocast("cpu", BF16):
        mine, wanted = compiled(F.scaled_dot_product_attention, tune="off")(*given), F.scaled_dot_product_attention(*given)
    assert mine.dtype == wanted.dtype == BF16
    assert_close(mine, wanted, rtol=2e-2, atol=2e-2)
