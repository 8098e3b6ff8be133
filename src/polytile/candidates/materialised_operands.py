"""The candidate of a product with prologues that first stores the computed operands (matmul/prologue.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.inner_kernel import Composed, InnerKernel, best_cost
from polytile.matmul.prologue import materialise_operands, split_arguments
from polytile.problem import digest

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


READ_AGAIN = 2.5e-6
"""Seconds until a product reads what a kernel has stored for it: with int4 weights, 10 sizes on an H200 took 1.5 to 4 µs longer
than both kernels are predicted to."""


class MaterialisedOperands(Composed):
    """Stores the computed operands, then multiplies them. `first` has the prologues' kernels, None for an operand that is in
    memory already; `product` is the plain product."""

    name = "materialised operands"

    def __init__(self, kernel: GemmKernel, first: Sequence[InnerKernel | None], product: InnerKernel) -> None:
        self.kernel, self.first, self.product = kernel, tuple(first), product
        self.inner = [product]

    @cached_property
    def source_hash(self) -> str:
        return digest(f"stored first {torch.__version__} {self.kernel.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Predicted seconds of the plain product and of each prologue, at their best."""
        prologues = zip("ab", self.first, strict=True)
        ahead = sum(READ_AGAIN + self._prologue_cost(letter, kernel, sizes) for letter, kernel in prologues if kernel is not None)
        return best_cost(self.product, sizes, default=1.0) + ahead

    def _prologue_cost(self, letter: str, kernel: InnerKernel, sizes: Mapping[str, int]) -> float:
        """Predicted seconds of the prologue of operand "a" or "b", whose integers begin with that letter among the product's; 0
        if `sizes` lacks one of them."""
        own = {name: sizes[f"{letter}{name}"] for name in kernel.spec.size_names if f"{letter}{name}" in sizes}
        return best_cost(kernel, own) if len(own) == len(kernel.spec.size_names) else 0.0

    def inner_calls(self, ints: Sequence[int]) -> Iterable[tuple[InnerKernel, Sequence[int]]]:
        _, rest, prologues = split_arguments(self.kernel, (*[None] * len(self.kernel.tensors), *ints))
        yield from ((kernel, own) for kernel, own in zip(self.first, prologues, strict=True) if kernel is not None)
        yield self.product, rest[len(rest) - len(self.kernel.plain.size_names) :]

    def _call(self, *args: Any) -> None:
        self.product(*materialise_operands(self.kernel, args, self.first, wide=False))
