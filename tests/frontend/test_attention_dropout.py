"""Attention with dropout that is written out is one operator each way in training where kernels draw eager's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polytile import options
from polytile.frontend.attention import dropout
from polytile.frontend.attention.dropout import STATE, threads_of
from polytile.frontend.attention.operator import OF_BACKWARD, WITH_LSE
from polytile.frontend.attention.patterns import REASON
from polytile.ir.dropout import Dropout, kept
from tests.frontend.test_attention_joint import check, is_real, operators, step, traced

P = 0.3
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    """Triton's interpreter draws the numbers of a GPU."""
    with options.override(interpret=True):
        yield


def drawn(weights: Tensor) -> Tensor:
    """Dropout as the graphs of a GPU have it: one operator."""
    return torch.native_dropout(weights, P, True)[0]


def nanogpt(q: Tensor, k: Tensor, v: Tensor, drop: Callable[[Tensor], Tensor] = drawn) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(~torch.ones(q.shape[-2], k.shape[-2]).bool().tril(), -torch.inf)
    return drop(F.softmax(scores, dim=-1)) @ v


def hf_eager(q: Tensor, k: Tensor, v: Tensor, drop: Callable[[Tensor], Tensor] = drawn) -> Tensor:
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(drop(weights), v).transpose(1, 2).contiguous()


def flat(q: Tensor, k: Tensor, v: Tensor, drop: Callable[[Tensor], Tensor] = drawn) -> Tensor:
    """nn.MultiheadAttention's: heads and batches are one dimension."""
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return torch.bmm(drop(torch.softmax(torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2)), -1)), v)


def einsum(q: Tensor, k: Tensor, v: Tensor, drop: Callable[[Tensor], Tensor] = drawn) -> Tensor:
    return torch.einsum("bhmn,bhnd->bhmd", drop(torch.einsum("bhmd,bhnd->bhmn", q, k).div(4).softmax(-1)), v)


def tokens(q: Tensor, k: Tensor, v: Tensor, drop: Callable[[Tensor], Tensor] = drawn) -> Tensor:
    """What a projection gives: the heads of a token side by side."""
    x = torch.stack([each.transpose(1, 2) for each in (q, k, v)], 2).flatten(2)
    q, k, v = (each.transpose(1, 2) for each in x.unflatten(-1, (3, 3, 16)).unbind(2))
    return nanogpt(q, k, v, drop).transpose(1, 2).flatten(2)


def operands(length: int = 40) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(2, 3, length, 16) for _ in range(3)]


def with_its_mask(function: Any, shape: tuple[int, ...]) -> Callable[..., Tensor]:
    """The function with the mask that the seed of `check_spelling` gives."""
    torch.manual_seed(5)
    state = torch.empty(2, dtype=torch.int64).random_()
    how = Dropout(P, 4, threads_of(CPU))
    return lambda *given: function(*given, drop=lambda weights: weights * kept(how, state, shape).view(weights.shape) / (1 - P))


@pytest.mark.parametrize("function", [nanogpt, hf_eager, flat, einsum, tokens])
def test_a_spelling_is_one_operator_each_way(function: Any) -> None:
    given = operands()

    def seeded(*arguments: Any) -> Any:
        return function(*arguments)

    torch.manual_seed(5)
    found, (forward, backward) = traced(seeded, given)
    check(found, step(with_its_mask(function, (2, 3, 40, 40)), given))
    assert operators(forward) == [WITH_LSE] and operators(backward) == [OF_BACKWARD]
    targets = [node.target for graph in (forward, backward) for node in graph.graph.nodes]
    assert targets.count(STATE) == 1 and torch.ops.aten.native_dropout.default not in targets
    kept_sizes = [n.meta["val"].numel() for n in backward.graph.find_nodes(op="placeholder") if is_real(n.meta["val"])]
    assert all(size < 2 * 3 * 40 * 40 for size in kept_sizes), "weights are saved"


def test_both_passes_of_a_checkpoint_draw_the_same_numbers() -> None:
    given = operands()
    torch.manual_seed(5)
    found, graphs = traced(lambda *each: checkpoint(nanogpt, *each, use_reentrant=False), given)
    check(found, step(with_its_mask(nanogpt, (2, 3, 40, 40)), given))
    targets = [node.target for graph in graphs for node in graph.graph.nodes]
    assert targets.count(STATE) == 1


def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return drawn(drawn(torch.softmax(q @ k.transpose(-1, -2), -1))) @ v


def mask_used(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights, mask = torch.native_dropout(torch.softmax(q @ k.transpose(-1, -2), -1), P, True)
    return weights @ v, torch.where(mask, v.sum(), 0)


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Dropped in another order of its elements than the softmax's."""
    weights = torch.softmax(q @ k.transpose(-1, -2), -1).transpose(0, 1)
    return drawn(weights).transpose(0, 1) @ v


def all_dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.native_dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 1.0, True)[0] @ v


def none_dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.native_dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.0, True)[0] @ v


@pytest.mark.parametrize(
    ("function", "reason"),
    [(twice, "dropped twice"), (mask_used, "other uses"), (turned, "dropped in another"), (all_dropped, "probability 1.0"),
     (none_dropped, "probability 0.0")],
)  # fmt: skip
def test_what_stays_two_products_says_why(function: Any, reason: str) -> None:
    _, graphs = traced(function, operands())
    assert not any(map(operators, graphs))
    assert [node for graph in graphs for node in graph.graph.nodes if reason in node.meta.get(REASON, "")]


def test_a_device_whose_numbers_are_others_keeps_two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "served", lambda *_: None)
    torch.manual_seed(5)
    found, graphs = traced(nanogpt, operands())
    torch.manual_seed(5)
    check(found, step(nanogpt, operands()))
    assert not any(map(operators, graphs))
    assert [node for graph in graphs for node in graph.graph.nodes if "one after another" in node.meta.get(REASON, "")]
