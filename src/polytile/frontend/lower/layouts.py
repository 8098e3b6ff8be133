"""Layouts: the traced memory order of elements, and the one operator that requests a layout explicitly."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
import torch.fx

from polytile.errors import LoweringError, LoweringFailed
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Tensor, stored
from polytile.frontend.lower.views import has_static_zero, require_loop_dtype
from polytile.frontend.placement import SCATTERS, is_view
from polytile.ir import sizes
from polytile.ir.buffer import View
from polytile.ir.sizes import ONE, ZERO, Size, as_size, as_stride

aten = torch.ops.aten


def traced_strides(traced: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a fake tensor, in elements."""
    return tuple(as_stride(stride) for stride in traced.stride())


def as_they_lie(traced: torch.Tensor) -> list[int]:
    """The dimensions of a dense fake tensor, with the contiguous one moved to the end."""
    last = next((k for k, n in enumerate(traced.shape) if traced_strides(traced)[k] == 1 and n != 1), traced.ndim - 1)
    return [*[k for k in range(traced.ndim) if k != last], last]


def traced_argument(builder: Builder, k: int = 0) -> torch.Tensor | None:
    """The fake tensor of argument `k` of the current node."""
    argument = builder.node.args[k] if builder.node is not None else None
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


BEYOND = (
    "as_strided of a temporary that is a part of a larger one, which is not stored: "
    "call clone() on the part, or as_strided on the whole."
)


def _keeps_offsets(node: torch.fx.Node | None) -> bool:
    """Whether `node` looks at the memory of an input that is partly overwritten. ATen's new value of it lies as far behind the
    beginning of its memory as the input does, with what is before it."""
    value = node.args[0] if node is not None else None
    scattered = False
    while isinstance(value, torch.fx.Node) and (value.target in SCATTERS or is_view(value.target)):
        scattered |= value.target in SCATTERS
        value = value.args[0]
    return scattered and isinstance(value, torch.fx.Node) and value.op == "placeholder"


@lowers(aten.as_strided.default)
def as_strided(
    builder: Builder, source: Tensor, size: Sequence[Size | int], stride: Sequence[Size | int],
    storage_offset: Size | int | None = None,
) -> Tensor:  # fmt: skip
    traced = traced_argument(builder)
    if traced is None:
        raise LoweringError("as_strided needs to know how its argument was laid out in tracing.")
    if storage_offset is not None and _keeps_offsets(builder.node):
        raise LoweringFailed(BEYOND)
    base = _laid_out_as_traced(builder, source, traced).view
    assert base is not None
    if storage_offset is not None and builder.buffers[base.buffer].role == "input":
        raise LoweringError("the offset is counted from where the argument's storage begins, which only a call knows")
    origin = as_size(traced.storage_offset())
    moved = ZERO if storage_offset is None else sympy.expand(as_size(storage_offset) - origin)
    strides = tuple(as_size(s) for s in stride)
    view = View(base.buffer, base.dtype, builder.result_sizes(), strides, sympy.expand(base.offset + moved))
    return stored(view, source.device)


def _laid_out_as_traced(builder: Builder, source: Tensor, traced: torch.Tensor) -> Tensor:
    """`source` stored with the strides of `traced`, so that offsets into its memory have the same meaning."""
    strides = traced_strides(traced)
    if source.view is not None and source.view.strides == strides:
        return source
    if not is_dense(source.sizes, strides) or not _fills_its_memory(traced):
        raise LoweringFailed(BEYOND)
    require_loop_dtype(source.dtype)
    return builder.realize(source, strides)


def _fills_its_memory(traced: torch.Tensor) -> bool:
    """Whether the memory of a dense tensor holds nothing else."""
    elements = sympy.Mul(*map(as_size, traced.shape))
    return sizes.equal(as_size(traced.untyped_storage().nbytes()), elements * traced.itemsize)


def is_dense(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether these strides lay out `shape` without holes or overlap, in some order of its dimensions."""
    left = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    running: Size = ONE
    while left:
        inner = next((pair for pair in left if sizes.equal(pair[1], running)), None)
        if inner is None:
            return has_static_zero(shape)
        left.remove(inner)
        running = sympy.expand(running * inner[0])
    return True
