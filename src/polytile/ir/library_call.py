"""Library (ATen) calls that a loop stands for, and the references to values among a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from polytile.ir.buffer import View


@dataclass(frozen=True)
class Made:
    """Inside a Ref: the result of an earlier call.

    `call` is the name of an operator of the graph (see Trace), or a position among a loop's library calls. `output` is the index
    among several results, or None for a single one.
    """

    call: str | int
    output: int | None = None


@dataclass(frozen=True)
class LibraryCall:
    """One of the ATen calls that together compute what a loop computes: `target(*args, **kwargs)`.

    Every tensor and size among the arguments is a Ref. A tensor is a View of memory that the loop reads, or Made by an earlier
    call. A View of the buffer "" stands for a tensor of which only the sizes matter.

    Attributes
    ----------
    outputs
        Where the results go in memory; None for a result that only later calls need. Empty if `target` mutates its arguments.
    whole
        Buffers that are viewed only in their own sizes and strides, and so can be passed unchanged.
    moved
        Bytes of arguments and results per point of the loop, and per row.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[View | None, ...]
    whole: frozenset[str] = frozenset()
    moved: tuple[int, int] = (0, 0)

    def views(self) -> list[View]:
        """All memory that the call reads or writes."""
        views = [*views_in((self.args, self.kwargs)), *[view for view in self.outputs if view is not None]]
        return [view for view in views if view.buffer]


@dataclass(frozen=True)
class Ref:
    """A value inside a library call's arguments: a View, a symbolic size, or the result of another call."""

    value: View | sympy.Expr | Made


def refs_in(value: Any) -> Iterator[View | sympy.Expr | Made]:
    """The values of all Refs inside nested arguments."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from refs_in(item)


def map_refs(value: Any, rule: Callable[[View | sympy.Expr | Made], Any]) -> Any:
    """Nested arguments with each Ref replaced by `rule(value of the Ref)`."""
    if isinstance(value, Ref):
        return rule(value.value)
    if isinstance(value, tuple | list):
        return type(value)(map_refs(item, rule) for item in value)
    return {key: map_refs(item, rule) for key, item in value.items()} if isinstance(value, dict) else value


def views_in(value: Any) -> Iterator[View]:
    """The views inside nested arguments."""
    return (each for each in refs_in(value) if isinstance(each, View))
