"""What the tests on a GPU share: compile, compare with eager and with float64, say what ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import polytile
from polytile.ir.program import Extern


def data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=options)


def widened(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values with every floating-point tensor in float64."""
    return tuple(v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)


def agree(got: Any, eager: Any, exact: Any = None, what: str = "") -> None:
    """Raises AssertionError unless `got` is about as close to `exact` (float64) as eager, with eager's types and strides."""
    leaves = torch.utils._pytree.tree_leaves
    for k, (g, e, x) in enumerate(
        zip(leaves(got), leaves(eager), leaves(exact if exact is not None else eager), strict=True)
    ):
        place = f"{what} output {k}"
        assert (g.dtype, g.shape, g.device) == (e.dtype, e.shape, e.device), f"{place}: {g.dtype} {g.shape} {g.device}"
        assert g.stride() == e.stride() or not g.numel(), f"{place}: strides {g.stride()}, eager's {e.stride()}"
        if not g.is_floating_point() or not g.numel():
            assert torch.equal(g, e), f"{place} differs"
            continue
        scale = x.double().abs().nan_to_num(posinf=0, neginf=0).max().clamp_min(1e-30)
        own, off = ((t.double() - x.double()).abs().nan_to_num(nan=0.0).max() / scale for t in (e, g))
        assert torch.equal(g.isnan(), e.isnan()), f"{place} has NaN elsewhere"
        allowed = 4 * own + 16 * torch.finfo(g.dtype).eps
        assert off <= allowed, f"{place} is off by {float(off):.2g}, {float(allowed):.2g} is allowed"


def compare(function: Callable[..., Any], *calls: tuple[Any, ...], generated: bool = True, **options: Any) -> None:
    """One dynamic compile of `function`, called with each of `calls` in turn. With `generated` no operator may be left to the
    library, and no candidate may have been rejected."""
    call = compiled(function, **options)
    for args in calls:
        shapes = str([tuple(a.shape) for a in args if isinstance(a, Tensor)])
        agree(call(*args), function(*args), function(*widened(args)), shapes)
    if generated:
        made = polytile.compiler.programs.compiled_programs()
        programs = [each.program for each in made if each.program is not None]
        left = [op.target for program in programs for op in program.operations if isinstance(op, Extern)]
        assert not left, left
    assert not rejected(), rejected()


def rejected() -> dict[str, str]:
    """The candidates that were found to fail, with the reason."""
    kernels = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
    return {name: reason for kernel in kernels for name, reason in kernel.faulty.items()}


def with_gradients(function: Callable[..., Tensor], *args: Tensor) -> None:
    """Values and gradients of one compile, against eager and float64."""
    call = compiled(function)
    results = []
    for run, inputs in ((function, widened(args)), (function, args), (call, args)):
        leaves = tuple(i.detach().clone().requires_grad_(i.is_floating_point()) for i in inputs)
        out = run(*leaves)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.device, out.dtype)
        results.append((out.detach(), torch.autograd.grad(out, [i for i in leaves if i.requires_grad], cotangent)))
    agree(results[2], results[1], results[0])


__all__ = ["agree", "compare", "compiled", "data", "rejected", "widened", "with_gradients"]
