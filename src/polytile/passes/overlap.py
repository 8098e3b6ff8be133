"""Collectives begin early and are waited for late, so that other operations run while they are under way:

    a = all_reduce(x)                   a = all_reduce(x)
    w = wait_tensor(a)                  loop y = ...
    loop y = ...             →          loop z = ... y
    loop z = ... y                      w = wait_tensor(a)
    loop out = ... w, z                 loop out = ... w, z

Collectives keep their order among themselves, as all ranks have to call them in one order. One that moves up passes at most one
wait for another: each that is under way holds memory, and a program that gathers its weights layer by layer would hold them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polytile.ir.aliases import COLLECTIVES, returns_alias
from polytile.ir.program import Assert, Extern, Operation, Program

MOST_WAITS_PASSED = 1
"""Waits for other collectives that a collective may begin before, as it moves up."""


def overlap_collectives(program: Program) -> Program:
    """`program` with its collectives as far from the waits for them as what they work on allows."""
    if not any(is_wait(operation) for operation in program.operations):
        return program
    memory, operations = _Memory.of(program), list(program.operations)
    for operation in [o for o in reversed(program.operations) if is_wait(o)]:
        _move_down(operations, operation, memory)
    for operation in [o for o in program.operations if is_start(o)]:
        _move_up(operations, operation, memory)
    return replace(program, operations=tuple(operations))


def is_wait(operation: Operation) -> bool:
    """Whether it ends a collective."""
    return _is_collective(operation) and "wait_tensor" in str(operation.target)  # type: ignore[union-attr]  # an Extern


def is_start(operation: Operation) -> bool:
    """Whether it begins a collective."""
    return _is_collective(operation) and not is_wait(operation)


def _is_collective(operation: Operation) -> bool:
    return isinstance(operation, Extern) and getattr(operation.target, "namespace", "") in COLLECTIVES


@dataclass(frozen=True)
class _Memory:
    """`name_of`: a name for the memory of each buffer, the same for those that library calls may make one. `only_read`: the
    buffers that collectives take and do not change; others may read them meanwhile."""

    name_of: Mapping[str, str]
    only_read: frozenset[str]

    @staticmethod
    def of(program: Program) -> _Memory:
        parent = {name: name for name in program.buffers}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        for operation in program.operations:
            if isinstance(operation, Extern) and returns_alias(operation.target):
                shared = [root(name) for name in operation.reads() | operation.writes()]
                for name in shared[1:]:
                    parent[root(name)] = root(shared[0])
        starts = [operation for operation in program.operations if is_start(operation)]
        changed = {name for operation in starts for name in operation.reads() & operation.writes()}
        taken = {name for operation in starts for name in operation.reads()}
        return _Memory({name: root(name) for name in parent}, frozenset(taken - changed))

    def of_all(self, buffers: Iterable[str]) -> set[str]:
        return {self.name_of[name] for name in buffers}


def _move_up(operations: list[Operation], start: Operation, memory: _Memory) -> None:
    """To behind the last operation that it needs, or that comes first by the rules of the module."""
    place = before = operations.index(start)
    waits = 0
    while before > 0:
        other = operations[before - 1]
        waits += is_wait(other)
        if waits > MOST_WAITS_PASSED or is_start(other) or _is_fixed(other) or _writes(other, start, memory):
            break
        if memory.of_all(other.reads()) & memory.of_all(start.reads() & start.writes()):
            break
        before -= 1
    operations.insert(before, operations.pop(place))


def _move_down(operations: list[Operation], wait: Operation, memory: _Memory) -> None:
    """To before the first operation that uses what it waits for, or changes what the collective works on."""
    place = operations.index(wait)
    after = place + 1
    while after < len(operations) and not _uses(operations[after], wait, memory):
        after += 1
    operations.insert(after - 1, operations.pop(place))


def _is_fixed(operation: Operation) -> bool:
    """Whether what comes after it stays there: it ends the program if it fails, or later operations need numbers of it."""
    return isinstance(operation, Assert) or (isinstance(operation, Extern) and bool(operation.symbols))


def _writes(other: Operation, moved: Operation, memory: _Memory) -> bool:
    """Whether `other` may change what `moved` reads or writes."""
    schema = getattr(other.target, "_schema", None) if isinstance(other, Extern) else None
    unknown = isinstance(other, Extern) and not other.mutates and (schema is None or not schema.returns)
    return unknown or bool(memory.of_all(other.writes()) & memory.of_all(moved.reads() | moved.writes()))


def _uses(other: Operation, wait: Operation, memory: _Memory) -> bool:
    own = wait.reads() | wait.writes()
    read = {name for name in other.reads() if name in own or name not in memory.only_read}
    return _writes(other, wait, memory) or bool(memory.of_all(read) & memory.of_all(own))
