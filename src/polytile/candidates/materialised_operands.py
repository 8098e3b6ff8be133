"""The candidate of a product with prologues that stores the operands first (prologue.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.candidate import PythonEntry
from polytile.matmul.prologue import materialise_operands
from polytile.problem import Config, digest

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


class MaterialisedOperands:
    """The operands are stored by kernels of their own, and the product of operands in memory chooses among its own candidates:
    `first` are the prologues' MultiKernels, `product` that of the plain product. Takes part like a library's kernel: a product
    with prologues is never slower than one without."""

    name = "stored first"
    origin = "library"
    config = Config()
    source_path = ""

    def __init__(self, kernel: GemmKernel, first: Sequence[Any], product: Any) -> None:
        self.kernel, self.first, self.product = kernel, tuple(first), product

    @cached_property
    def source_hash(self) -> str:
        return digest(f"stored first {torch.__version__} {self.kernel.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return True

    def cost(self, sizes: Mapping[str, int]) -> float:
        """The best prediction for the plain product, and those for the prologues: their bytes at the rate of its own."""
        able = [candidate for candidate in self.product.candidates if candidate.valid(sizes)]
        product = min((candidate.cost(sizes) for candidate in able), default=1.0)
        ahead = (self._prologue(made, sizes) for made in self.first if made is not None)
        return product + sum(ahead)

    def _prologue(self, made: Any, sizes: Mapping[str, int]) -> float:
        own = {name: sizes[self._own(made)[name]] for name in made.spec.size_names if self._own(made)[name] in sizes}
        if len(own) < len(made.spec.size_names):
            return 0.0
        return min((candidate.cost(own) for candidate in made.candidates if candidate.valid(own)), default=0.0)

    def _own(self, made: Any) -> dict[str, str]:
        """The prologue's own names of sizes, and those that they have among the product's integers."""
        letter = "ab"[self.first.index(made)]
        return {name: f"{letter}{name}" for name in made.spec.size_names}

    def prepare(self) -> None:
        """The first candidate of the product compiles beside the others."""
        for candidate in self.product.candidates[:1]:
            candidate.prepare()

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        self.product(*materialise_operands(self.kernel, args, self.first, wide=False))


__all__ = ["MaterialisedOperands"]
