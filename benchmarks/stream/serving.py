"""One contestant serves the stream, in a process of its own (benchmarks/contestants.py): `run`."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks.peak_memory import resident
from benchmarks.stream.stacks import Stacks
from benchmarks.stream.workloads import WORKLOADS, Request, Server, Step
from benchmarks.timing import OtherLoad, synchronize
from polytile import counters
from polytile.runtime import background

OWN = ("never", "compile", "tune")
"""polytile's contestants, by the option `stall`."""

COMPILE: dict[str, Callable[[nn.Module], Step]] = {
    "eager": lambda model: model,
    "aot_eager": lambda model: torch.compile(model, backend="aot_eager", dynamic=True),
    "peer": lambda model: torch.compile(model, backend="inductor", dynamic=True),
    **{stall: functools.partial(polytile.compile, options={"stall": stall}) for stall in OWN},
}

AFTER, AFTER_SECONDS = 0.3, 15.0
"""The part of the time, and the seconds at most, that the stream leaves for what comes after it."""
WAIT_SHARE = 0.5
"""The part of what is left then that waiting until learning has settled may take."""


@dataclass
class Calls:
    """What is known of each call of the stream, by its number."""

    seconds: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    """Seconds until the call returned, and of the processor that its thread used: a GPU may still have been at work."""
    processor: list[float] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)
    """Numbers of each result: a tensor, and in the end a list."""
    graphs: list[int] = field(default_factory=list)
    """Calls in which a graph was traced."""
    tier0: list[int] = field(default_factory=list)
    """Calls that ATen's operators served in place of a program that was not there yet."""
    learning: list[int] = field(default_factory=list)
    """Calls after which work in the background was left to do."""
    stages: dict[int, dict[str, float]] = field(default_factory=dict)
    """Seconds of polytile's own stages on the calling thread, of calls that had any."""
    late: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Where threads were during calls that took longer than expected."""


def _captured() -> int:
    """Graphs that Dynamo has captured; it is imported by who compiles first, on that contestant's time."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


@contextlib.contextmanager
def stages_of_this_thread() -> Iterator[dict[str, float]]:
    """Within the block, gets the seconds of polytile's stages on this thread, each with what others did within it."""
    caller, kind = threading.get_ident(), type(counters)
    stage, found, depth = kind.stage, dict[str, float](), 0

    @contextlib.contextmanager
    def observed(itself: Any, name: str) -> Iterator[None]:
        nonlocal depth
        if threading.get_ident() != caller:
            with stage(itself, name):
                yield
            return
        begun = time.perf_counter()
        depth += 1
        try:
            with stage(itself, name):
                yield
        finally:
            depth -= 1
            if depth == 0:
                found[name] = found.get(name, 0.0) + time.perf_counter() - begun

    setattr(kind, "stage", observed)  # noqa: B010
    try:
        yield found
    finally:
        setattr(kind, "stage", stage)  # noqa: B010


class Stream:
    """The requests, served one after the other by one contestant."""

    def __init__(self, given: dict[str, Any], stages: dict[str, float]) -> None:
        self.own = given["contestant"] in OWN
        self.device, self.synchronised = given["device"], given["synchronised"]
        workload = WORKLOADS[given["workload"]]
        self.requests = [Request(*one) for one in given["requests"]]
        self.server = Server(workload, self.device, COMPILE[given["contestant"]])
        self.expected: Sequence[float] = given["expected"]
        self.stacks = Stacks() if given["stacks"] and self.own else None
        self.calls, self.stages = Calls(), stages
        self.made = 0.0

    def begin(self) -> None:
        """Has the model compiled; what that takes is part of the first call."""
        begun = time.perf_counter()
        self.server.make()
        self.made = time.perf_counter() - begun

    def serve(self, number: int) -> tuple[Tensor, float, float]:
        """The result of a request, the seconds until it was there, and those until the call returned."""
        arguments = self.server.workload.arguments(self.requests[number], number, self.device)
        if self.synchronised:
            synchronize()
        begun = time.perf_counter()
        result = self.server(arguments)
        returned = time.perf_counter()
        if self.synchronised:
            synchronize()
        return result, time.perf_counter() - begun, returned - begun

    def call(self, number: int) -> None:
        """Serves a request of the stream and keeps what is known of it."""
        calls, graphs, at_tier0 = self.calls, _captured(), counters["tier0_calls"]
        self.stages.clear()
        if self.stacks is not None and number:
            self.stacks.arm(self.expected[number] if number < len(self.expected) else 0.0)
        used = time.thread_time()
        result, seconds, host = self.serve(number)
        calls.processor.append(time.thread_time() - used)
        if self.stacks is not None and (late := self.stacks.disarm()):
            calls.late[number] = late
        calls.seconds.append(seconds + (0.0 if number else self.made))
        calls.host.append(host + (0.0 if number else self.made))
        if _captured() > graphs:
            calls.graphs.append(number)
        if counters["tier0_calls"] > at_tier0:
            calls.tier0.append(number)
        if background.pending():
            calls.learning.append(number)
        if self.stages:
            calls.stages[number] = dict(self.stages)
        calls.samples.append(self.server.sample(result))

    def again(self, until: float) -> dict[int, float]:
        """Seconds of calls once learning has settled, those of the last quarter first, as many as there is time for."""
        last = range(len(self.calls.seconds) * 3 // 4, len(self.calls.seconds))
        found: dict[int, float] = {}
        for number in last:  # programs take over, and meet the sizes
            if time.time() > until:
                return found
            self.serve(number)
        self.settle(until)
        for number in [*last, *range(last.start)]:
            if time.time() > until:
                break
            found[number] = self.serve(number)[1]
        return found

    def settle(self, until: float) -> bool:
        return not self.own or polytile.wait(timeout=max(0.1, (until - time.time()) * WAIT_SHARE))


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Serves `requests` [batch, length] of a `workload` on a `device` by a `contestant`, until about the time `until`. `expected`
    are the seconds that calls take without waiting, for `stacks`. With `synchronised` a call ends when its result is there."""
    with stages_of_this_thread() as stages:
        stream, load = Stream(given, stages), OtherLoad()
        stop = given["until"] - min(AFTER_SECONDS, (given["until"] - time.time()) * AFTER)
        stream.begin()
        for number in range(len(stream.requests)):
            if number and time.time() > stop:
                break
            stream.call(number)
        synchronize()
        stream.calls.samples = [sample.tolist() for sample in stream.calls.samples]
    at_end = {"peak": peaks(), "counters": dict(counters)}
    others = load.cores()
    begun = time.perf_counter()
    settled = stream.settle(given["until"])
    waited = time.perf_counter() - begun
    again = stream.again(given["until"])
    return {
        **vars(stream.calls), **at_end, "own": stream.own, "again": again, "settled": settled, "wait_seconds": waited,
        "settled_peak": peaks(), "settled_counters": dict(counters), "cores_used_by_others": others,
        "failures": failures() if stream.own else [],
        "device": torch.cuda.get_device_name() if given["device"] == "cuda" else "cpu",
    }  # fmt: skip


def failures() -> list[str]:
    """Why ATen's operators run in place of what polytile failed to compile."""
    from polytile.compiler.programs import compiled_programs

    return [failure.reason for program in compiled_programs() for failure in program.failures]


def peaks() -> dict[str, int]:
    """Bytes at most so far: of this process, of the largest of its children, of tensors on the GPU."""
    found = {"host": resident("VmHWM"), "child": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}
    if torch.cuda.is_initialized():
        found |= {"device": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return found


__all__ = ["COMPILE", "OWN", "run"]
