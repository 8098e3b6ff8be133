"""A Program becomes one callable: passes, kernels behind MultiKernels, wrapper.

This is the one place that knows all the rooms. What it holds of a compiled graph (operators, kernels, wrapper source) is what
`explain()` reports.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from polytile import options, runtime
from polytile.counters import counters
from polytile.frontend.graph import Lowered, OperatorReport
from polytile.ir import sizes
from polytile.ir.program import Extern, Loop, Program, Template
from polytile.multikernel import MultiKernel
from polytile.multikernel.define import define_loop, define_template
from polytile.passes.pipeline import optimize
from polytile.wrapper import KernelCall, backend, schedule

log = logging.getLogger("polytile")


@dataclass
class CompiledProgram:
    """A compiled graph: call it with the list of arguments (which it empties)."""

    name: str
    program: Program
    operators: tuple[OperatorReport, ...]
    calls: tuple[tuple[MultiKernel, KernelCall], ...]
    run: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    _boxed_call = True

    @property
    def source(self) -> str:
        """Text of the wrapper."""
        return self.run.source

    @property
    def multikernels(self) -> tuple[MultiKernel, ...]:
        return tuple(dict.fromkeys(multikernel for multikernel, _ in self.calls))

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.run(args)


_compiled: list[CompiledProgram] = []
_names = itertools.count()
_lock = threading.Lock()


def compiled_programs() -> tuple[CompiledProgram, ...]:
    """Every graph compiled since the last reset, oldest first."""
    with _lock:
        return tuple(_compiled)


def reset() -> None:
    """Forgets the record of compiled graphs (the graphs themselves go on working) and starts the counters at zero."""
    with _lock:
        _compiled.clear()
    counters.reset()
    runtime.compile.reset()


def compile_program(lowered: Lowered, given: Mapping[str, Any], hints: Mapping[sympy.Symbol, int]) -> CompiledProgram:
    """Generates everything that `lowered` needs. `given` are the options of this compile; `hints` the sizes that the tracer saw:
    kernels for them start compiling at once, side by side.

    Raises CompilerMissing where no C++ compiler is found.
    """
    program, inplace = optimize(lowered.program)
    calls: list[tuple[MultiKernel, KernelCall]] = []

    def call_of(operation: Loop | Template) -> KernelCall:
        define = define_template if isinstance(operation, Template) else define_loop
        multikernel, tensors, extents = define(operation, program.buffers, given)
        call = KernelCall(multikernel.spec.name, multikernel.dispatch, tensors, extents)
        calls.append((multikernel, call))
        return call

    lines = schedule(program, call_of, inplace)
    run = backend("python")(program.name, lines)
    for op in program.operations:
        if isinstance(op, Extern):
            counters.add_library_call(str(op.target))
    counters.add("graphs_compiled")
    compiled = CompiledProgram(program.name, program, lowered.operators, tuple(calls), run, dict(given))
    _prepare(compiled, hints)
    with _lock:
        _compiled.append(compiled)
    if options.get("debug") >= 2:
        log.info("%s", compiled.source)
    return compiled


def _prepare(compiled: CompiledProgram, hints: Mapping[sympy.Symbol, int]) -> None:
    """Starts compiling what the first call will need, all kernels side by side."""
    for multikernel, call in compiled.calls:
        if all(e.free_symbols <= hints.keys() for e in call.sizes):
            multikernel.prepare([sizes.evaluate(e, hints) for e in call.sizes])


def record_library_program(name: str, operators: tuple[OperatorReport, ...], run: Any) -> CompiledProgram:
    """A graph that runs without generated kernels, kept for `explain()` like any other."""
    compiled = CompiledProgram(name, Program(name, (), {}, (), ()), operators, (), run)
    with _lock:
        _compiled.append(compiled)
    return compiled


def warm(compiled: CompiledProgram, values: Sequence[Mapping[sympy.Symbol, int]]) -> None:
    """Chooses kernels for the given values of the graph's size symbols ahead of calls (SPEC H1-H4)."""
    for multikernel, call in compiled.calls:
        wanted = [
            dict(zip(multikernel.spec.size_names, [sizes.evaluate(e, v) for e in call.sizes], strict=True))
            for v in values
            if all(e.free_symbols <= v.keys() for e in call.sizes)
        ]
        if wanted:
            multikernel.warm(wanted)


def program_name(kind: str) -> str:
    """A fresh name: inference0, forward1, backward2, ..."""
    return f"{kind}{next(_names)}"


