"""Grouped products of every form, compiled once, against eager: sizes of groups are known in memory only."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
OPTIONS = {"tune": "off", "persist": False}
TARGETS = [
    pytest.param(OPTIONS, id="cpu"),
    pytest.param({**OPTIONS, "interpret": True, "sources": "triton"}, id="interpreted", marks=needs_triton),
]
BF16 = torch.bfloat16

pytestmark = pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this PyTorch has no grouped_mm")


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def grouped(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    return F.grouped_mm(a, b, offs=offs)


FORMS: dict[str, Callable[[int, torch.Tensor], tuple[Any, ...]]] = {
    "rows": lambda t, offs: (half(t, 32), half(3, 32, 24), offs),
    "rows by transposed weights": lambda t, offs: (half(t, 32), half(3, 24, 32).transpose(1, 2), offs),
    "columns": lambda t, offs: (half(3, 24, 32), half(32, t), offs),
    "k": lambda t, offs: (half(t, 24).t(), half(t, 40), offs),
    "batch": lambda t, offs: (half(3, t, 32), half(3, 32, 24), None),
}
LENGTHS = ((40, ends(7, 9, 40)), (24, ends(0, 24, 24)), (64, ends(1, 2, 64)))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def only_templates(function: Any, *args: Any) -> bool:
    return "library:" not in str(polytile.explain(function, *args))


@pytest.mark.parametrize("options", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_at_any_length(form: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    run = polytile.compile(grouped, options=options)
    for length, offs in LENGTHS:
        args = FORMS[form](length, offs)
        got, expected = run(*args), grouped(*args)
        assert got.stride() == expected.stride()
        close(got, expected)
    assert only_templates(run, *args)


def weighted(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.silu(F.grouped_mm(a, b, offs=offs)) * weights[:, None]


@pytest.mark.parametrize("options", TARGETS)
def test_an_activation_and_routing_weights_are_its_epilogue(options: dict[str, Any]) -> None:
    run = polytile.compile(weighted, options=options)
    for length, offs in LENGTHS:
        args = half(length, 32), half(3, 32, 24), offs, half(length)
        close(run(*args), weighted(*args))
    (kernel,) = polytile.compiler.programs.compiled_programs()[-1].multikernels
    assert "grouped_mm" in kernel.spec.name and only_templates(run, *args)


def masked(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(len(a))[:, None] < offs[-1]
    return torch.where(inside, F.grouped_mm(a, b, offs=offs) + 1, 5.0)


@pytest.mark.parametrize("options", TARGETS)
def test_rows_behind_the_last_group_are_0_and_what_follows_is_done_for_them(options: dict[str, Any]) -> None:
    a, b, offs = half(40, 32), half(3, 32, 24), ends(3, 3, 17)
    got = polytile.compile(grouped, options=options)(a, b, offs)
    close(got[:17], grouped(a, b, offs)[:17])
    assert not got[17:].any()
    close(polytile.compile(masked, options=options)(a, b, offs), masked(a, b, offs))




def gradients(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> Iterator[torch.Tensor]:
    *floats, offs = args
    leaves = [each.clone().requires_grad_() for each in floats]
    function(*leaves, offs).float().square().sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        yield leaf.grad


@pytest.mark.parametrize("options", TARGETS)
def test_gradients_with_an_empty_group(options: dict[str, Any]) -> None:
    run = polytile.compile(grouped, options=options)
    for length, offs in LENGTHS:
        args = half(length, 32), half(3, 32, 24), offs
        for got, expected in zip(gradients(run, *args), gradients(grouped, *args), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
