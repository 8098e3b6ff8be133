"""One revision's side of `benchmarks.gpu.revisions`: answers, line by line, what cells there are and what they take.

Its process runs this file with the modules of either revision. It therefore imports only what the older one has too.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import benchmarks  # noqa: F401 (newer revisions say there that calls wait for measured kernels)
from benchmarks.compilers import copied
from benchmarks.gpu import ahead, grid, products
from benchmarks.gpu.functions import BY_NAME, SHAPES, TRACED
from benchmarks.gpu.functions import DTYPES as OF_LOOPS
from benchmarks.gpu.gemm import OPTIONS
from benchmarks.gpu.product_cell import switch
from benchmarks.gpu.products_ahead import Compiled
from benchmarks.gpu.replay import kernel_times

Cell = Mapping[str, Any]
"""A function, its dtype and shape; of products also the part."""
Calls = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
"""Eager's function, polytile's, and their arguments."""


class Loops:
    """The grid of loops (`grid.py`): one dynamic compile of each function and dtype."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], Callable[..., Any]] = {}
        self._at_first: dict[tuple[str, str], list[str]] = {}
        self._known: set[str] = set()

    def cells(self, dtypes: Sequence[str], step: int) -> list[Cell]:
        functions = [(dtype, function) for dtype in dtypes if dtype in OF_LOOPS for function in BY_NAME.values()]
        return [
            {"function": function.name, "dtype": dtype, "shape": shape}
            for dtype, function in functions
            for shape in SHAPES
            if shape[0] >= function.rows
        ]

    def prepare(self, cells: Sequence[Cell], seconds: float) -> float:
        """Compiles ahead what the cells will try, for so many seconds at most; gives how many it took."""
        functions, dtypes, shapes = (list(dict.fromkeys(each)) for each in zip(*map(_key, cells), strict=True))
        return ahead.run([BY_NAME[name] for name in functions], dtypes, shapes, set(), seconds)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Kernel µs of eager and polytile, and the decisions made for the cell."""
        name, dtype, shape = _key(cell)
        function, ours = BY_NAME[name], self._compiled(name, dtype)
        torch.manual_seed(0)
        times, chosen = _measured((function.run, ours, function.make(shape, OF_LOOPS[dtype])), self._known)
        return {"us": times, "chosen": chosen or (self._at_first[name, dtype] if shape == TRACED else [])}

    def _compiled(self, name: str, dtype: str) -> Callable[..., Any]:
        if (name, dtype) not in self._calls:
            function = BY_NAME[name]
            torch.manual_seed(0)
            copy = copied(function.run, f"ours_{name}_{dtype}")
            call = torch.compile(copy, backend="polytile", dynamic=True, options={**grid.OPTIONS})
            call(*function.make(TRACED, OF_LOOPS[dtype]))
            self._calls[name, dtype], self._at_first[name, dtype] = call, grid.new_decisions(self._known)
        return self._calls[name, dtype]


class Products:
    """Parts of the grid of products (`products.py`): one dynamic compile of each function and dtype."""

    PARTS = ("square", "thin", "epilogue", "long", "odd", "batch", "llm")

    def __init__(self) -> None:
        self._cases = {(case.part, case.name): case for case in products.cases(4096)}
        self._compiled: dict[tuple[str, str, str], Compiled] = {}
        self._known: set[str] = set()

    def cells(self, dtypes: Sequence[str], step: int) -> list[Cell]:
        return [
            {"part": case.part, "function": case.name, "dtype": dtype, "shape": shape}
            for case in products.cases(step)
            if case.part in self.PARTS
            for dtype in case.dtypes
            if dtype in dtypes
            for shape in case.shapes
        ]

    def prepare(self, cells: Sequence[Cell], seconds: float) -> float:
        """Asks for what the cells will try, to be compiled while they are measured."""
        for cell in cells:
            self._of(cell).ask([tuple(cell["shape"])])
        return 0.0

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Kernel µs of eager and polytile, and the decisions made for the cell."""
        compiled, run = self._of(cell), self._cases[cell["part"], cell["function"]].run
        grid.new_decisions(self._known)
        torch.manual_seed(0)
        times, chosen = _measured((run, compiled.call, compiled.make(*cell["shape"])), self._known)
        return {"us": times, "chosen": chosen}

    def _of(self, cell: Cell) -> Compiled:
        case, dtype = self._cases[cell["part"], cell["function"]], cell["dtype"]
        switch(dtype)
        key = (case.part, case.name, dtype)
        if key not in self._compiled:

            def make(m: int, n: int, k: int) -> tuple[Any, ...]:
                return case.make(m, n, k, products.DTYPES[dtype])

            self._compiled[key] = Compiled(copied(case.run, "ours"), make, case.traced, OPTIONS)
        return self._compiled[key]


def _key(cell: Cell) -> tuple[str, str, tuple[int, int]]:
    m, n = cell["shape"]
    return cell["function"], cell["dtype"], (m, n)


def _measured(calls: Calls, known: set[str]) -> tuple[dict[str, float], list[str]]:
    """Kernel µs of one call of each, and the decisions that the first call makes."""
    eager, ours, args = calls
    ours(*args)
    torch.cuda.synchronize()
    bound = {"eager": functools.partial(eager, *args), "polytile": functools.partial(ours, *args)}
    times = {name: round(us, 4) for name, us in kernel_times(bound).items()}
    return times, list(dict.fromkeys(grid.new_decisions(known)))


KINDS = {"loops": Loops, "products": Products}


def stay(kind: str) -> None:
    """Calls the methods that the standard input asks for, and answers as `benchmarks.contestants.stay` does, which the older
    revision may lack. What is printed goes to the standard error."""
    torch._dynamo.config.recompile_limit = 256
    side = KINDS[kind]()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            method, *values = json.loads(line)
            try:
                found = {"value": getattr(side, method)(*values)}
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


if __name__ == "__main__":
    stay(sys.argv[1])
