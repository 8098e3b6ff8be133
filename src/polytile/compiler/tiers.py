"""A graph runs at once, by ATen's operators, while its program is compiled in the background. Then the program takes over.

    tier 0    the graph as AOTAutograd gives it, operator by operator
    tier 1    the program, each kernel by the candidate that is predicted to be fastest
    tier 2    the program, each kernel by what was measured (dispatch/learning.py)

Programs take over between calls: those of a forward and its backward graph at the start of a forward call, each as soon as it
is there. Tensors that the forward graph saves for the backward graph have the same layout in every tier, AOTAutograd's, so any
tier of the one works with any tier of the other.

Behind a front door, the function itself serves the calls of an inference graph that waits for its program (`instead`): that is
what eager runs. The traced graph takes ATen's operators apart, and Python calls each part: a recommender's calls of 0.2 ms took a
third longer.
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
from polytile.dispatch.learning import Load
from polytile.dispatch.recorded import Resume
from polytile.frontend.eager import with_own_code
from polytile.frontend.failures import CALLERS
from polytile.runtime import background, builder, spare_core
from polytile.runtime.background import Disturbance
from polytile.runtime.entry import DECLINED

log = logging.getLogger("polytile")

Call = Callable[[list[Any]], list[Any]]
Build = Callable[[], Call | None]

clock, threads = time.monotonic, torch.get_num_threads

NOT_POLYTILES_FAULT = (*CALLERS, IndexError, MemoryError, torch.OutOfMemoryError)
"""Errors that the arguments of a call cause."""


@dataclass
class Tiers:
    """The graphs that AOTAutograd made of one function, inference, or forward and backward: calls of the first switch tiers."""

    graphs: list[TieredGraph] = field(default_factory=list)
    due: bool = False
    """Whether some graph's next tier is ready and has not taken over."""
    lock: Any = field(default_factory=locks.lock)

    def take_over(self) -> None:
        """Switches every graph whose next tier is ready to it."""
        with self.lock:
            self.due = False
            for graph in self.graphs:
                graph.take_over()


