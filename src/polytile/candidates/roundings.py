"""The coarsest rounding inside a kernel, for the accuracy gate. A value that is rounded to 16 bits inside a kernel, like
eager's intermediate tensors, changes by a unit of that type if its last bits differ, as they do between sums in different
orders. Both results are right, but even in float32 they agree no closer than the 16-bit type allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from polytile.ir import expr
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Node, Op, Reduce
from polytile.ir.loop import Axis, Loop

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

OPERATIONS = {name: dtype for dtype, name in ROUNDING.items()}
SPREAD = frozenset({"sum", "welford"})
"""Reductions in which a rounded value is one of many terms; an extreme is a single one."""


@dataclass(frozen=True)
class Rounded:
    """The coarsest type that values are rounded to, and the names of sizes, and numbers, whose product is the number of terms
    that are added up afterwards."""

    dtype: torch.dtype
    terms: tuple[str | int, ...] = ()


def of_loop(loop: Loop) -> dict[str, Rounded]:
    """The rounding of each written buffer by its name; buffers that no rounded value reaches are left out."""
    by_buffer: dict[str, Rounded] = {}
    for store in loop.stores:
        direct, added = _roundings(store.value)
        if direct:
            by_buffer[store.buffer] = Rounded(_coarsest(direct))
        elif added:
            by_buffer.setdefault(store.buffer, Rounded(_coarsest(added), terms_of(loop.reduced)))
    return by_buffer


def of_product(kernel: GemmKernel) -> Mapping[str, Rounded]:
    """The same for a product with its epilogue. A rounding in a computed operand affects one of K terms. Tensor cores add up
    8-bit floats in fewer bits than float32 has (matmul/triton/product.py): an H200's sums of 256 terms were off by 5e-4."""
    narrow = kernel.in_dtype.is_floating_point and kernel.in_dtype.itemsize == 1
    stores = [store for prologue in kernel.prologue_kernels for store in prologue.loop.stores]
    operands = {dtype for store in stores for dtype in _all(store.value)}
    by_buffer = {tensor.name: Rounded(_coarsest(operands), ("K",)) for tensor in kernel.outer if operands}
    by_buffer |= {tensor.name: Rounded(torch.float16) for tensor in kernel.outer if narrow}
    return by_buffer | (of_loop(kernel.epilogue) if kernel.epilogue is not None else {})


def terms_of(axes: tuple[Axis, ...]) -> tuple[str | int, ...]:
    """Names and numbers whose product bounds the number of points along these axes."""
    terms: list[str | int] = []
    for axis in axes:
        for factor in sympy.Mul.make_args(axis.size):
            terms += [int(factor)] if factor.is_Integer else [s.name for s in sorted(factor.free_symbols, key=str)]
    return tuple(terms)


def _all(value: Node) -> Iterator[torch.dtype]:
    return (OPERATIONS[node.name] for node in expr.walk(value) if isinstance(node, Op) and node.name in OPERATIONS)


def _roundings(value: Node) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """The types that parts of `value` are rounded to: those with no sum after the rounding, and those with one."""
    direct: set[torch.dtype] = set()
    sums: list[Node] = []
    stack, seen = [value], {id(value)}
    while stack:
        node = stack.pop()
        if isinstance(node, Reduce) and node.kind in SPREAD:
            sums.append(node)
            continue
        if isinstance(node, Op) and node.name in OPERATIONS:
            direct.add(OPERATIONS[node.name])
        fresh = [child for child in node.children if id(child) not in seen]
        seen.update(map(id, fresh))
        stack += fresh
    return direct, {dtype for node in sums for dtype in _all(node)}


def _coarsest(dtypes: set[torch.dtype]) -> torch.dtype:
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
