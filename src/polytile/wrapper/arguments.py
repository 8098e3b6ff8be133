"""The first lines of a wrapper: bind the arguments to names and every size symbol to its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import sympy

from polytile.errors import IRError
from polytile.ir import sizes
from polytile.ir.program import Program
from polytile.wrapper import lines
from polytile.wrapper.lines import BindSize, FindPackedWeight, Line, PickSize, ReadSize, TakeArguments

Fact = tuple[sympy.Expr, Callable[[sympy.Symbol], Line]]
"""A size expression of an argument, and the function that makes the line binding a symbol to its value."""


def argument_lines(program: Program, fresh: Callable[[str], str]) -> list[Line]:
    """Binds the arguments, then every symbol that their sizes determine.

    An integer argument that is a symbol is bound to that symbol's name. Sizes without an integer argument are read from
    tensors. A symbol that occurs only inside an expression is solved for. `fresh(prefix)` makes unique names.
    """
    known: dict[sympy.Symbol, None] = {}
    names = []
    for item in program.inputs:
        if isinstance(item.size, sympy.Symbol) and item.size not in known:
            known[item.size] = None
            names.append(item.size.name)
        else:
            names.append(item.name)
    kept = frozenset(buffer.name for buffer in program.buffers.values() if buffer.role == "input" and buffer.weight)
    out: list[Line] = [lines.TakeArguments(tuple(names), kept)]
    facts = list(_facts(program))
    for size, line in facts:
        if isinstance(size, sympy.Symbol) and size not in known:
            known[size] = None
            out.append(line(size))
    while solved := _solve(facts, known, fresh):
        out += solved
    return out


def _facts(program: Program) -> Iterator[Fact]:
    """What each argument reveals about sizes, cheapest first."""
    for item in program.inputs:
        if item.size is not None and not isinstance(item.size, sympy.Symbol):
            yield item.size, partial(BindSize, value=sizes.axis(item.name))
    for item in program.inputs:
        if item.buffer is not None:
            buffer = program.buffers[item.buffer]
            for stride, extents in ((False, buffer.sizes), (True, buffer.strides)):
                for d, size in enumerate(extents):
                    yield size, partial(ReadSize, tensor=buffer.name, dim=d, stride=stride)


def _solve(facts: Sequence[Fact], known: dict[sympy.Symbol, None], fresh: Callable[[str], str]) -> list[Line]:
    """Solves c·s + d = value, s = (value - d) // c, for the first expression in which s is the only unknown."""
    for size, line in facts:
        unknown = [s for s in sorted(size.free_symbols, key=str) if s not in known]
        if len(unknown) != 1 or sizes.coefficient(size, unknown[0]) is None:
            continue
        value = sizes.axis(fresh("size"))
        solution = sizes.solve(size, unknown[0], value)
        assert solution is not None
        known[unknown[0]] = None
        return [line(value), BindSize(unknown[0], solution)]
    return []


def used_symbols(body: Sequence[Line]) -> set[str]:
    """Names of the symbols that the lines read."""
    return {symbol.name for symbol in symbols_in(body)}


def symbols_in(value: object) -> set[sympy.Symbol]:
    """All symbols that a line mentions, or some lines."""
    if isinstance(value, sympy.Basic):
        return set(value.free_symbols)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = [*vars(value).values()]
    return set().union(*map(symbols_in, value)) if isinstance(value, tuple | list) else set()


def check_bound(all_lines: Sequence[Line]) -> None:
    """Raises IRError if a line reads a symbol that no earlier line binds."""
    bound: set[str] = set()
    for line in all_lines:
        symbol = line.symbol if isinstance(line, BindSize | ReadSize | PickSize | FindPackedWeight) else None
        own = {symbol.name} if symbol is not None else set()
        bound |= set(line.names) if isinstance(line, TakeArguments) else set()
        if unbound := used_symbols([line]) - own - bound:
            raise IRError(f"{type(line).__name__} needs {', '.join(sorted(unbound))}, which no earlier line defines.")
        bound |= own


def without_unused(head: Sequence[Line], body: Sequence[Line]) -> list[Line]:
    """`head` without the bindings that neither it nor `body` reads."""
    used = used_symbols(body)
    kept: list[Line] = []
    for line in reversed(head):
        if isinstance(line, BindSize | ReadSize) and line.symbol.name not in used:
            continue
        if isinstance(line, BindSize):
            used |= used_symbols([line])
        kept.append(line)
    return kept[::-1]