def reported(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, with its beginning and end reported to the background, which then measures nothing that would disturb it. While the
    background waits for another process, the call leaves a core free for that process."""
    alive = background.background

    def reported_call(*args: Any, **named: Any) -> Any:
        begun = clock()
        alive.last_call, alive.threads = math.inf, threads()
        try:
            if spare_core.is_wanted():
                with spare_core.leave_one_free():
                    return call(*args, **named)
            return call(*args, **named)
        finally:
            alive.last_call = ended = clock()
            alive.seconds += ended - begun

    with_own_code(reported_call)
    reported_call._boxed_call = True  # type: ignore[attr-defined]
    return reported_call


class TieredGraph:
    """One graph. `call` takes the list of arguments, empties it, and returns the list of results of the current tier.

    `build` runs in the background and returns the program's callable, or None if there is no program and tier 0 stays. A
    `repeatable` graph changes no argument and draws no random numbers, so that a failed call can be made again. Of a `plain`
    graph, the function that it was traced of may serve calls until the program is there.
    """

    def __init__(self, tiers: Tiers, name: str, eager: Call, build: Build, repeatable: bool, plain: bool = False) -> None:
        self.tiers, self.name = tiers, name
        self.leads = not tiers.graphs
        """Whether its calls switch tiers. Calls of the forward graph do; those of the backward graph do if the forward program
        came from disk and is in use already."""
        self._serving, self._build, self._repeatable = eager, build, repeatable
        self._next: Call | None = None
        self.tier = 0
        self.settled = False
        """Whether its program is ready, or will never be."""
        self.seconds = 0.0
        """What calls have taken so far in which no program served it, about."""
        self._arguments: tuple[weakref.ref[torch.Tensor] | None, ...] = ()
        """The tensors among the arguments of the first call."""
        self.call = self._callable()
        if plain:
            self.call.polytile_tiered = self  # type: ignore[attr-defined]
        tiers.graphs.append(self)

    def _callable(self) -> Call:
        tiers, leads = self.tiers, self.leads

        def call(args: list[Any]) -> list[Any]:
            if leads and tiers.due and not _recording():
                tiers.take_over()
            if self.tier > 0:
                return self._serving(args)
            if not self._arguments:
                self._arguments = tuple(weakref.ref(a) if isinstance(a, torch.Tensor) else None for a in args)
            return self._at_tier0(self._serving)(args)

        return reported(call)

    def _at_tier0(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """`serve`, whose calls are counted as those that no program serves."""
        alive = background.background

        def counted(*args: Any, **named: Any) -> Any:
            counters.add("tier0_calls")
            begun = clock()
            try:
                return serve(*args, **named)
            finally:
                taken = clock() - begun
                self.seconds += taken
                alive.tier0_seconds += taken

        return counted

    def instead(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See the module's `instead`."""
        serve = reported(self._at_tier0(function))

        def call(*args: Any, **named: Any) -> Any:
            return DECLINED if self.settled else serve(*args, **named)

        return call

    def begin(self) -> None:
        """Requests the program from the background."""
        background.submit(_Build(self, background.background.seconds))

    def build(self) -> None:
        """Builds the program, and loads what its kernels run by: else its first calls would run them by the library, slower than
        without the program. The next call that may switch tiers switches to it."""
        build, self._build = self._build, _built
        try:
            self._next = build()
            background.background.run_now(Resume, Load)
        finally:
            with self.tiers.lock:
                self.settled = True
                self.tiers.due = self.tiers.due or self._next is not None

    def arguments(self) -> list[torch.Tensor | None]:
        """The tensors among the arguments of the first call that are still alive; None for all other arguments."""
        return [known() if known is not None else None for known in self._arguments]

    def take_over(self) -> None:
        if self._next is not None:
            first = self._first_call(self._next, self._serving) if self._repeatable else self._next
            self._serving, self._next, self.tier = first, None, 1

    def _first_call(self, program: Call, eager: Call) -> Call:
        """The program with a fallback for its first call: if polytile is at fault for an error there, tier 0 repeats the call and
        stays in use. After a call without an error, the program is called directly."""

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


def instead(graph: Any, function: Callable[..., Any]) -> Callable[..., Any] | None:
    """`function`, of which `graph` was traced, as it serves calls while the graph waits for its program; after that it returns
    DECLINED, as the graph serves, by the program or by ATen's operators for good. None for what does not wait, or is not plain.
    `graph` is what AOTAutograd's wrapper made of the callable of a TieredGraph."""
    while graph is not None and not hasattr(graph, "polytile_tiered"):
        graph = getattr(graph, "__wrapped__", None)
    tiered = None if graph is None else graph.polytile_tiered
    return None if tiered is None or tiered.settled else tiered.instead(function)


def _built() -> None:
    """Replaces the `build` function of a graph that has been built, so that what it refers to is freed."""


@dataclass(frozen=True)
class _Build:
    """The background's job of building a graph's program, asked for when all calls had taken `before` seconds. Graphs whose
    calls take most of the time come first. A graph that takes less of it than building would comes after kernels for the regimes
    that are known, and no sooner than the thread's rest ends: in a stream of random batches, those of one request have a graph of
    their own."""

    graph: TieredGraph
    before: float = 0.0

    def matters(self) -> bool:
        return self.graph.seconds >= builder.TAKEN * (background.background.seconds - self.before)

    @property
    def disturbs(self) -> Disturbance:
        """Building is paced by itself (builder.py)."""
        return Disturbance.NONE if self.graph.settled or self.matters() else Disturbance.COMPILES

    def urgency(self) -> tuple[float, ...]:
        return 2.0 if self.matters() else 0.5, self.graph.seconds

    def run(self) -> None:
        with spare_core.wanted():
            self.graph.build()


def wait_until_built() -> None:
    """Waits until no program is being built or queued. It does not wait for measurements."""
    background.wait(kind=_Build)


def _recording() -> bool:
    """Whether this thread records a CUDA graph, during which tiers must not change."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
