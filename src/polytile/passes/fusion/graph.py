"""Dependencies between operations as bitmasks, and which operations can be fused without violating them."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from polytile.ir.attention import Attention
from polytile.ir.buffer import View
from polytile.ir.calls import numbers_in
from polytile.ir.library_call import Made, refs_in
from polytile.ir.loop import Loop
from polytile.ir.program import Assert, Extern, Operation, Program
from polytile.ir.template import Template


class Graph:
    """The operations of a program during fusion. A group of fused operations is numbered by its last member; every original
    operation keeps its bit.

    `before[i]` and `after[i]` hold the operations that must run before and after group i, directly or transitively. Dependencies
    are read after write, write after read, write after write, sizes known only at run time, and the order of side effects.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operations: dict[int, Operation] = dict(enumerate(program.operations))
        count = len(program.operations)
        self.members = [1 << i for i in range(count)]
        self.before = [0] * count
        self.after = [0] * count
        for i, direct in enumerate(_direct(program)):
            for d in bits(direct):
                self.before[i] |= self.before[d] | 1 << d
        for i in range(count):
            for d in bits(self.before[i]):
                self.after[d] |= 1 << i

    def ordered(self, i: int, j: int) -> tuple[int, int] | None:
        """(i, j) or (j, i), the order in which the two must run; None if another operation must run between them."""
        if self.before[i] & self.members[j]:
            i, j = j, i
        between = self.after[i] & self.before[j] & ~(self.members[i] | self.members[j])
        return None if between else (i, j)

    def merge(self, i: int, j: int, operation: Operation) -> int:
        """Merge groups i and j into one that runs `operation`, and return its number."""
        new, old = max(i, j), min(i, j)
        both = self.members[i] | self.members[j]
        before = (self.before[i] | self.before[j]) & ~both
        after = (self.after[i] | self.after[j]) & ~both
        del self.operations[old]
        self.operations[new] = operation
        self.members[new], self.before[new], self.after[new] = both, before, after
        for k in self.operations:
            if k != new and self.before[k] & both:
                self.before[k] |= before | both
            if k != new and self.after[k] & both:
                self.after[k] |= after | both
        return new

    def in_order(self) -> tuple[Operation, ...]:
        """The operations in an order that respects every dependency and stays close to the original one."""
        left, done = sorted(self.operations), 0
        result = []
        while left:
            ready = next(k for k in left if not self.before[k] & ~done)
            left.remove(ready)
            done |= self.members[ready]
            result.append(self.operations[ready])
        return tuple(result)


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _direct(program: Program) -> Iterator[int]:
    """For each operation, the mask of its direct dependencies."""
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    definers = _definers(program)
    effects = asserts = 0
    for i, operation in enumerate(program.operations):
        reads, writes = operation.reads(), operation.writes()
        mask = asserts
        for name in reads:
            mask |= writers.get(name, 0)
        for name in writes:
            mask |= writers.get(name, 0) | readers.get(name, 0)
        if definers:
            mask |= _or(definers[s] for s in symbols_of(operation, program) if s in definers)
        if isinstance(operation, Extern) and has_effect(operation):
            mask |= effects
            effects = 1 << i
        if isinstance(operation, Assert):
            asserts |= 1 << i
        for name in reads:
            readers[name] = readers.get(name, 0) | 1 << i
        for name in writes:
            writers[name] = writers.get(name, 0) | 1 << i
        yield mask & ((1 << i) - 1)


def _or(masks: Iterator[int]) -> int:
    total = 0
    for mask in masks:
        total |= mask
    return total


def _definers(program: Program) -> dict[sympy.Symbol, int]:
    """Sizes known only at run time, mapped to the mask of operations that define them."""
    definers: dict[sympy.Symbol, int] = {}
    for i, operation in enumerate(program.operations):
        if isinstance(operation, Extern):
            definers.update({symbol: 1 << i for symbol, _ in operation.symbols})
        for symbol, name in program.scalars.items():
            if name in operation.writes():
                definers[symbol] = definers.get(symbol, 0) | 1 << i
    return definers


def symbols_of(operation: Operation, program: Program) -> set[sympy.Symbol]:
    """Size symbols that must be known before `operation` runs, including those of the buffers that it fills."""
    symbols: set[sympy.Symbol] = set()
    for name in operation.writes() | operation.reads():
        buffer = program.buffers[name]
        symbols |= set().union(*[s.free_symbols for s in buffer.sizes + buffer.strides])
    match operation:
        case Loop():
            symbols |= _loop_symbols(operation)
        case Template():
            symbols |= _symbols_in(operation.a, operation.b, operation.out, *operation.views_beside)
            symbols |= _loop_symbols(operation.epilogue) if operation.epilogue is not None else set()
        case Attention():
            symbols |= _symbols_in(*operation.views)
            symbols |= _loop_symbols(operation.scores) if operation.scores is not None else set()
        case Extern():
            symbols |= _symbols_in(*refs_in((operation.args, operation.kwargs)))
        case Assert():
            symbols |= getattr(operation.condition, "free_symbols", set())
    return symbols


def _symbols_in(*held: View | sympy.Expr | Made) -> set[sympy.Symbol]:
    return set().union(*[number.free_symbols for each in held for number in numbers_in(each)])


def _loop_symbols(loop: Loop) -> set[sympy.Symbol]:
    sizes = [a.size.free_symbols for a in loop.axes + loop.reduced]
    return set().union(*sizes, *[s.symbols() for s in loop.stores])


def has_effect(call: Extern) -> bool:
    """Whether a library call has side effects: it mutates an argument, draws random numbers, returns nothing (like an assertion),
    or has no schema."""
    schema, tags = getattr(call.target, "_schema", None), getattr(call.target, "tags", ())
    if call.mutates or schema is None:
        return True
    return not schema.returns or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags
