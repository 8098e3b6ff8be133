"""A product's flat arguments: named tensors, upper bounds of their indices, and random examples for trying candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile.ir import sizes
from polytile.ir.loop import Loop
from polytile.matmul import packed_weights, prologue, scales
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.runtime import noise
from polytile.schedule.examples import farthest
from polytile.schedule.facts import reaches


def operands(kernel: GemmKernel, args: Sequence[Any]) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    """The flat arguments of a product whose operands are in memory: named tensors, and the epilogue's integers.

    A, B, P, Q and C are strided (batch, rows, columns) views.
    """
    named = dict(zip([t.name for t in kernel.tensors], args, strict=False))
    ints = args[len(kernel.tensors) :]
    size = dict(zip(kernel.size_names, ints, strict=False))
    for name, axes in prologue.AXES.items():
        if name in named and (name not in "PQ" or kernel.second is not None):
            _, *lengths = (size[length] for length, _ in axes)
            strides = [size[f"{name.lower()}_stride_{axis}"] for _, axis in axes]
            shape = (batch_of(kernel, name, size), *lengths)
            named[name] = named[name].as_strided(shape, strides, named[name].storage_offset())
    if kernel.scales is not None:
        named |= scales.views(kernel, named, dict(zip(kernel.size_names, ints, strict=True)))
    first = len(kernel.leading)
    return named, tuple(ints[first : first + len(kernel.symbols)])


def batch_of(kernel: GemmKernel, operand: str, size: Mapping[str, int]) -> int:
    """The batch size of an operand or of the result. In a grouped product only one of the three is batched."""
    alone = {"m": "AC", "k": "AB"}.get(kernel.spec.grouped, "")
    return 1 if operand in alone else size["batch"]


def positions(kernel: GemmKernel) -> tuple[sympy.Expr, ...]:
    """Upper bounds of all offsets that a kernel computes, one per tensor, as expressions in its integers."""
    from polytile.matmul.triton.operands import symbol
    from polytile.matmul.triton.unit import epilogue_kernel

    ends = [
        sum((symbol(f"{name.lower()}_stride_{axis}") * symbol(size) for size, axis in prologue.AXES[name]), sizes.ZERO)
        for name in ("AB" if kernel.second is None else "ABPQ")
    ]
    if kernel.scales is not None:
        own = [zip(scales.STRIDES[name], scales.AXES[name], strict=True) for name in scales.blocks(kernel)]
        ends += [symbol(stride) * symbol(size) for pairs in own for stride, size in pairs]
    ends += [far for prologue_kernel in kernel.prologue_kernels for far in reaches(prologue_kernel)]
    items = sizes.ONE if kernel.spec.grouped == "m" else symbol("batch")
    return (*ends, items * symbol("M") * symbol("N"), *reaches(epilogue_kernel(kernel)))


def make_args(kernel: GemmKernel, size: Mapping[str, int], target: torch.device | None = None) -> list[Any]:
    """Random flat arguments for the given sizes, on `target` or the CPU. Strides that `size` lacks are those of dense operands in
    the kernel's layouts. Operands and results without elements are empty."""
    full = {**kernel.dense_strides(size), **size}
    loops = [(prologue_kernel.loop, prologue_kernel.symbols) for prologue_kernel in kernel.prologue_kernels]
    loops += [(kernel.epilogue, kernel.symbols)] if kernel.epilogue is not None else []
    tensors: list[torch.Tensor] = []
    for t in kernel.tensors[: len(kernel.tensors) - kernel.packed]:
        if t.name in prologue.AXES:
            count = prologue.elements(kernel, t.name, full)
        elif t.name == ENDS:
            tensors.append(_ends(size["batch"], full["M" if kernel.spec.grouped == "m" else "K"], target))
            continue
        elif t.name in scales.blocks(kernel):
            count = scales.elements(kernel, t.name, full)
        else:
            count = max(_extent(loop, symbols, t.name, full) for loop, symbols in loops)
        tensors.append(_random(max(0, count), t.dtype, target))
    panels = (packed_weights.panels_for(kernel, tensors[1], full),) if kernel.packed else ()
    return [*tensors, *panels, *[full[name] for name in kernel.size_names]]


def _ends(groups: int, length: int, target: torch.device | None) -> torch.Tensor:
    """The ends of groups of random sizes; the last one is `length`."""
    ends = noise.integers(0, length + 1, max(1, groups), torch.int64, target).sort().values
    ends[-1] = length
    return ends.to(torch.int32)


def _random(count: int, dtype: torch.dtype, target: torch.device | None) -> torch.Tensor:
    if not dtype.is_floating_point:
        return noise.integers(-8, 8, count, torch.int64, target).to(dtype)
    return noise.normal(count, target).to(dtype)


def _extent(loop: Loop, symbols: Sequence[sympy.Symbol], name: str, size: Mapping[str, int]) -> int:
    """Number of elements of the tensor `name` that the loop reaches; 0 if it does not access it."""
    values = {s: size[s.name] for s in symbols}
    top = {a.symbol: max(0, sizes.evaluate(a.size, values) - 1) for a in loop.axes + loop.reduced}
    return max((farthest(access.index, values, top) + 1 for access in loop.accesses() if access.buffer == name), default=0)
