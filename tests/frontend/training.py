"""Training graphs in the tests of lowerings: AOTAutograd, lowering and the interpreter against eager, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from lowering import library_calls, lower_graph, run
from torch._functorch.aot_autograd import aot_function

from polytile.frontend.lower.decompositions import decompositions


def compiled(fn: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """`fn` through AOTAutograd, lowering and the interpreter; library calls are added to `calls`."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        program = lower_graph(graph)
        calls.extend(library_calls(program))

        def call(args: list[Any]) -> list[Any]:
            return run(program, list(args))

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return aot_function(
        fn, fw_compiler=compile_graph, bw_compiler=compile_graph, decompositions=decompositions(), dynamic=True
    )


def check_training(
    fn: Callable[..., torch.Tensor], *args: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6
) -> list[str]:
    """Result and gradients of all floating-point arguments against eager; returns the library calls."""
    calls: list[str] = []
    results = []
    for arm in (fn, compiled(fn, calls)):
        leaves = [a.detach().clone().requires_grad_(a.dtype.is_floating_point) for a in args]
        out = arm(*leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        direction = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
        results.append([out, *torch.autograd.grad(out, wanted, direction, allow_unused=True)])
    for eager, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager, rtol=rtol, atol=atol)
    return calls
