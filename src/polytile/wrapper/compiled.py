"""Programs in C: the Python wrapper serves the first calls, and the program in C takes over between two calls.

A program in C is compiled in the background after CALLS calls of the program; an object in the cache serves from the
first call. The two give bitwise equal results, since they call the same kernels and operators in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from polytile import locks, options
from polytile.errors import CacheError, CompileFailed, CompilerMissing, DeviceError
from polytile.runtime import compile as compiling
from polytile.runtime import program, programs, sizes_seen
from polytile.runtime.cuda.graphs import ProgramGraphs
from polytile.wrapper import cpp, python, tensors
from polytile.wrapper.backends import Wrapped
from polytile.wrapper.lines import Line

log = logging.getLogger("polytile")

CALLS = 10
"""Number of calls after which a program's C is compiled. The compiler runs for 0.1 to 0.3 s and saves a microsecond per
line and call, which does not pay for a program that runs a few times, as in most tests and notebooks."""

FLAGS = ("-O1",)
"""Compiler flags of programs in C. They are sequences of calls, for which -O2 takes a third longer and gains nothing."""

FILE = "program"
"""Stem of programs' file names in the cache, before the digest."""

Call = Callable[[list[Any]], list[Any]]


def wrap(name: str, all_lines: tuple[Line, ...]) -> Wrapped:
    """The program of `all_lines`: in Python, and in C once that is compiled."""
    text = python.write(name, all_lines)
    try:
        in_c = cpp.write(all_lines, text)
    except cpp.NoProgramInC as error:
        log.info("Program %s stays with Python's wrapper: no C for its line %s", name, error)
        in_c = ""
    return load(name, f"{text.source()}\n\n{in_c}", text.scope)


def load(name: str, source: str, scope: Mapping[str, Any]) -> Wrapped:
    """The program with the Python text `source`, and its form in C if the text has one."""
    plain = python.load(name, source, scope)
    unit = unit_of(plain)
    if unit is None or program.module() is None:
        return plain
    return Wrapped(source, _Swapped(name, unit, plain.call).call, plain.names)


def unit_of(wrapped: Wrapped) -> cpp.Unit | None:
    """The C form of a program, as stored in its Python text; None if it has none."""
    held = wrapped.call.__globals__.get(cpp.NAME)
    return None if held is None else cpp.Unit(*held)


class _Swapped:
    """One program. `call` is a Python function, since programs identify each other by its file name (runtime/programs.py)."""

    def __init__(self, name: str, unit: cpp.Unit, plain: Call) -> None:
        self.name, self.plain = name, plain
        self.unit: cpp.Unit | None = unit
        self.left = CALLS
        self.wants_graphs = options.get("cuda_graphs") == "auto" and unit.device >= 0
        self.lock = locks.lock()
        self.scope: dict[str, Any] = {"serve": self.count}
        exec(compile("def call(args):\n    return serve(args)\n", programs.new_file(name), "exec"), self.scope)
        self.call: Any = self.scope["call"]
        self.call._boxed_call = self.call.becomes_c = True
        if self.wants_graphs:
            self.call.cuda_graphs = "none: the program is not in C yet"
        if compiling.has_c(FILE, unit.source, FLAGS):
            self.make()

    def count(self, args: list[Any]) -> list[Any]:
        """Serves calls until the program in C is requested."""
        sizes_seen.show(self.call, args)
        self.left -= 1
        if self.left <= 0:
            self.scope["serve"] = self.plain
            compiling.in_background(self.make)
        return self.plain(args)

    def make(self) -> None:
        """Switches to the program in C from the next call on. If it cannot be compiled or loaded, Python continues to serve."""
        with self.lock:
            unit, self.unit = self.unit, None
        if unit is None:
            return
        self.scope["serve"] = self.plain
        try:
            library = compiling.compile_c(FILE, unit.source, FLAGS, beside_calls=True).result()
            program_in_c = in_c(self.name, unit, library, self.plain)
            if self.wants_graphs:
                self.use_graphs(program_in_c, unit.device)
            sizes_seen.serve(self.call, program_in_c)
            self.scope["serve"] = program_in_c
        except (CompilerMissing, CacheError) as error:
            log.info("Program %s stays with Python's wrapper: %s", self.name, error)
        except CompileFailed as error:
            log.warning("Program %s stays with Python's wrapper: %s", self.name, error)

    def use_graphs(self, call: Call, device: int) -> None:
        """Makes calls of the program in C use CUDA graphs, if they are available."""
        try:
            self.call.cuda_graphs = ProgramGraphs(call, device)
        except DeviceError as error:
            self.call.cuda_graphs = f"none: {error}"
            log.warning("Program %s runs without CUDA graphs: %s", self.name, error)


def in_c(name: str, unit: cpp.Unit, library: compiling.Library, plain: Call) -> Call:
    """The program of a compiled unit. Calls with arguments that are not plain tensors are declined and go to `plain`.
    Raises LoadFailed."""
    program_in_c: Call = program.module().Program(
        name, library.address(cpp.FUNCTION), unit.kernels, unit.parts, unit.constants, unit.errors, unit.arguments,
        unit.tensors, unit.memories, tensors.as_declared, plain,
    )  # fmt: skip
    return program_in_c
