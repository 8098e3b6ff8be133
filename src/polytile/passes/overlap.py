"""Starts collectives early and waits for them late, so that other operations overlap with the communication.

    a = all_reduce(x)                   a = all_reduce(x)
    w = wait_tensor(a)                  loop y = ...
    loop y = ...             →          loop z = ... y
    loop z = ... y                      w = wait_tensor(a)
    loop out = ... w, z                 loop out = ... w, z

Collectives keep their relative order, as all ranks must call them in the same order. A collective that moves up passes at most
one wait for another. Each collective in flight holds memory, and a program that gathers its weights layer by layer would
otherwise hold all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polytile.ir.aliases import COLLECTIVES, returns_alias
from polytile.ir.program import Assert, Extern, Operation, Program

MOST_WAITS_PASSED = 1
"""Maximum number of waits for other collectives that a collective may move ahead of."""


def overlap_collectives(program: Program) -> Program:
    """`program` with its collectives as far from their waits as data dependencies allow."""
    if not any(is_wait(operation) for operation in program.operations):
        return program
    memory, operations = _Memory.of(program), list(program.operations)
    for operation in [o for o in reversed(program.operations) if is_wait(o)]:
        _move_down(operations, operation, memory)
    for operation in [o for o in program.operations if is_start(o)]:
        _move_up(operations, operation, memory)
    return replace(program, operations=tuple(operations))


def is_wait(operation: Operation) -> bool:
    """Whether the operation waits for a collective."""
    return _is_collective(operation) and "wait_tensor" in str(operation.target)  # type: ignore[union-attr]  # an Extern


def is_start(operation: Operation) -> bool:
    """Whether the operation starts a collective."""
    return _is_collective(operation) and not is_wait(operation)


def _is_collective(operation: Operation) -> bool:
    return isinstance(operation, Extern) and getattr(operation.target, "namespace", "") in COLLECTIVES


@dataclass(frozen=True)
class _Memory:
    """Which buffers share memory, and which may be read while a collective is in flight.

    `name_of` maps each buffer to a name of its memory; buffers that library calls may alias have the same one. `only_read` holds
    the buffers that collectives read but do not change.
    """

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
    """Move the start of a collective up to the last operation that must precede it."""
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
    """Move a wait down to the first operation that uses its result, or writes memory that the collective uses."""
    place = operations.index(wait)
    after = place + 1
    while after < len(operations) and not _uses(operations[after], wait, memory):
        after += 1
    operations.insert(after - 1, operations.pop(place))


def _is_fixed(operation: Operation) -> bool:
    """Whether later operations must stay behind this one: it may raise, or defines numbers that they need."""
    return isinstance(operation, Assert) or (isinstance(operation, Extern) and bool(operation.symbols))


def _writes(other: Operation, moved: Operation, memory: _Memory) -> bool:
    """Whether `other` may write memory that `moved` reads or writes."""
    schema = getattr(other.target, "_schema", None) if isinstance(other, Extern) else None
    unknown = isinstance(other, Extern) and not other.mutates and (schema is None or not schema.returns)
    return unknown or bool(memory.of_all(other.writes()) & memory.of_all(moved.reads() | moved.writes()))


def _uses(other: Operation, wait: Operation, memory: _Memory) -> bool:
    own = wait.reads() | wait.writes()
    read = {name for name in other.reads() if name in own or name not in memory.only_read}
    return _writes(other, wait, memory) or bool(memory.of_all(read) & memory.of_all(own))
