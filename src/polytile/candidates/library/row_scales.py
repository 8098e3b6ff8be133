"""ATen's product of 8-bit floats with scales for whole operands, or for rows and columns, as one call.

In a program the scales are the product's epilogue. If they are the whole epilogue, the library applies them itself, without
storing a float32 product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch

from polytile.candidates.library.epilogue import unrounded
from polytile.candidates.library.matmul import MatmulLibrary
from polytile.ir import sizes
from polytile.ir.expr import Accumulator, Load, Node, Op
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import GemmKernel


@dataclass(frozen=True)
class Scaling:
    """An epilogue that scales: the tensors of A's scales, of B's, and of the result; whether there is one for each row and
    column; the stride of the result's rows."""

    a: str
    b: str
    out: str
    by_rows: bool
    stride: sympy.Expr


def scaling_of(kernel: GemmKernel) -> Scaling | None:
    """What the kernel's epilogue scales by; None where that is not what it does, or not all."""
    loop = kernel.epilogue
    if loop is None or loop.reduced or len(loop.stores) != 1 or kernel.spec.batched or kernel.in_dtype.itemsize > 1:
        return None
    (store,), (_, m, n) = loop.stores, loop.axes
    first, second = _factors(unrounded(store.value))
    stride, along = sizes.coefficient(store.index, m.symbol), sizes.coefficient(store.index, n.symbol)
    if first is None or second is None or stride is None or along != 1 or store.index != stride * m.symbol + n.symbol:
        return None
    places = (first.index, second.index)
    if places not in ((m.symbol, n.symbol), (sizes.ZERO, sizes.ZERO)):
        return None
    return Scaling(first.buffer, second.buffer, store.buffer, places[0] != 0, stride)


def _factors(value: Node) -> tuple[Load | None, Load | None]:
    """s and t where `value` is accumulator · s · t in float32."""
    match value:
        case Op(name="mul", args=(Op(name="mul", args=(Accumulator(), Load() as s)), Load() as t)):
            return (s, t) if s.dtype == t.dtype == torch.float32 else (None, None)
    return None, None


class RowScaledLibrary(MatmulLibrary):
    """`torch._scaled_mm` with the scales, into the result."""

    name = "aten scaled"
    scales_rows = True

    def __init__(self, kernel: GemmKernel, scales: Scaling, target: torch.device) -> None:
        super().__init__(kernel, None, target)
        self.scales = scales
        self._at = {tensor.name: place for place, tensor in enumerate(kernel.tensors)}

    def _call(self, *args: Any) -> None:
        named, ints = operands(self.kernel, args)
        a, b = named["A"][0], named["B"][0]
        m, n = a.shape[0], b.shape[1]
        scale_a, scale_b, out = (args[self._at[name]] for name in (self.scales.a, self.scales.b, self.scales.out))
        stride = sizes.evaluate(self.scales.stride, dict(zip(self.kernel.symbols, ints, strict=True)))
        if self.scales.by_rows:
            scale_a = scale_a.as_strided((m, 1), (1, 1), scale_a.storage_offset())
            scale_b = scale_b.as_strided((1, n), (n, 1), scale_b.storage_offset())
        result = out.as_strided((m, n), (stride, 1), out.storage_offset())
        torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=result.dtype, out=result)


def candidates(kernel: GemmKernel, target: torch.device) -> list[RowScaledLibrary]:
    """The library's product with these scales, where the epilogue is nothing else."""
    scales = scaling_of(kernel)
    return [] if scales is None else [RowScaledLibrary(kernel, scales, target)]
