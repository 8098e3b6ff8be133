"""Kernels that are asked for ahead of the cells that measure them: the machine's cores compile what later cells will try
while the GPU measures earlier ones.

Every function is compiled once, at sizes that are told apart, and runs there as Dynamo traced it, so that nothing is waited for.
Which of its arguments' sizes each size of its graph is, is seen from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import polytile
from polytile.compiler import backend
from polytile.dispatch.multikernel import MultiKernel
from polytile.frontend import hints
from polytile.ir import sizes

Sizes = tuple[int, ...]
"""A shape of a function: from it `make` makes the arguments."""
_Graph = tuple[list[int], Mapping[sympy.Symbol, int], Any]
"""The arguments' sizes, the graph's sizes among them, and the program made of it."""


class Compiled:
    """One dynamic compile of `run`, whose arguments `make(*shape)` gives; of those at the shape `traced` no two sizes are equal
    but where they always are. `ask` has kernels compiled in the background."""

    def __init__(
        self, run: Callable[..., Any], make: Callable[..., tuple[Any, ...]], traced: Sizes, options: Mapping[str, Any]
    ) -> None:
        self.make, self.traced, self.options = make, traced, options
        self.call = torch.compile(run, backend=self._backend, dynamic=True)
        self._sizes: Mapping[sympy.Symbol, int] = {}
        self._graphs: dict[Sizes, _Graph] = {}
        self._tracing = False

    def ask(self, shapes: Sequence[Sizes]) -> None:
        """Asks for all that first calls at these shapes are going to try, where that depends on the arguments' sizes alone. Sizes
        of 1 are graphs of their own."""
        grouped: dict[Sizes, list[Sizes]] = {}
        for shape in shapes:
            traced = tuple(1 if size == 1 else own for size, own in zip(shape, self.traced, strict=True))
            grouped.setdefault(traced, []).append(shape)
        for traced, wanted in grouped.items():
            for calls in self.calls(traced, wanted):
                for multikernel, integers in calls:
                    multikernel.prepare(integers)

    def calls(self, traced: Sizes, shapes: Sequence[Sizes]) -> Iterator[list[tuple[MultiKernel, list[int]]]]:
        """For each shape what the graph that is traced at `traced` calls there, with the integers of each call, where these
        depend on the arguments' sizes alone."""
        was, symbols, program = self._graph(traced)
        for shape in shapes:
            became = dict(zip(was, self._sizes_at(shape), strict=True))
            values = {symbol: became[size] for symbol, size in symbols.items()}
            yield [
                (multikernel, [sizes.evaluate(size, values) for size in call.sizes])
                for multikernel, call in program.calls
                if all(size.free_symbols <= values.keys() for size in call.sizes)
            ]

    def _graph(self, traced: Sizes) -> _Graph:
        if traced not in self._graphs:
            args = self.make(*traced)
            self._tracing = True
            self.call(*args)
            self._tracing = False
            self._graphs[traced] = _sizes(args), self._sizes, polytile.compiler.programs.compiled_programs()[-1]
        return self._graphs[traced]

    def _backend(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self._sizes = hints.sizes_of(graph)
        compiled = backend.polytile(graph, inputs, options=self.options)
        return lambda *args: (graph if self._tracing else compiled)(*args)

    def _sizes_at(self, shape: Sizes) -> list[int]:
        with FakeTensorMode():
            return _sizes(self.make(*shape))


def _sizes(args: Sequence[torch.Tensor]) -> list[int]:
    return [size for tensor in args for size in tensor.shape]


__all__ = ["Compiled"]
