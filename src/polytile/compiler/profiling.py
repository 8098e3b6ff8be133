"""`polytile.profile`: where the time of a call goes, kernel by kernel, on the host and on the device."""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from polytile.compiler import programs as compiler
from polytile.compiler import tiers
from polytile.report import Table
from polytile.report.tables import Column, micros

CALLS = 10
"""Calls that are timed as they are, and again under torch's profiler."""

OPERATOR = "aten::"
"""How the profiler's names of ATen's operators begin."""


@dataclass(frozen=True)
class Line:
    """A kernel, or an ATen operator that a program calls.

    name       the kernel's name and the operators it came from, or ATen's name of the operator
    generated  whether it is a kernel of polytile's, which may run a library's function all the same
    calls      how often a call of the function runs it
    host       seconds in one call of the function until it returns; on a CPU its work is among them
    device     seconds that a GPU works for it in one call of the function
    """

    name: str
    generated: bool
    calls: float
    host: float
    device: float


@dataclass(frozen=True)
class Profile:
    """What `polytile.profile` returns. `str()` makes a table of it.

    wall   seconds of a call until its result is there: the median, without a profiler
    lines  what runs in it, the longest first
    """

    wall: float
    lines: tuple[Line, ...]

    @property
    def host(self) -> float:
        """Seconds of all lines on the host."""
        return sum(line.host for line in self.lines)

    @property
    def device(self) -> float:
        """Seconds of all lines on a GPU."""
        return sum(line.device for line in self.lines)

    def __str__(self) -> str:
        on_gpu = self.device > 0
        columns = [Column("what runs", align="left"), Column("calls", "{:g}".format), Column("host, µs", micros)]
        columns += [Column("device, µs", micros)] if on_gpu else []
        rows = [(line.name, line.calls, line.host, line.device) for line in self.lines]
        rows.append(("all of these", sum(line.calls for line in self.lines), self.host, self.device))
        table = Table.from_rows(
            "one call",
            columns,
            [row[: len(columns)] for row in rows],
            [f"A call takes {micros(self.wall)} µs without a profiler, which makes the host's part of each line longer."],
        )
        return table.markdown()


def profile(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Calls `function(*args, **kwargs)` about twenty times, and reports the time of each of its kernels and ATen operators.

    Half of the calls run as they are, half under torch's profiler. What a call changes in place changes at every call.

    Returns
    -------
    A Profile. Printed, it is a table in microseconds; `.wall` and `.lines` hold the same in seconds.
    """
    function(*args, **kwargs)
    tiers.wait_until_built()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    wall = _wall(lambda: function(*args, **kwargs), CALLS, torch.cuda.synchronize if on_gpu else lambda: None)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(CALLS):
            function(*args, **kwargs)
        if on_gpu:
            torch.cuda.synchronize()
    labels = {kernel.spec.label for program in compiler.compiled_programs() for kernel in program.multikernels}
    return Profile(wall, _lines(seen.events(), labels, CALLS))


def _wall(call: Callable[[], Any], calls: int, synchronize: Callable[[], None]) -> float:
    times = []
    for _ in range(calls):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _lines(events: Iterable[Any], labels: set[str], calls: int) -> tuple[Line, ...]:
    """The kernels, and the operators that no kernel and no other operator calls.

    The first calls under a profiler take longer, hence medians.
    """
    events_by_name: dict[str, list[Any]] = collections.defaultdict(list)
    for event in events:
        parent = event.cpu_parent
        inside = parent is not None and (parent.name in labels or parent.name.startswith(OPERATOR))
        if (event.name in labels or event.name.startswith(OPERATOR)) and not inside:
            events_by_name[event.name].append(event)
    lines = [
        Line(
            name,
            name in labels,
            len(own) / calls,
            statistics.median(event.cpu_time_total for event in own) * len(own) / calls * 1e-6,
            statistics.median(event.device_time_total for event in own) * len(own) / calls * 1e-6,
        )
        for name, own in events_by_name.items()
    ]
    return tuple(sorted(lines, key=lambda line: -max(line.host, line.device)))
