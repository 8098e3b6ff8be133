"""Kernels of products, asked for ahead of the cells that measure them: the machine's cores compile what later cells will try
while the GPU measures earlier ones.

Every function is compiled once, at sizes that tell M, N and K apart, and runs there as library calls, so that nothing is waited
for. Which of the three each size of its graph is, is seen from these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import polytile
from benchmarks.compilers import copied
from benchmarks.gpu.products import DTYPES, Case, Shape
from polytile.frontend import backend, hints
from polytile.ir import sizes

ON_THE_LIBRARY: dict[str, Any] = {"force": "aten*,stored first", "stall": "never"}


class Compiled:
    """One dynamic compile of a case in one type; `ask` has kernels compiled in the background."""

    def __init__(self, case: Case, dtype: str, options: Mapping[str, Any]) -> None:
        self.case, self.dtype, self.options = case, dtype, options
        self.call = torch.compile(copied(case.run, "ours"), backend=self._backend, dynamic=True)
        self._traced: Mapping[sympy.Symbol, int] = {}

    def ask(self, shapes: Sequence[Shape]) -> None:
        """Asks for all that first calls at these shapes are going to try. Sizes of 1 are graphs of their own."""
        grouped: dict[Shape, list[Shape]] = {}
        for shape in shapes:
            m, n, k = (1 if size == 1 else traced for size, traced in zip(shape, self.case.traced, strict=True))
            grouped.setdefault((m, n, k), []).append(shape)
        for traced, wanted in grouped.items():
            args = self.case.make(*traced, DTYPES[self.dtype])
            with polytile.options.override(**ON_THE_LIBRARY):
                self.call(*args)
            program = polytile.compiler.compiled_programs()[-1]
            for shape in wanted:
                became = dict(zip(_sizes(args), self._sizes_at(shape), strict=True))
                values = {symbol: became[size] for symbol, size in self._traced.items()}
                for multikernel, call in program.calls:
                    multikernel.prepare([sizes.evaluate(size, values) for size in call.sizes])

    def _backend(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self._traced = hints.sizes_of(graph)
        return backend.polytile(graph, inputs, options=self.options)

    def _sizes_at(self, shape: Shape) -> list[int]:
        with FakeTensorMode():
            return _sizes(self.case.make(*shape, DTYPES[self.dtype]))


def _sizes(args: Sequence[torch.Tensor]) -> list[int]:
    return [size for tensor in args for size in tensor.shape]


__all__ = ["Compiled"]
