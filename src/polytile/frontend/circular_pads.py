"""Keeps circular padding whole while a graph is traced, as a polytile operator with gradients.

torch decomposes it above autograd into uninitialised memory, and copies into and within it. Functionalised, these are a chain of
passes over the whole result. As one operator, it is taken apart below autograd into one loop (lower/pads.py), with the library's
operator among its candidates.

    F.pad(x, (1, 2), mode="circular")   →   polytile.pad_circular(x, [1, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.functional import pad

aten = torch.ops.aten
PADS = (pad, torch._C._nn.pad)
"""The functions that Dynamo's graph calls."""

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define("pad_circular(Tensor x, SymInt[] padding) -> Tensor")


def keep_pads_whole(graph: torch.fx.GraphModule) -> None:
    """Make Dynamo's graph, and the graphs inside it, call `circular_pad` where they pad circularly."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            calls = [node for node in module.graph.nodes if node.op == "call_function" and _is_circular(node)]
            for node in calls:
                node.target = circular_pad
            if calls:
                module.recompile()


def _is_circular(node: torch.fx.Node) -> bool:
    return node.target in PADS and "circular" in (node.kwargs.get("mode"), *node.args[2:3])


def circular_pad(input: Tensor, pad: Sequence[int], mode: str = "circular", value: float | None = None) -> Tensor:
    """torch.nn.functional.pad with mode "circular" and the same arguments, as one operator where possible."""
    padded: Tensor = PAD_CIRCULAR(input, list(pad)) if _is_whole(input, pad) else torch._C._nn.pad(input, pad, mode, value)
    return padded


def _is_whole(x: Tensor, padding: Sequence[int]) -> bool:
    """Whether the operator applies: the result is row-major and the source has elements. If the padding wraps around more than
    once, torch raises the error."""
    rank = len(padding) // 2
    plain = x.device.type in ("cpu", "cuda") and suggest_memory_format(x) == torch.contiguous_format and not x.is_complex()
    known = len(padding) % 2 == 0 and x.ndim in (rank + 1, rank + 2) and not any(map(free_unbacked_symbols, [*x.shape, *padding]))
    return plain and known and all(0 <= n <= x.shape[-1 - k // 2] for k, n in enumerate(padding))


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    result: Tensor = aten._pad_circular.default(x, padding)
    return result


def _fake(x: Tensor, padding: Sequence[int]) -> Tensor:
    rank = len(padding) // 2
    around = [sum(padding[2 * k : 2 * k + 2]) for k in reversed(range(rank))]
    return x.new_empty([*x.shape[:-rank], *(n + more for n, more in zip(x.shape[-rank:], around, strict=True))])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.padding = inputs
    ctx.shape = x.shape


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    """Gradients of the padding are added to those of the elements that it repeats."""
    for k in range(len(ctx.padding) // 2):
        d, n, (before, after) = -1 - k, ctx.shape[-1 - k], ctx.padding[2 * k : 2 * k + 2]
        inside = grad.narrow(d, before, n)
        if after:
            inside = inside + pad(grad.narrow(d, before + n, after), [0, 0] * k + [0, n - after])
        if before:
            inside = inside + pad(grad.narrow(d, 0, before), [0, 0] * k + [n - before, 0])
        grad = inside
    return grad, None


_library.impl("pad_circular", _padded, "CompositeExplicitAutograd")
torch.library.register_fake("polytile::pad_circular", _fake, lib=_library)
torch.library.register_autograd("polytile::pad_circular", _backward, setup_context=_save, lib=_library)

PAD_CIRCULAR = torch.ops.polytile.pad_circular.default
