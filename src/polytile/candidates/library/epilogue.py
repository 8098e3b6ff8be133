"""Epilogues that cuBLASLt does in its own kernels: A · B + addend + bias, written once.

    F.linear(x, w, bias)                        bias
    F.linear(x, w) + residual                   addend
    residual + F.linear(x, w, bias)             both

The sums stay in float32 until the end, whereas eager rounds what each of its kernels stores. The library's activations are not
used: its ReLU is reported to turn NaN into 0, and eager keeps NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from polytile.ir import sizes
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Accumulator, Load, Node, Op
from polytile.ir.loop import Axis

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

ROUNDINGS = frozenset(ROUNDING.values())

Strides = tuple[sympy.Expr, sympy.Expr]
"""From one matrix of a batch to the next, and from one row to the next."""


@dataclass(frozen=True)
class LibraryEpilogue:
    """Names and strides of the tensors of such an epilogue: the result, the addend ("": none) and the bias, which has a number
    for each column ("": none)."""

    out: str
    out_strides: Strides
    addend: str = ""
    addend_strides: Strides = (sizes.ZERO, sizes.ZERO)
    bias: str = ""


def library_epilogue(kernel: GemmKernel) -> LibraryEpilogue | None:
    """The kernel's epilogue in the library's terms; None if the library cannot express it."""
    loop, dtype = kernel.epilogue, kernel.product_dtype
    if loop is None or loop.reduced or len(loop.stores) != 1 or not dtype.is_floating_point or dtype.itemsize not in (2, 4):
        return None
    (store,), types = loop.stores, {tensor.name: tensor.dtype for tensor in kernel.outer}
    out_strides = _strides(store.index, loop.axes)
    terms = _terms(store.value)
    if out_strides is None or types[store.buffer] != dtype or terms is None:
        return None
    column, result = loop.axes[2].symbol, LibraryEpilogue(store.buffer, out_strides)
    for load in terms:
        strides = _strides(load.index, loop.axes)
        if types[load.buffer] != dtype or load.indirect or load.mask is not None:
            return None
        if load.index == column and not result.bias:
            result = replace(result, bias=load.buffer)
        elif strides is not None and strides[1] != 0 and not result.addend:
            result = replace(result, addend=load.buffer, addend_strides=strides)
        else:
            return None
    if result.addend == result.out and result.addend_strides != out_strides:
        return None
    return result


def _strides(index: sympy.Expr, axes: tuple[Axis, ...]) -> Strides | None:
    """Strides of an index that starts at the tensor's first element and has stride 1 along columns; None for others."""
    batch, row, column = (axis.symbol for axis in axes)
    of_batch, of_row = sizes.coefficient(index, batch), sizes.coefficient(index, row)
    if of_batch is None or of_row is None:
        return None
    same = sympy.expand(index - (of_batch * batch + of_row * row + column)) == 0
    return (of_batch, of_row) if same else None


def unrounded(value: Node) -> Node:
    """What is rounded to the result's type."""
    while isinstance(value, Op) and value.name in ROUNDINGS:
        value = value.args[0]
    return value


def _terms(value: Node) -> list[Load] | None:
    """The loads that `value` adds to the product; None if it is anything but such a sum."""
    match unrounded(value):
        case Accumulator():
            return []
        case Op(name="add", args=(Load() as load, other)) | Op(name="add", args=(other, Load() as load)):
            rest = _terms(other)
            return None if rest is None else [*rest, load]
    return None
