"""Tables of streams: a row for each contestant, and one for each call that waited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polytile.report import Column, Table
from polytile.report.tables import count, ratio

NAMES = {
    "aot_eager": "aot_eager: tracing alone",
    "peer": "TorchInductor, dynamic",
    **{stall: f'polytile, stall="{stall}"' for stall in ("never", "compile", "tune")},
}
"""Contestants by what they are called in tables."""
NOTES = (
    "First result: with what `torch.compile` itself takes. Total: all calls; \"less tracing\": without the seconds that\n"
    "aot_eager's first calls of each graph took above the same calls later.",
    "Slow: calls over 10 times the contestant's median. Waits: how much longer a call took than aot_eager's for the same\n"
    "request, first calls of each graph left out; in aot_eager's own row, than its own later, which is noise. On a GPU a call\n"
    "ends when its result is there; its host's part ends when it returns. Peaks are of tensors on the GPU, or of the process.",
    "Last quarter: its time over that of the same calls once everything is settled (geometric mean); of tuned: over that\n"
    'of the same calls in a process that measured before it served (`stall="tune"`). Learning: throughput while work was left\n'
    "to do, as part of what it is without: of aot_eager's for calls at tier 0, of settled `stall=\"compile\"`'s after that.",
)


def named(contestant: str) -> str:
    name, _, warm = contestant.partition(", ")
    return NAMES.get(name, name) + (f", {warm}" if warm else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def stream_table(title: str, requests: int, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row a contestant; a total that covers part of the stream only says of how many requests."""
    on_gpu = any("device" in one.get("peak", {}) for one in found.values())
    columns: list[Column | str] = [
        "contestant", Column("first result s", ratio), Column("× aot_eager", ratio), Column("total s"),
        Column("less tracing s", ratio), Column("slow", count), Column("waits: worst ms", _ms), Column("p99.9 ms", _ms),
        *([Column("of the host: p99.9 ms", _ms)] if on_gpu else []), Column("over 1 ms", count), Column("last quarter", ratio),
        Column("of tuned", ratio), Column("learning, tier 0", ratio), Column("learning, tier 1", ratio), Column("peak MB", count),
        Column("settled MB", count),
    ]  # fmt: skip
    rows = []
    for name, one in found.items():
        if "error" in one:
            rows.append((named(name), *[None] * 2, one["error"].partition("\n")[0][:40], *[None] * (len(columns) - 4)))
            continue
        part = f" ({one['served']} of {requests})" if one["served"] < requests else ""
        extra, host = one["extra"] or {}, one.get("host_extra") or {}
        rows.append((
            named(name), one["first_result"], one["first_over_tier0"], f"{one['total']:.2f}{part}", one["total_without_tracing"],
            one["slow_calls"], extra.get("worst"), extra.get("p99.9"), *([host.get("p99.9")] if on_gpu else []),
            extra.get("over_1_ms"), one["last_quarter"], one.get("last_quarter_of_tuned"),
            one["throughput_at_tier0"], one["throughput_learning"], _peak(one["peak"]), _peak(one["settled_peak"]),
        ))  # fmt: skip
    others = max((one.get("cores_used_by_others", 0.0) for one in found.values()), default=0.0)
    return Table.from_rows(title, columns, rows, [f"Other processes used at most {others:.2f} cores meanwhile."])


def _peak(peak: Mapping[str, int]) -> float:
    """Megabytes: of tensors on the GPU where there is one, else of the process."""
    return peak.get("device", peak["host"]) / 1e6


def counters_table(title: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """What polytile did by the end of the stream, and on the calling thread in calls that traced nothing."""
    columns: list[Column | str] = [
        "contestant", Column("misses", count), Column("candidates timed", count), Column("compiler runs", count),
        Column("store hits", count), Column("stages, all threads s", ratio), Column("calls at tier 0", count),
        Column("calls with a stage on the caller", count), Column("s of these stages", ratio), Column("settled after s", ratio),
        Column("candidates then", count),
    ]  # fmt: skip
    rows = []
    for name, one in found.items():
        if not one.get("counters"):
            continue
        stream, settled, caller = one["counters"]["stream"], one["counters"]["settled"], dict(one["caller_stages"])
        calls = caller.pop("calls", 0)
        rows.append((
            named(name), stream["dispatch_misses"], stream["candidates_benchmarked"], stream["compiler_runs"],
            stream["store_hits"], sum(stream["seconds"].values()), one["tier0_calls"], calls, sum(caller.values()),
            one["wait_seconds"], settled["candidates_benchmarked"],
        ))  # fmt: skip
    return Table.from_rows(title, columns, rows, folded=True)


def late_table(title: str, late: list[Mapping[str, Any]]) -> Table:
    """The calls that waited longest, and where the threads were where stacks were taken."""
    columns: list[Column | str] = [
        Column("request", count), "batch × length", Column("tier", count), Column("ms", _ms), Column("tier 0 ms", _ms),
        Column("extra ms", _ms), Column("thread's own ms", _ms), "stages ms", "caller in", "background in",
    ]  # fmt: skip
    rows = [
        (
            one["request"], f"{one['batch']} × {one['length']}", one["tier"], one["seconds"], one["tier0"], one["extra"],
            one["processor"], ", ".join(f"{stage} {_ms(seconds)}" for stage, seconds in one["stages"].items()),
            _places(one["stacks"], "caller"), _places(one["stacks"], "background"),
        )
        for one in late
    ]  # fmt: skip
    return Table.from_rows(title, columns, rows, folded=True)


def _places(stacks: Mapping[str, Any], whose: str) -> str:
    """The commonest place, with in how many of the samples."""
    return next((f"{times}/{stacks['samples']}: {where}" for where, times in stacks.get(whose, {}).items()), "")


__all__ = ["NAMES", "NOTES", "counters_table", "late_table", "named", "stream_table"]
