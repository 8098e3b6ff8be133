"""Attention's gradients are eager's at all lengths, with groups of heads, masks, biases that learn, and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention.dropout import threads_of
from polytile.ir.dropout import Dropout, kept
from tests.behaviour.helpers import check_gradients, compiled, multikernels
from tests.frontend.attention_spellings import hf_eager, nanogpt, t5

INF = float("inf")


def heads(batch: int, rows: int, count: int = 2) -> Tensor:
    return torch.randn(batch, count, rows, 16, requires_grad=True)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_lengths_and_groups_of_heads() -> None:
    call = compiled(causal)
    for batch, rows, keys in ((3, 33, 17), (2, 24, 20), (2, 1, 20), (2, 0, 5)):
        check_gradients(causal, call, heads(batch, rows, 4), heads(batch, keys), heads(batch, keys))


def test_rows_that_see_no_key() -> None:
    call = compiled(masked)
    for rows in (24, 33):
        mask = torch.rand(2, 1, rows, 20) < 0.7
        mask[:, :, 3] = False
        for given in (mask, torch.zeros(2, 1, rows, 20).masked_fill(~mask, -INF)):
            check_gradients(masked, call, heads(2, rows), heads(2, 20), heads(2, 20), given)


SPELLINGS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]] = {
    "groups": (hf_eager, lambda n: (heads(2, n, 4), heads(2, n), heads(2, n), torch.zeros(2, 1, n, n).masked_fill(
        torch.rand(2, 1, n, n) < 0.3, torch.finfo(torch.float32).min))),
    "a bias that learns": (t5, lambda n: (heads(2, n, 4), heads(2, 20, 4), heads(2, 20, 4), torch.randn(
        1, 4, n, 20, requires_grad=True), torch.zeros(2, 1, 1, 20))),
    "nanoGPT": (nanogpt, lambda n: (torch.randn(2, n, 192, requires_grad=True), torch.ones(1, 1, 64, 64).tril())),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["a bias that learns", *(pytest.param(name, marks=pytest.mark.slow) for name in ("groups", "nanoGPT"))]
)
def test_spellings_of_models(name: str) -> None:
    function, given = SPELLINGS[name]
    call = compiled(function)
    for length in (24, 33):
        check_gradients(function, call, *given(length))


def test_dropout_draws_eagers_numbers() -> None:
    def seeded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*given: Tensor) -> Tensor:
            torch.manual_seed(5)
            return function(*given)

        return run

    call = compiled(dropped)
    for length in (24, 33):
        check_gradients(seeded(dropped), seeded(call), heads(2, length, 4), heads(2, 20, 4), heads(2, 20, 4))
    assert any("dropout" in operator.operator for program in compiled_programs() for operator in program.operators)


@pytest.mark.parametrize("how", [{"interpret": True, "sources": "triton"}, {"sources": "cpp"}], ids=("triton", "cpp"))
def test_generated_kernels_serve_the_derivative(how: dict[str, Any]) -> None:
    """C++, and Triton under its interpreter, by prediction alone."""
    call = compiled(causal, tune="off", **how)
    for batch, rows in ((1, 20), (2, 17)):
        check_gradients(causal, call, heads(batch, rows, 4), heads(batch, rows), heads(batch, rows))
    (kernel,) = [kernel for kernel in multikernels() if kernel.spec.family == "attention_backward"]
    assert {decision.candidate.split()[0] for decision in kernel.decisions} == {"backward"}


def test_generated_kernels_drop_the_weights_whose_numbers_a_gpu_draws() -> None:
    """In both passes of each call, from a state that the generator has given, under Triton's interpreter."""
    call = compiled(
        lambda q, k, v: torch.native_dropout(torch.softmax(q @ k.mT, -1), 0.3, True)[0] @ v,
        tune="off", interpret=True, sources="triton",
    )  # fmt: skip
    how = Dropout(0.3, 4, threads_of(torch.device("cpu")))
    for rows, keys in ((20, 32), (17, 13)):
        given = heads(2, rows, 4), heads(2, keys, 4), heads(2, keys, 4)
        torch.manual_seed(5)
        mask = kept(how, torch.empty(2, dtype=torch.int64).random_(), (2, 4, rows, keys)) / 0.7
        torch.manual_seed(5)
        check_gradients(lambda q, k, v, mask=mask: (torch.softmax(q @ k.mT, -1) * mask) @ v, call, *given)
    served = {kernel.spec.family: {decision.candidate.split()[0] for decision in kernel.decisions} for kernel in multikernels()}
    assert served["attention"] == {"flash"} and served["attention_backward"] == {"backward"}
