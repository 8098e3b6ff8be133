"""Whole functions on generated Triton kernels run by the interpreter: results and gradients against eager. Each is compiled
once, for all sizes."""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytile.facts import Wide
from tests.behaviour.helpers import decisions

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

OPTIONS = {"interpret": True, "persist": False, "tune": "off"}
"""Chosen by the prior: the interpreter's times mean nothing."""


def whole(*shape: int) -> Tensor:
    return torch.randint(-9, 9, shape)


def rows(m: int, n: int) -> Tensor:
    """For m rows of n, which of them each is added to."""
    return torch.randint(0, max(1, m), (m,))


def scattered(a: Tensor, index: Tensor, b: Tensor) -> Tensor:
    return a.scatter_reduce(0, index[:, None].expand_as(b), b, "sum")


def by_index(a: Tensor, index: Tensor, b: Tensor) -> Tensor:
    return a.index_reduce(0, index, b, "mean", include_self=False)


def normalised(a: Tensor) -> Tensor:
    return F.layer_norm(a, a.shape[-1:]) + F.rms_norm(a, a.shape[-1:])


def table_gradient(g: Tensor, index: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(g, index, 50, 3, False)


def remainders(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    b = torch.where(b == 0, 7, b)
    return a % b, a // b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")


def through_8_bits(a: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows scaled to what the type holds, as they are stored and as they are read again."""
    scale = a.detach().abs().amax(-1, keepdim=True) / 448 + 1e-3
    narrow = (a.detach() * w.detach() / scale).to(torch.float8_e4m3fn)
    return narrow.float() * scale + w, a * narrow.to(torch.float8_e5m2).t().contiguous().t().float()


Make = Callable[[int, int], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "sums scattered": (scattered, lambda m, n: (whole(m, n), rows(m, n), whole(m, n))),
    "means by index": (by_index, lambda m, n: (whole(m, n), rows(m, n), whole(m, n))),
    "gradient of a table": (table_gradient, lambda m, n: (whole(m, n).bfloat16(), rows(m, n) % 50)),
    "normalised with weights": (
        lambda a, w, b: F.layer_norm(a, a.shape[-1:], w, b),
        lambda m, n: (torch.randn(m, n), torch.randn(n), torch.randn(n)),
    ),
    "remainders": (remainders, lambda m, n: (whole(m, n), whole(m, n))),
    "8-bit floats": (through_8_bits, lambda m, n: (10 * torch.randn(m, n), torch.rand(n) + 0.5)),
    "rolled": (lambda a: a.roll((3, -2), (0, 1)).flip(0).reshape(-1), lambda m, n: (torch.randn(m, n),)),
    "trace": (lambda a: a.diagonal(1).sum() + a.diagonal(-1).sin().sum(), lambda m, n: (torch.randn(m, n),)),
    "normalised": (normalised, lambda m, n: (torch.randn(m, n),)),
    "filled": (
        lambda a, i, v: a.index_fill(0, i, v),
        lambda m, n: (torch.randn(m, n), rows(m, n)[:2], torch.tensor(2.5)),
    ),
    "cross entropy": (
        lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1),
        lambda m, n: (torch.randn(m, n), torch.randint(0, n, (m,))),
    ),
}
SIZES = ((5, 33), (64, 16), (17, 100))


@pytest.mark.parametrize("name", CASES)
def test_a_function_at_several_sizes(name: str) -> None:
    function, make = CASES[name]
    call = torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=OPTIONS)
    for size in SIZES:
        args = make(*size)
        mine, theirs = [tuple(a.clone().requires_grad_(a.is_floating_point()) for a in args) for _ in range(2)]
        got, want = call(*mine), function(*theirs)
        _agree(got, want, f"{name} at {size}")
        _agree(_gradients(got, mine), _gradients(want, theirs), f"gradients of {name} at {size}")


def _gradients(result: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    wanted = [t for t in inputs if t.requires_grad]
    leaves = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
    return list(torch.autograd.grad([t.cos().sum() for t in leaves], wanted)) if leaves else []


def _agree(got: Any, want: Any, what: str) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("first", [0, 1, 2, 4])
def test_one_compile_serves_rows_that_any_power_divides_and_views_at_any_address(first: int) -> None:
    call = torch.compile(normalised, backend="polytile", dynamic=True, options=OPTIONS)
    for m, n in ((9, 17), (10, 18), (12, 20), (9, 24), (12, 32), (9, 33), (10, 46), (9, 48), (12, 52), (10, 64)):
        a = torch.randn(m, first + n).bfloat16()[:, first:]
        torch.testing.assert_close(call(a), normalised(a), rtol=2e-2, atol=4e-2)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Tensor]:
    """Three rows of eight bytes, more than 2³¹ of them apart, in a file of which most is not there."""
    stride = 2**31 + 64
    with (tmp_path / "far").open("w+b") as file:
        file.truncate(2 * stride + mmap.PAGESIZE)
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.int8)
    yield memory.as_strided((3, 8), (stride, 1)).copy_(torch.arange(24).reshape(3, 8))
    (tmp_path / "far").unlink()


FAR: dict[str, Callable[[Tensor], Tensor]] = {
    "points": lambda a: a.float() * 2,
    "rows": lambda a: torch.softmax(a.float(), -1),
    "columns": lambda a: a.float().sum(0),
    "scan": lambda a: a.float().cumsum(0),
    "gather": lambda a: a[torch.tensor([2, 0, 1])].float(),
    "product": lambda a: a.float() @ a.float().t(),
}


@pytest.mark.parametrize("name", FAR)
def test_positions_that_need_64_bits(name: str, far: Tensor) -> None:
    """One compile: the first call's positions fit 32 bits."""
    call, near = torch.compile(FAR[name], backend="polytile", dynamic=True, fullgraph=True, options=OPTIONS), far.clone()
    for a in (near, far):
        torch.testing.assert_close(call(a), FAR[name](near))
    wide = [Wide() in decision.regime.facts for decision in decisions()]
    assert True in wide and False in wide


def test_no_candidate_is_refused_for_what_it_leaves_alone() -> None:
    """A kernel that writes the diagonal alone is compared where it writes; elsewhere the tensor stays as it was.
    (The fixture of this room looks for refused candidates.)"""
    call = torch.compile(torch.trace, backend="polytile", dynamic=False, options={"interpret": True, "persist": False})
    a = torch.randn(20, 20, requires_grad=True)
    call(a).backward()
    assert torch.equal(a.grad, torch.eye(20))
