"""What a contestant's calls come to, beside those of eager and of tier 0 (aot_eager)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.timing import geomean, quantile

SLOW = 10.0
"""A call is slow that takes so many times as long as the median."""
LATEST = 12
"""How many of the calls that waited longest are kept."""
EAGER, TIER0, TIER1, TUNED = "eager", "aot_eager", "compile", "tune"

Run = Mapping[str, Any]


def judged(run: Run, runs: Mapping[str, Run], requests: Sequence[Sequence[int]], tolerance: float) -> dict[str, Any]:
    """The figures of one contestant; seconds, bytes, ratios. `runs` are all contestants of the same stream from empty caches, by
    name. What needs a contestant that did not run is None."""
    if "error" in run:
        return {"error": run["error"]}
    tier0, seconds = runs.get(TIER0, {}), run["seconds"]
    median = statistics.median(seconds)
    return {
        "served": len(seconds),
        "first_result": seconds[0],
        "first_over_tier0": seconds[0] / tier0["seconds"][0] if "seconds" in tier0 else None,
        "total": sum(seconds),
        "total_without_tracing": sum(seconds) - (tracing(tier0) if run["graphs"] and "seconds" in tier0 else 0.0),
        "median": median,
        "slow_calls": sum(one > SLOW * median for one in seconds),
        "graphs": len(run["graphs"]),
        **waits(run, tier0, requests),
        "last_quarter": last_quarter(run, run),
        "last_quarter_of_tuned": last_quarter(run, runs.get(TUNED, {})),
        **throughput(run, runs),
        "peak": run["peak"],
        "settled_peak": run["settled_peak"],
        "settled": run["settled"],
        "wait_seconds": run["wait_seconds"],
        "caller_stages": caller_stages(run),
        "counters": {"stream": run["counters"], "settled": run["settled_counters"]} if run["own"] else {},
        "failures": run["failures"],
        "wrong": wrong(run, runs.get(EAGER, {}), tolerance),
        "cores_used_by_others": round(run["cores_used_by_others"], 3),
    }


def tracing(tier0: Run) -> float:
    """Seconds that tracing alone took: those of the calls in which tier 0's graphs were traced, over the same calls later."""
    again = tier0["again"]
    known = [number for number in tier0["graphs"] if str(number) in again]
    return float(sum(tier0["seconds"][number] - again[str(number)] for number in known))


def waits(run: Run, tier0: Run, requests: Sequence[Sequence[int]]) -> dict[str, Any]:
    """How much longer calls took than tier 0 takes for them, calls that traced a graph apart. For tier 0 itself: than it takes
    later, which says how much of the others' is noise. Host: until the call returned."""
    if "seconds" not in tier0:
        return {"extra": None, "late": []}
    own = run is tier0
    traced = {*run["graphs"], *tier0["graphs"]}
    base = {n: tier0["again"].get(str(n)) if own else tier0["seconds"][n] for n in range(len(tier0["seconds"]))}
    extra = {n: s - base[n] for n, s in enumerate(run["seconds"]) if n not in traced and base.get(n) is not None}
    host = {} if own else {n: run["host"][n] - tier0["host"][n] for n in extra}
    latest = sorted(extra, key=lambda n: -extra[n])[:LATEST]
    return {
        "extra": summary(list(extra.values())),
        "host_extra": summary(list(host.values())),
        "late": [] if own else [_late(run, n, requests[n], extra[n], base[n]) for n in latest],
    }


def summary(extra: Sequence[float]) -> dict[str, float] | None:
    if not extra:
        return None
    over = {f"over_{ms}_ms": sum(one > ms / 1e3 for one in extra) for ms in (1, 10, 100)}
    return {"worst": max(extra), "p99.9": quantile(extra, 0.999), "p99": quantile(extra, 0.99), **over}


def _late(run: Run, number: int, request: Sequence[int], extra: float, base: float) -> dict[str, Any]:
    """One call that waited. `processor`: seconds that its thread computed."""
    return {
        "request": number, "batch": request[0], "length": request[1], "seconds": run["seconds"][number], "tier0": base,
        "extra": extra, "processor": run["processor"][number], "tier": 0 if number in run["tier0"] else 1,
        "stages": run["stages"].get(str(number), {}), "stacks": run["late"].get(str(number), {}),
    }  # fmt: skip


def last_quarter(run: Run, settled: Run) -> float | None:
    """How many times as long calls of the stream's last quarter took as the same calls take in `settled`, another contestant or
    the same, once all is decided there; geometric mean. Calls that traced a graph count for nothing."""
    calls = range(len(run["seconds"]) * 3 // 4, len(run["seconds"]))
    again = settled.get("again", {})
    ratios = [run["seconds"][n] / again[str(n)] for n in calls if str(n) in again and n not in run["graphs"]]
    return geomean(ratios) if ratios else None


def throughput(run: Run, runs: Mapping[str, Run]) -> dict[str, float | None]:
    """Part of the throughput that calls would have without learning, those which traced a graph apart: tier 0's own for calls
    that it served, and tier 1's, once everything that it needs is compiled, for those that the program served while work was
    left to do."""
    traced, tier0, learning = set(run["graphs"]), set(run["tier0"]), set(run["learning"])
    alone = runs.get(TIER0, {}).get("seconds", ())
    settled = runs.get(TIER1, {}).get("again", {})

    def part(calls: set[int], without: Mapping[int, float]) -> float | None:
        known = [n for n in calls - traced if n in without]
        return sum(without[n] for n in known) / sum(run["seconds"][n] for n in known) if known else None

    return {
        "tier0_calls": len(tier0),
        "learning_calls": len(learning),
        "throughput_at_tier0": part(tier0, dict(enumerate(alone))),
        "throughput_learning": part(learning - tier0, {int(n): s for n, s in settled.items()}),
    }


def caller_stages(run: Run) -> dict[str, float]:
    """Seconds of polytile's stages on the calling thread, in calls that traced no graph, and how many calls had any."""
    found: dict[str, float] = {}
    calls = {int(n): stages for n, stages in run["stages"].items() if int(n) not in run["graphs"]}
    for stages in calls.values():
        for name, seconds in stages.items():
            found[name] = found.get(name, 0.0) + seconds
    return {"calls": len(calls), **found} if calls else {}


def wrong(run: Run, eager: Run, tolerance: float) -> list[str]:
    """The calls whose results are not eager's, as far as both served them, with by how much. A number may be off by `tolerance`
    of itself and of the mean of all."""
    found = []
    for number, (ours, theirs) in enumerate(zip(run["samples"], eager.get("samples", ()))):  # noqa: B905 (one may have ended early)
        mean = statistics.fmean(map(abs, theirs))
        off = max((abs(a - b) / (abs(b) + mean) if a == a else float("inf")) for a, b in zip(ours, theirs, strict=True))
        if off > tolerance:
            found.append(f"request {number}: {off:.1e} off, {tolerance:.0e} is allowed")
    return found


__all__ = ["EAGER", "TIER0", "TIER1", "judged"]
