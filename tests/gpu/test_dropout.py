"""Dropout of attention's weights on a GPU: bit for bit the masks that eager draws, and gradients beside eager's and float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention.dropout import served, threads_of
from polytile.ir.dropout import Dropout, advance, kept
from polytile.runtime.cuda.seeds import next_state
from tests.gpu.comparing import compiled, rejected

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
P = 0.3
SHAPES = [
    (1,), (255,), (4, 1000), (3, 5, 7, 11), (2, 3, 10, 11), (1, 1, 6, 6), (8, 12, 300, 300), (8, 12, 301, 301), (8, 12, 512, 512),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_that_eager_draws(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    vector = served(CUDA, dtype)
    assert vector is not None, "eager's kernel draws other numbers in this version"
    how = Dropout(P, vector, threads_of(CUDA))
    for seed in (0, 2**63 + 5):
        torch.manual_seed(seed)
        torch.rand(1000, device=CUDA)
        before = torch.cuda.get_rng_state()
        mask, after = torch.native_dropout(torch.ones(shape, dtype=dtype, device=CUDA), P, True)[1], torch.rand(3, device=CUDA)
        torch.cuda.set_rng_state(before)
        state = next_state(CUDA, advance(mask.numel(), how.threads))
        assert torch.equal(kept(how, state, shape), mask)
        assert torch.equal(torch.rand(3, device=CUDA), after)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1), P) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """nanoGPT's attention without the fused kernel."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-1, -2) * 0.125).masked_fill(~mask, -torch.inf)
    return F.dropout(torch.softmax(scores, -1), P) @ v


def upcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """transformers' eager attention: a softmax in float32, then dropout in the type of q."""
    weights = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, P) @ v


def by_token(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads of one known size, as a module of a model has them."""
    q, k, v = (each.unflatten(-1, (1, 64)).squeeze(-2) for each in (q, k, v))
    return causal(q, k, v)


def leaves(length: int, batch: int = 2, heads: int = 3, head: int = 64) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(batch, heads, length, head, device=CUDA, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]


def runs_whole() -> bool:
    """Whether both passes are one operator each, and all candidates were right."""
    families = [kernel.spec.family for each in compiled_programs() for kernel, _ in each.calls]
    assert not rejected(), rejected()
    return [family for family in families if "attention" in family] == ["attention", "attention_backward"]


@pytest.mark.parametrize("length", [64, 96, 40, 37])
def test_kernels_drop_what_eager_drops(length: int) -> None:
    """With equal weights and values that are unit vectors, the result is the mask. A length up to 256 fits a head."""
    q, k = (torch.zeros(2, 3, length, 128, device=CUDA, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    v = torch.eye(length, 128, device=CUDA, dtype=torch.bfloat16).expand(2, 3, length, 128)
    call = compiled(plain, stall="tune")
    for _ in range(2):
        state = torch.cuda.get_rng_state()
        wanted, following = plain(q, k, v), torch.rand(3, device=CUDA)
        torch.cuda.set_rng_state(state)
        found = call(q, k, v)
        assert torch.equal(found > 0, wanted > 0) and torch.equal(torch.rand(3, device=CUDA), following)
        torch.autograd.grad(found, (q, k), torch.ones_like(found))
    assert runs_whole()


@pytest.mark.parametrize("attend", [plain, causal, upcast, by_token])
def test_both_passes_agree_with_eager_on_a_seed(attend: Callable[..., Tensor]) -> None:
    call = compiled(attend, stall="tune")
    for length in (200, 256, 333):
        given = leaves(length)
        grad = torch.randn(given[0].shape, device=CUDA).to(torch.bfloat16)
        results = []
        for run in (attend, call):
            torch.manual_seed(7)
            out = run(*given)
            results.append((out, *torch.autograd.grad(out, given, grad)))
        torch.manual_seed(7)
        mask = torch.native_dropout(torch.ones(2, 3, length, length, device=CUDA, dtype=torch.bfloat16), P, True)[1]
        exact = float64(attend, given, grad, mask)
        for name, eager, mine, right in zip(("out", "dq", "dk", "dv"), *results, exact, strict=True):
            own, off = ((each.double() - right).abs().max() / right.abs().max() for each in (eager, mine))
            assert off <= 2 * own + 1e-3, f"{name} of {length} rows is off by {float(off):.2g}, eager by {float(own):.2g}"
    assert runs_whole()


def float64(attend: Callable[..., Tensor], given: list[Tensor], grad: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    wide = [each.detach().double().requires_grad_() for each in given]
    q, k, v = wide
    scores = q @ k.transpose(-1, -2) * 0.125
    if attend in (causal, by_token):
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    out = (torch.softmax(scores, -1) * mask / (1 - P)) @ v
    return (out, *torch.autograd.grad(out, wide, grad.double()))


def test_no_tensor_has_an_element_for_each_query_and_key() -> None:
    call, length = compiled(causal, stall="tune"), 2048
    given = leaves(length, batch=2, heads=4)
    grad = torch.randn_like(given[0])
    for _ in range(3):
        torch.autograd.grad(call(*given), given, grad)
    polytile.wait()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(call(*given), given, grad)
    assert torch.cuda.max_memory_allocated() - before < 2 * 4 * length * length // 2


def test_equal_seeds_give_equal_bits() -> None:
    call, given = compiled(causal, stall="tune"), leaves(256)

    def step() -> list[Tensor]:
        torch.manual_seed(3)
        out = call(*given)
        return [out, *torch.autograd.grad(out.sum(), given)]

    first = step()
    assert all(torch.equal(a, b) for a, b in zip(first, step(), strict=True))
