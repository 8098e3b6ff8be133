"""Finds the memories of a program that may share one arena, and their live ranges.

A memory is the result of an Allocate or a library call, under every name that Reuse gives it. It may lie in the arena if only
kernels access it: no library call, which may retain or return it, and nobody outside the program. Offsets in the arena are
computed for the sizes of a call (runtime/arena.c), as is the decision whether an arena raises peak memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import torch

from polytile.ir.buffer import Buffer
from polytile.wrapper import lines
from polytile.wrapper.lines import Line


@dataclass
class Memory:
    """A memory that is first known as `buffer`, or that the argument of this name brings. It is live from line `first`
    until before line `last`. `inside`: it may lie in the arena."""

    buffer: Buffer | str
    first: int
    last: int
    inside: bool
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Arena:
    """All memories on one device whose sizes are known once the arguments are, in line order. Includes arguments that
    may be freed before the end."""

    device: torch.device
    memories: tuple[Memory, ...]

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The number in the arena of each Allocate's memory, by buffer name. Other buffers are allocated separately."""
        own = ((memory.buffer, number) for number, memory in enumerate(self.memories) if memory.inside)
        return {buffer.name: number for buffer, number in own if isinstance(buffer, Buffer)}


def arena(all_lines: Sequence[Line], known: Set[str]) -> Arena | None:
    """The arena of a program, given the symbols whose values are known with the arguments; None if it would hold fewer
    than two memories."""
    memories = memories_of(all_lines)
    shown = _seen_by_others(all_lines)
    sized = [memory for memory in memories if _symbols_of(memory.buffer) <= known]
    for memory in sized:
        memory.inside = memory.inside and not memory.names & shown
    devices = {memory.buffer.device for memory in sized if isinstance(memory.buffer, Buffer)}
    if sum(memory.inside for memory in sized) < 2 or len(devices) != 1:
        return None
    return Arena(devices.pop(), tuple(sized))


def _symbols_of(buffer: Buffer | str) -> set[str]:
    if isinstance(buffer, str):
        return set()
    return {symbol.name for extent in (*buffer.sizes, *buffer.strides) for symbol in extent.free_symbols}


def memories_of(all_lines: Sequence[Line]) -> list[Memory]:
    memories: list[Memory] = []
    owner: dict[str, Memory] = {}
    alive: dict[int, set[str]] = {}
    for position, line in enumerate(all_lines):
        if isinstance(line, lines.TakeArguments):
            for name in line.names:
                owner[name] = Memory(name, 0, len(all_lines), False, {name})
                alive[id(owner[name])] = {name}
            memories += [memory for name, memory in owner.items() if name not in line.kept]
        elif isinstance(line, lines.Allocate | lines.PickOutput):
            memory = Memory(line.buffer, position, len(all_lines), isinstance(line, lines.Allocate), {line.buffer.name})
            memories.append(memory)
            owner[line.buffer.name] = memory
            alive[id(memory)] = {line.buffer.name}
        elif isinstance(line, lines.Reuse) and line.old.name in owner:
            memory = owner[line.buffer.name] = owner[line.old.name]
            memory.names.add(line.buffer.name)
            alive[id(memory)].add(line.buffer.name)
        elif isinstance(line, lines.Free) and line.name in owner:
            memory = owner[line.name]
            alive[id(memory)].discard(line.name)
            if not alive[id(memory)]:
                memory.last = position
    return [memory for memory in memories if isinstance(memory.buffer, Buffer) or memory.last < len(all_lines)]


def _seen_by_others(all_lines: Sequence[Line]) -> set[str]:
    """Names of buffers accessed by anything but a kernel, directly or through a view."""
    base = {line.name: line.view.buffer for line in all_lines if isinstance(line, lines.MakeView)}
    seen: set[str] = set()
    for line in all_lines:
        if not isinstance(line, lines.CallKernel | lines.MakeView | lines.Reuse):
            seen |= {base.get(name, name) for name in tensors_of(line)}
        elif isinstance(line, lines.MakeView) and line.alias:
            seen.add(line.view.buffer)
    return seen


def tensors_of(line: Line) -> Iterable[str]:
    """Names of the tensors that a line reads."""
    if isinstance(line, lines.ReadSize):
        yield line.tensor
    elif isinstance(line, lines.Reuse):
        yield line.old.name
    elif isinstance(line, lines.MakeView):
        yield line.view.buffer
    elif isinstance(line, lines.FindPackedWeight):
        yield line.weight
    elif isinstance(line, lines.CallKernel):
        yield from line.tensors
    elif isinstance(line, lines.CallLibrary):
        given = lines.arguments_in((line.args, line.kwargs))
        yield from (argument.value for argument in given if isinstance(argument.value, str))
    elif isinstance(line, lines.Return):
        yield from (value for value in line.values if isinstance(value, str))
