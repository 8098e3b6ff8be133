"""What the rows of the suite come to: counts, ratios, the slowest first calls, and every program that is wrong or slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.programs.contestant import CONTESTANTS, OWN
from benchmarks.programs.program import LEVELS
from benchmarks.programs.stages import STAGES
from benchmarks.timing import geomean
from polytile.report import Column, Table, show
from polytile.report.tables import count, micros, ratio

Row = Mapping[str, Any]
PEER = "inductor"
WAYS = {
    "kernels": "kernel time on the GPU",
    "direct": "calls without Dynamo's guards",
    "called": "whole calls",
    "door": "whole calls, polytile.compile",
}
BELOW = 0.97
HALF = 0.5
"""Of the peer's first call, what polytile's may take."""


def report(rows: Sequence[Row]) -> None:
    show(counts(rows))
    show(ratios(rows))
    for table in (slow(rows), first_calls(rows), long_beside_the_peers(rows), broken(rows)):
        if table.rows:
            show(table)


def outcome(row: Row) -> str:
    if "error" in row:
        return "failed"
    return "wrong" if row["wrong"] else "right"


def over_eager(row: Row, way: str) -> float | None:
    """How many times faster than eager the contestant is; None where it was not timed or is wrong."""
    timed = row.get(way)
    if not timed or row["contestant"] not in timed or "eager" not in timed or outcome(row) != "right":
        return None
    found: float = timed["eager"] / timed[row["contestant"]]
    return found


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """polytile's row and the peer's of each program that both have."""
    peers = {row["program"]: row for row in rows if row["contestant"] == PEER}
    return [(row, peers[row["program"]]) for row in rows if row["contestant"] == OWN and row["program"] in peers]


def over_peer(rows: Sequence[Row], way: str) -> dict[str, float]:
    """By program how many times faster than the peer's dynamic compile polytile is: each is timed beside eager in its process.
    The peer has one sort of whole calls."""
    found = {}
    for own, peer in pairs(rows):
        ours, theirs = over_eager(own, way), over_eager(peer, "called" if way == "door" else way)
        if ours is not None and theirs is not None:
            found[own["program"]] = ours / theirs
    return found


def counts(rows: Sequence[Row]) -> Table:
    body = []
    for who in CONTESTANTS:
        for level in (*LEVELS, "all"):
            found = [outcome(row) for row in rows if row["contestant"] == who and level in (row["level"], "all")]
            if found:
                body.append((who, level, len(found), *(found.count(kind) for kind in ("right", "wrong", "failed"))))
    numbers = [Column(name, count) for name in ("programs", "right", "wrong", "failed")]
    columns: list[Column | str] = ["contestant", "level", *numbers]
    return Table.from_rows("Programs: results against float64", columns, body)


def ratios(rows: Sequence[Row]) -> Table:
    """Geometric means and least cells against eager and the peer, of each way of timing and level."""
    body: list[tuple[Any, ...]] = []
    for way, title in WAYS.items():
        for level in (*LEVELS, "all"):
            own = [row for row in rows if level in (row["level"], "all")]
            eager = [r for row in own if row["contestant"] == OWN and (r := over_eager(row, way)) is not None]
            peer = list(over_peer(own, way).values())
            if eager:
                few = sum(r < BELOW for r in eager)
                body.append((title, level, len(eager), *_mean(eager), few, *(_mean(peer) if peer else (None, None))))
    columns: list[Column | str] = [
        "time of",
        "level",
        Column("programs", count),
        Column("× eager", ratio),
        Column("least", ratio),
    ]
    columns += [Column(f"below {BELOW}", count), Column("× TorchInductor, dynamic", ratio), Column("least", ratio)]
    return Table.from_rows(
        "Programs: how many times faster one dynamic compile is, geometric mean and least program", columns, body
    )


def _mean(found: Sequence[float]) -> tuple[float, float]:
    return geomean(found), min(found)


def slow(rows: Sequence[Row]) -> Table:
    """What is slower than eager, without guards on a CPU and by kernel time on a GPU; in training whole calls."""
    body = []
    for row in rows:
        timed = [(way, found) for way in WAYS if row["contestant"] == OWN and (found := over_eager(row, way)) is not None]
        way, found = timed[0] if timed else ("", 1.0)
        if found < BELOW:
            peer = over_peer(rows, way).get(row["program"])
            body.append((row["program"], row["family"], WAYS[way], row[way]["eager"], row[way][OWN], found, peer))
    columns: list[Column | str] = ["program", "family", "time of", Column("eager µs", micros), Column("µs", micros)]
    columns += [Column("× eager", ratio), Column("× the peer", ratio)]
    return Table.from_rows(f"Below {BELOW} of eager", columns, sorted(body, key=lambda one: one[5]))


def slowest(rows: Sequence[Row], number: int) -> list[Row]:
    """polytile's rows with the slowest first calls."""
    own = [row for row in rows if row["contestant"] == OWN and "first_call_s" in row]
    return sorted(own, key=lambda row: -row["first_call_s"])[:number]


def first_calls(rows: Sequence[Row], number: int = 10) -> Table:
    """The slowest first calls, stage by stage."""
    peers = {own["program"]: peer for own, peer in pairs(rows)}
    body = []
    for row in slowest(rows, number):
        peer = peers.get(row["program"], {}).get("first_call_s")
        stages = [row["stages"].get(name) for name in STAGES]
        made = row.get("counters", {}).get("kernels_generated")
        body.append(
            (row["program"], row["first_call_s"], peer, row["first_call_s"] / peer if peer else None, made, *stages)
        )
    columns: list[Column | str] = ["program", Column("s", ratio), Column("the peer's s", ratio), Column("part", ratio)]
    columns += [Column("kernels", count), *(Column(name, ratio) for name in STAGES)]
    return Table.from_rows(f"The {number} slowest first calls, seconds, by what the calling thread does", columns, body)


def long_beside_the_peers(rows: Sequence[Row]) -> Table:
    """First calls that take more than half of the peer's."""
    found = [(own, peer) for own, peer in pairs(rows) if "first_call_s" in own and "first_call_s" in peer]
    all_of = [own["first_call_s"] / peer["first_call_s"] for own, peer in found]
    body = [
        (own["program"], own["first_call_s"], peer["first_call_s"], own["first_call_s"] / peer["first_call_s"])
        for own, peer in found
        if own["first_call_s"] > HALF * peer["first_call_s"]
    ]
    columns: list[Column | str] = ["program", Column("s", ratio), Column("the peer's s", ratio), Column("part", ratio)]
    notes = [f"{len(body)} of {len(found)}; geometric mean of all parts {geomean(all_of):.2f}."] if all_of else []
    largest = sorted(body, key=lambda one: -one[3])[:25]
    return Table.from_rows(f"First calls of more than {HALF} of the peer's, the largest parts", columns, largest, notes)


def broken(rows: Sequence[Row]) -> Table:
    """Everything wrong or failed, and results with other strides than eager's."""
    said: dict[str, Callable[[Row], str]] = {
        "failed": lambda row: row["error"].splitlines()[0][:160],
        "wrong": lambda row: row["wrong"],
        "right": lambda row: row["strides"],
    }
    body = [(row["program"], row["contestant"], outcome(row), said[outcome(row)](row)) for row in rows]
    return Table.from_rows(
        "Wrong, failed, or with other strides", ["program", "contestant", "", "what"], [one for one in body if one[3]]
    )


__all__ = ["counts", "first_calls", "outcome", "over_eager", "over_peer", "ratios", "report", "slow", "slowest"]
