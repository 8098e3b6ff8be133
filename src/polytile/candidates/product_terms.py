"""A product at concrete sizes, as features for learning which candidate is fastest (Candidate.terms)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polytile.ir import expr, ops
from polytile.ir.loop import Loop
from polytile.ir.names import IS_PACKED

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


def work_terms(kernel: GemmKernel, size: Mapping[str, int]) -> dict[str, float]:
    """Sizes, bytes of an element, which operands run along k in memory, whose row strides are not a multiple of 16 elements,
    and the operations of an epilogue and of prologues per element. Strides that `size` lacks are those of dense operands."""
    spec, alone, size = kernel.spec, kernel.scalar_loads(size), kernel.average(size)
    return {
        **{f"work.{name}": float(size[name]) for name in ("batch", "M", "N", "K")},
        "work.itemsize": float(kernel.in_dtype.itemsize),
        "work.tf32": float(kernel.tf32),
        "work.a_along_k": float(spec.a_layout == "k"),
        "work.b_along_k": float(spec.b_layout == "k"),
        "work.a_alone": float(alone[0]),
        "work.b_alone": float(alone[1]),
        "work.packed": float(bool(size.get(IS_PACKED))),
        "work.epilogue": computed(kernel.epilogue) if kernel.epilogue is not None else 0.0,
        "work.prologue": sum(computed(prologue_kernel.loop) for prologue_kernel in kernel.prologue_kernels),
        **({"work.grouped": 1.0} if spec.grouped else {}),
        "work.second": float(kernel.second is not None),
    }


def computed(loop: Loop) -> float:
    """Multiply-adds that a loop's operations take per point."""
    return float(sum(ops.definition(node.name).cost for node in expr.walk(*loop.roots) if isinstance(node, expr.Op)))
