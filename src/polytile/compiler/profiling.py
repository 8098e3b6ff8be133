"""`polytile.profile`: where the time of a call goes, kernel by kernel, on the host and on the device."""

from __future__ import annotations

import collections
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from polytile.compiler import programs as compiler
from polytile.compiler import tiers
from polytile.compiler.call_steps import as_it_runs, is_step, kernel_by_kernel
from polytile.errors import ReportError
from polytile.report import environment
from polytile.report.call import CALL, CallReport, Line, View, lines_table, save
from polytile.report.tables import micros

CALLS = 10
"""Calls that are timed as they are, and again under torch's profiler."""


@dataclass(frozen=True)
class Profile:
    """What `polytile.profile` returns. `str()` makes a table of it.

    name   the function's
    wall   seconds of a call until its result is there: the median, without a profiler
    lines  what runs in it, the longest first
    views  the steps of a call in time
    """

    name: str
    wall: float
    lines: tuple[Line, ...]
    views: tuple[View, ...]

    @property
    def host(self) -> float:
        """Seconds of all lines on the host."""
        return sum(line.host for line in self.lines)

    @property
    def device(self) -> float:
        """Seconds of all lines on a GPU."""
        return sum(line.device for line in self.lines)

    def save(self, path: str | Path) -> None:
        """Writes a file of which `polytile report` draws the call's time line. Raises ReportError if it cannot be written."""
        call = CallReport(str(path), self.name, self.wall, environment(), self.lines, self.views)
        try:
            save(Path(path), call)
        except OSError as error:
            raise ReportError(f"the profile {path} cannot be written: {error.strerror or error}.") from None

    def __str__(self) -> str:
        note = f"A call takes {micros(self.wall)} µs without a profiler, which makes the host's part of each line longer."
        return lines_table("one call", self.lines, [note]).markdown()


def profile(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Calls `function(*args, **kwargs)` some twenty times, and reports the time of each of its kernels and ATen operators.

    Ten calls run as they are, and ten under torch's profiler; where there is a GPU, another ten under one that watches the GPU
    alone. What a call changes in place changes at every call.

    Returns
    -------
    A Profile. Printed, it is a table in microseconds; `.wall` and `.lines` hold the same in seconds. `.save(path)` keeps it for
    `polytile report path`, which draws when what ran.
    """
    function(*args, **kwargs)
    tiers.wait_until_built()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    call = functools.partial(function, *args, **kwargs)
    wall = _wall(call, CALLS, synchronize)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    seen = _events(call, activities, synchronize)
    labels = {kernel.spec.label for program in compiler.compiled_programs() for kernel in program.multikernels}
    views = [kernel_by_kernel(seen, labels)]
    if on_gpu:
        views.append(as_it_runs(_events(call, [ProfilerActivity.CUDA], synchronize)))
    return Profile(_name(function), wall, _lines(seen, labels, CALLS), tuple(view for view in views if view.steps))


def _name(function: Callable[..., Any]) -> str:
    """The name of the function, or of the module's class; that of what was compiled."""
    function = getattr(function, "_orig_mod", function)
    return str(getattr(function, "__qualname__", type(function).__name__))


def _wall(call: Callable[[], Any], calls: int, synchronize: Callable[[], None]) -> float:
    times = []
    for _ in range(calls):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _events(call: Callable[[], Any], activities: list[ProfilerActivity], synchronize: Callable[[], None]) -> list[Any]:
    """What torch's profiler records of CALLS calls, each of which is over on the device before the next one begins."""
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(CALLS):
            with record_function(CALL):
                call()
            synchronize()
    return list(seen.events())


def _lines(events: Iterable[Any], labels: set[str], calls: int) -> tuple[Line, ...]:
    """The kernels, and the operators that no kernel and no other operator calls.

    The first calls under a profiler take longer, hence medians.
    """
    events_by_name: dict[str, list[Any]] = collections.defaultdict(list)
    for event in events:
        if is_step(event, labels):
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
