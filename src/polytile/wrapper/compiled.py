"""Programs in C behind Python's wrapper: Python's serves from the first call, the one in C takes over between two calls.

A program in C is compiled in the background once the program has been called CALLS times; an object that the cache holds serves
from the first call. The two give the same results, bit for bit: they call the same kernels and operators in the same order.
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
"""Calls of a program after which its C is compiled. A compiler runs for 0.1 to 0.3 s, and a call gains a microsecond a line;
what runs a few times, as most programs of a test or a notebook do, has nothing of it."""

FLAGS = ("-O1",)
"""Of programs in C, which are calls one after the other: -O2 takes a third longer and gains nothing."""

FILE = "program"
"""What the files of programs are called in the cache, before their digest."""

Call = Callable[[list[Any]], list[Any]]


def wrap(name: str, all_lines: tuple[Line, ...]) -> Wrapped:
    """The program of `all_lines`: Python's, and C's as soon as that is there."""
    text = python.write(name, all_lines)
    try:
        in_c = cpp.write(all_lines, text)
    except cpp.NoProgramInC as error:
        log.info("Program %s stays with Python's wrapper: no C for its line %s", name, error)
        in_c = ""
    return load(name, f"{text.source()}\n\n{in_c}", text.scope)


def load(name: str, source: str, scope: Mapping[str, Any]) -> Wrapped:
    """The program whose Python text `source` is, and that in C which the text may hold."""
    plain = python.load(name, source, scope)
    unit = unit_of(plain)
    if unit is None or program.module() is None:
        return plain
    return Wrapped(source, _Swapped(name, unit, plain.call).call, plain.names)


def unit_of(wrapped: Wrapped) -> cpp.Unit | None:
    """What Python's text of a program holds for C."""
    held = wrapped.call.__globals__.get(cpp.NAME)
    return None if held is None else cpp.Unit(*held)


class _Swapped:
    """One program. `call` is a function written in Python, by whose file name programs know each other (runtime/programs.py)."""

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
        """What serves until the program in C is asked for."""
        sizes_seen.show(self.call, args)
        self.left -= 1
        if self.left <= 0:
            self.scope["serve"] = self.plain
            compiling.in_background(self.make)
        return self.plain(args)

    def make(self) -> None:
        """Has C serve from the next call on; where it cannot be compiled or loaded, Python's goes on."""
        with self.lock:
            unit, self.unit = self.unit, None
        if unit is None:
            return
        self.scope["serve"] = self.plain
        try:
            library = compiling.compile_c(FILE, unit.source, FLAGS).result()
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
        """Has calls of the program in C use CUDA graphs, where there can be some."""
        try:
            self.call.cuda_graphs = ProgramGraphs(call, device)
        except DeviceError as error:
            self.call.cuda_graphs = f"none: {error}"
            log.warning("Program %s runs without CUDA graphs: %s", self.name, error)


def in_c(name: str, unit: cpp.Unit, library: compiling.Library, plain: Call) -> Call:
    """The program of a compiled unit; `plain` makes the calls that it declines, of arguments that are no plain tensors. Raises
    LoadFailed."""
    program_in_c: Call = program.module().Program(
        name, library.address(cpp.FUNCTION), unit.kernels, unit.parts, unit.constants, unit.errors, unit.arguments,
        unit.tensors, unit.memories, tensors.as_declared, plain,
    )  # fmt: skip
    return program_in_c
