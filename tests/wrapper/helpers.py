"""Programs run through the wrapper with the reference interpreter in place of compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch

from polytile.frontend.lower.value import Tensor, stored
from polytile.ir.buffer import View, whole
from polytile.ir.evaluate import run_loop
from polytile.ir.library_call import Ref
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Program
from polytile.ir.template import Template
from polytile.passes.fusion.graph import symbols_of
from polytile.runtime import compile as compiling
from polytile.wrapper import KernelCall, Line, Wrapped, backend, compiled, cpp, python, schedule
from tests import interpret
from tests.passes.helpers import CPU, Net

aten = torch.ops.aten


def kernel_call(operation: Loop | Template, program: Program) -> KernelCall:
    """A call of `operation` as the interpreter runs it. Memory that it alone writes, and does not read, is filled with NaN
    first: if another live buffer were in that memory, its values would be gone."""
    alone = {n for n in operation.writes() if sum(n in other.writes() for other in program.operations) == 1}
    names = tuple(sorted(operation.reads() | operation.writes()))
    symbols = tuple(sorted(_symbols(operation, program), key=str))

    def run(*args: Any) -> None:
        tensors = dict(zip(names, args[: len(names)], strict=True))
        values = dict(zip(symbols, args[len(names) :], strict=True))
        read = {tensors[name].data_ptr() for name in operation.reads()}
        for name in alone - operation.reads():
            if tensors[name].data_ptr() not in read and tensors[name].is_floating_point() and not _partial(operation):
                tensors[name].fill_(float("nan"))
        if isinstance(operation, Loop):
            run_loop(operation, tensors, values, None)
        else:
            interpret.run_template(operation, tensors, values, None)

    return KernelCall(operation.name, run, names, symbols)


def _partial(operation: Loop | Template) -> bool:
    """Whether the operation may leave elements as they are."""
    loop = operation if isinstance(operation, Loop) else operation.epilogue
    return loop is not None and any(s.mode != "set" or s.indirect or s.mask is not None for s in loop.stores)


def _symbols(operation: Loop | Template, program: Program) -> set[sympy.Symbol]:
    loop = operation if isinstance(operation, Loop) else operation.epilogue
    own = set(loop.ranges) if loop is not None else set()
    found = symbols_of(operation, program)
    return {s for s in found if s not in own and not s.name.startswith("ind")}


def lines_of(
    program: Program, inplace: Mapping[str, str] | None = None, traced: Mapping[sympy.Symbol, int] | None = None
) -> tuple[Line, ...]:
    return schedule(program, lambda operation: kernel_call(operation, program), inplace, traced)


TARGETS = "python", "cpp", "fx"


def written(name: str, given: tuple[Line, ...], target: str = "python") -> Wrapped:
    """What a backend makes of lines; of "cpp" the program in C itself, compiled now."""
    if target != "cpp":
        return backend(target)(name, given)
    text = python.write(name, given)
    plain = python.load(name, f"{text.source()}\n{cpp.write(given, text)}", text.scope)
    unit = compiled.unit_of(plain)
    assert unit is not None
    library = compiling.compile_c(compiled.FILE, unit.source, compiled.FLAGS).result()
    return Wrapped(plain.source, compiled.in_c(name, unit, library, plain.call))


def wrapped(program: Program, inplace: Mapping[str, str] | None = None, target: str = "python") -> Wrapped:
    return written(program.name, lines_of(program, inplace), target)


class LibraryNet(Net):
    """A Net with library calls."""

    def library(
        self, target: Any, x: Tensor, *args: Any, like: tuple[Tensor, ...] | None = None, many: bool = False
    ) -> Any:
        """`target(x, *args)` with results laid out like `like`, or like x; one bare tensor unless `many`."""
        assert x.view is not None
        buffers = [self.builder.new_buffer(t.sizes, t.dtype, CPU, t.view.strides) for t in like or (x,) if t.view]
        name = self.builder.name("lib")
        given = (Ref(x.view), *args)
        outputs = tuple(b.name for b in buffers)
        self.builder.emit(Extern(name, target, given, (), outputs, (str(target),), "a test wants it so", many=many))
        results = tuple(stored(whole(b), CPU) for b in buffers)
        return results if many else results[0]


def like(x: Tensor, **changes: Any) -> Tensor:
    """A stand-in for a result: `x` with other sizes, strides or dtype."""
    assert x.view is not None
    view: View = replace(x.view, **changes)
    return stored(view, CPU)
