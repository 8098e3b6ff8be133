"""A graph runs at once, by ATen's operators, while its program is made in the background; then the program takes over.

    tier 0    the graph as AOTAutograd gives it, operator by operator
    tier 1    the program, each kernel by the candidate that is predicted to be fastest
    tier 2    the program, each kernel by what was measured (dispatch/learning.py)

Programs take over between calls: those of a forward and its backward graph together, at the beginning of a forward call, once
both are there. What the forward graph leaves for the backward one has the same layout in every tier, AOTAutograd's.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import locks
from polytile import options as settings
from polytile.counters import counters
from polytile.frontend.eager import with_own_code
from polytile.frontend.failures import CALLERS
from polytile.runtime import background, spare_core
from polytile.runtime.background import Disturbance

log = logging.getLogger("polytile")

Call = Callable[[list[Any]], list[Any]]
Build = Callable[[], Call | None]

clock, threads = time.monotonic, torch.get_num_threads

NOT_POLYTILES_FAULT = (*CALLERS, IndexError, MemoryError, torch.OutOfMemoryError)
"""Errors of a call that are about what it was given."""


@dataclass
class Tiers:
    """The graphs that AOTAutograd made of one function, inference, or forward and backward: they change tiers together."""

    graphs: list[TieredGraph] = field(default_factory=list)
    due: bool = False
    """Whether some graph's next tier is there and has not taken over."""
    lock: Any = field(default_factory=locks.lock)

    def take_over(self) -> None:
        """Has the next tier of each graph serve from now on, if all are there."""
        with self.lock:
            if self.due and all(graph.settled for graph in self.graphs):
                self.due = False
                for graph in self.graphs:
                    graph.take_over()


def noticed(call: Call) -> Call:
    """`call`, of which the background knows that it runs: nothing is measured beside it that would disturb it. It leaves a
    core free for a process that the background waits for."""
    alive = background.background

    def noticed_call(args: list[Any]) -> list[Any]:
        alive.last_call, alive.threads = math.inf, threads()
        try:
            if spare_core.is_wanted():
                with spare_core.leave_one_free():
                    return call(args)
            return call(args)
        finally:
            alive.last_call = clock()

    with_own_code(noticed_call)
    noticed_call._boxed_call = True  # type: ignore[attr-defined]
    return noticed_call


class TieredGraph:
    """One graph. `call` takes the list of arguments, which it empties, and returns the list of results, by the tier that serves.

    `build` makes the program's callable, in the background; None, where it cannot, leaves tier 0 in place. `repeatable`: a call
    that fails half-way can be made again, as it changes no argument and draws no random numbers.
    """

    def __init__(self, tiers: Tiers, name: str, eager: Call, build: Build, repeatable: bool) -> None:
        self.tiers, self.name = tiers, name
        self.leads = not tiers.graphs
        """Whether its calls have programs take over: the forward graph's, or the backward one's where the forward graph's program
        came from disk and serves already."""
        self._serving, self._build, self._repeatable = eager, build, repeatable
        self._next: Call | None = None
        self.tier = 0
        self.settled = False
        """Whether its program is there, or will never be."""
        self.calls = 0
        self._arguments: tuple[weakref.ref[torch.Tensor] | None, ...] = ()
        """The tensors that the first call had."""
        self.call = self._callable()
        tiers.graphs.append(self)

    def _callable(self) -> Call:
        tiers, leads = self.tiers, self.leads

        def call(args: list[Any]) -> list[Any]:
            if leads and tiers.due and not _recording():
                tiers.take_over()
            if self.tier == 0:
                if self.calls == 0:
                    self._arguments = tuple(weakref.ref(a) if isinstance(a, torch.Tensor) else None for a in args)
                self.calls += 1
                counters.add("tier0_calls")
            return self._serving(args)

        return noticed(call)

    def begin(self) -> None:
        """Has the program made in the background, from the first moment when nobody else's work is in the way."""
        background.submit(_Build(self))

    def build(self) -> None:
        """Makes the program and has it take over with the next call that may."""
        build, self._build = self._build, _built
        try:
            self._next = build()
        finally:
            with self.tiers.lock:
                self.settled = True
                self.tiers.due = self.tiers.due or self._next is not None

    def arguments(self) -> list[torch.Tensor | None]:
        """The arguments of the first call that are tensors and alive."""
        return [known() if known is not None else None for known in self._arguments]

    def take_over(self) -> None:
        if self._next is not None:
            first = self._first_call(self._next, self._serving) if self._repeatable else self._next
            self._serving, self._next, self.tier = first, None, 1

    def _first_call(self, program: Call, eager: Call) -> Call:
        """The program, until a call of it has ended well: one that fails by polytile's fault is made by tier 0, for good."""

        def call(args: list[Any]) -> list[Any]:
            again = list(args)
            try:
                results = program(args)
            except NOT_POLYTILES_FAULT:
                raise
            except Exception as error:
                if settings.get("on_failure") == "raise":
                    raise
                counters.add("failures")
                log.warning(
                    "The program of graph %r failed in its first call (%s: %s); ATen's operators go on in its place.",
                    self.name, type(error).__name__, error, exc_info=True,
                )  # fmt: skip
                self._serving, self.tier = eager, 0
                return eager(again)
            self._serving = program
            return results

        return call


def _built() -> None:
    """Stands in place of what has been built."""


@dataclass(frozen=True)
class _Build:
    """The job of making a graph's program: the graphs that are called most come first."""

    graph: TieredGraph
    disturbs: Disturbance = Disturbance.NONE

    def urgency(self) -> tuple[float, ...]:
        return 2.0, self.graph.calls

    def run(self) -> None:
        with spare_core.wanted():
            self.graph.build()


def wait_until_built() -> None:
    """Waits until no program is being made, or about to be; not for what is measured."""
    background.wait(kind=_Build)


def _recording() -> bool:
    """Whether this thread records a CUDA graph, in which nothing may change."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
