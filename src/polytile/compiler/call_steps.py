"""A call's steps on the host and on the device, from the events of torch's profiler."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterable, Sequence
from typing import Any

from torch.autograd import DeviceType

from polytile.report.call import APART, AS_IT_RUNS, CALL, HOST, Step, View

OPERATOR = "aten::"
"""How the profiler's names of ATen's operators begin."""


def is_step(event: Any, labels: set[str]) -> bool:
    """Whether this is a kernel, one of `labels`, or an ATen operator that is no part of another one or of a kernel."""
    parent = event.cpu_parent
    inside = parent is not None and (parent.name in labels or parent.name.startswith(OPERATOR))
    return (event.name in labels or event.name.startswith(OPERATOR)) and not inside


def kernel_by_kernel(events: Iterable[Any], labels: set[str]) -> View:
    """The call of median length among those that are recorded under the name CALL; each but the first begins when the device has
    nothing to do. `labels` are the names of polytile's kernels."""
    everything = sorted(events, key=lambda event: event.time_range.start)
    calls = [event for event in everything if event.name == CALL and event.device_type == DeviceType.CPU]
    starts = [event.time_range.start for event in calls]
    recorded = []
    for call, end in zip(calls, [*starts[1:], float("inf")], strict=False):
        own = [event for event in everything if call.time_range.start <= event.time_range.start < end]
        host = [event for event in own if event.device_type == DeviceType.CPU and is_step(event, labels)]
        began = call.time_range.start
        steps = [_step(call, CALL, began), *(_step(event, _thread(event, call), began) for event in host)]
        recorded.append([*steps, *_on_device(own, host, began)])
    return _median(APART, recorded)


def as_it_runs(events: Iterable[Any]) -> View:
    """The call of median length among those that the device's events show; between calls, the host waited for the device. Time
    begins with the first launch."""
    everything = sorted(events, key=lambda event: event.time_range.start)
    waits = [event.time_range.end for event in everything if "DeviceSynchronize" in event.name]
    parts: dict[int, list[Any]] = {}
    for event in everything:
        if _works(event) or _launches(event):
            parts.setdefault(bisect.bisect(waits, event.time_range.start), []).append(event)
    recorded = []
    for own in parts.values():
        began = own[0].time_range.start
        launches = [_step(event, HOST, began) for event in own if _launches(event)]
        recorded.append([*launches, *_on_device(own, (), began)])
    return _median(AS_IT_RUNS, [steps for steps in recorded if any(step.lane != HOST for step in steps)])


def _median(name: str, calls: Sequence[Sequence[Step]]) -> View:
    """The view of the call of median length; without steps if there is no call."""
    order = (CALL, HOST)
    lane = lambda step: order.index(step.lane) if step.lane in order else len(order)  # noqa: E731
    views = [View(name, tuple(sorted(steps, key=lambda step: (lane(step), step.lane, step.began)))) for steps in calls]
    views.sort(key=lambda view: view.seconds)
    return views[(len(views) - 1) // 2] if views else View(name, ())


def _on_device(own: Sequence[Any], host: Sequence[Any], began: float) -> list[Step]:
    """The device's steps among the events of a call; `host` are the host's steps, in order of time."""
    launch_of = {event.id: event for event in own if _launches(event)}
    works = [event for event in own if _works(event)]
    together = collections.Counter(event.id for event in works)
    made = []
    for event in works:
        launch = launch_of.get(event.id)
        graph = together[event.id] > 1 or (launch is not None and "GraphLaunch" in launch.name)
        made.append(_step(event, _stream(event), began, _around(launch, host), graph))
    return made


def _around(launch: Any, host: Sequence[Any]) -> str:
    """The name of the host's step that a launch is part of; "" if there is none."""
    if launch is None:
        return ""
    own = [event for event in host if event.thread == launch.thread]
    at = bisect.bisect(own, launch.time_range.start, key=lambda event: event.time_range.start) - 1
    return own[at].name if at >= 0 and launch.time_range.start <= own[at].time_range.end else ""


def _step(event: Any, lane: str, began: float, of: str = "", graph: bool = False) -> Step:
    start, end = event.time_range.start, event.time_range.end
    return Step(lane, event.name, of, (start - began) * 1e-6, (end - start) * 1e-6, graph)


def _works(event: Any) -> bool:
    """Whether this is work of a device: a kernel, a copy or a fill."""
    return event.device_type != DeviceType.CPU and not event.is_user_annotation


def _launches(event: Any) -> bool:
    """Whether this is a call of CUDA's that gives the device work: of cuLaunchKernelEx, cudaGraphLaunch, cudaMemcpyAsync, ..."""
    name = event.name
    return event.device_type == DeviceType.CPU and name.startswith("cu") and ("Launch" in name or "Async" in name)


def _thread(event: Any, call: Any) -> str:
    return HOST if event.thread == call.thread else f"{HOST}, thread {event.thread}"


def _stream(event: Any) -> str:
    return f"device {event.device_index}, stream {getattr(event, 'device_resource_id', event.thread)}"
