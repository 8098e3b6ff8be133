"""The table of benchmarks.learned: each bar, what was found, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polytile.report import Table

FIRST, FIRST_P95, THREE, THREE_P95 = 1.030, 1.12, 1.008, 1.04
SURE, ANSWERED, FAR, WORST = 0.75, 1.015, 0.01, 1.25
OTHER = 1.05
FEWER, SPEED = 0.9, 1.02
ASKED_US, TRAINING_SECONDS = 5.0, 60.0

Row = tuple[str, str, str, str, str]


def bars(results: Mapping[str, Any]) -> Table:
    """One row for each bar and table that it was tried on."""
    rows = [
        *(row for name, r in results.get("products", {}).items() for row in _chosen(name, r)),
        *(row for part in ("products", "cpu") for name, r in results.get(part, {}).items() for row in _sure(name, r)),
        *(_other_device(name, r) for name, r in results.get("devices", {}).items()),
        *(row for row in _calls(results.get("calls", {}))),
        *(row for row in _speed(results.get("speed", {}))),
    ]
    notes = [
        "first, best of three: time over the fastest candidate's, geometric mean / 95th percentile. sure: answers, their time "
        "over the fastest's, those off by over 10 %, the worst. Measured again: the same answers, and the fastest by the first "
        "measurement, judged by a second one."
    ]
    return Table.from_rows("Learned choice", ["", "what", "bar", "found", "holds"], rows, notes)


def _holds(good: bool) -> str:
    return "yes" if good else "no"


def _chosen(name: str, r: Mapping[str, Any]) -> Iterator[Row]:
    first = r["regret"] <= FIRST and r["p95"] <= FIRST_P95
    three = r["top3"] <= THREE and r["top3_p95"] <= THREE_P95
    prior = f"prior {r['prior']:.3f} / {r['prior_p95']:.2f}"
    yield ("L1", f"{name}: first of {r['total']} problems", f"{FIRST:.3f} / {FIRST_P95:.2f}",
           f"{r['regret']:.3f} / {r['p95']:.2f}; {prior}", _holds(first))  # fmt: skip
    yield ("L1", f"{name}: best of three", f"{THREE:.3f} / {THREE_P95:.2f}",
           f"{r['top3']:.3f} / {r['top3_p95']:.2f}; prior {r['prior_top3']:.3f}", _holds(three))  # fmt: skip


def _sure(name: str, r: Mapping[str, Any]) -> Iterator[Row]:
    sure = r["total"] - r["unsure"]
    far = r["far"] / sure if sure else 0.0
    share = sure / r["total"]
    good = share >= SURE and r["answered"] <= ANSWERED and far <= FAR and r["max_wrong_speedup"] <= WORST
    bar = f"{SURE:.0%}, {ANSWERED:.3f}, {FAR:.0%}, {WORST:.2f}"
    found = f"{share:.0%} of {r['total']}"
    if sure:
        found += f", {r['answered']:.3f}, {far:.1%}, {r['max_wrong_speedup']:.2f}"
    if "model" in r:
        found += f"; first {r['regret']:.3f} / {r['p95']:.2f}, prior {r['prior']:.3f} / {r['prior_p95']:.2f}"
    yield "L2", f"{name}: sure", bar, found, _holds(good)
    if r.get("again", {}).get("model", {}).get("total"):
        both = (f"{way} {s['geomean']:.3f}, {s['far'] / s['total']:.1%}, {s['worst']:.2f}" for way, s in r["again"].items())
        yield "L2", f"{name}: {r['again']['model']['total']} of these, measured again", "", "; ".join(both), ""


def _other_device(name: str, r: Mapping[str, Any]) -> Row:
    good = r["regret"] <= OTHER and r["regret"] <= r["prior"]
    found = f"{r['regret']:.3f}; prior {r['prior']:.3f}"
    return "L3", f"{name}: first of {r['total']} products", f"{OTHER:.2f}, no more than the prior", found, _holds(good)


def _calls(found: Mapping[str, Any]) -> Iterator[Row]:
    for family, with_it in found.get("learned", {}).items():
        without = found["without"][family]
        fewer = 1 - with_it["timed"] / without["timed"]
        ratio = with_it["geomean"] / without["geomean"]
        timed = f"{fewer:.0%}: {with_it['timed']} in place of {without['timed']} for {with_it['regimes']} regimes"
        yield "L4", f"{family} on a CPU: fewer candidates timed", f"{FEWER:.0%}", timed, _holds(fewer >= FEWER)
        speeds = f"{ratio:.3f}: {with_it['geomean']:.3f} of the fastest's, without {without['geomean']:.3f}"
        yield "L4", f"{family} on a CPU: speed of choices over those without", f"{SPEED:.2f}", speeds, _holds(ratio <= SPEED)


def _speed(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, by_count in found.get("asked_us", {}).items():
        what = ", ".join(f"{us:.1f} of {count}" for count, us in by_count.items())
        per = max(us / int(count) for count, us in by_count.items())
        yield ("L5", f"{name.rpartition(' ')[0]}: µs of a decision in C, by number of candidates", f"{ASKED_US:.0f}",
               f"{what}; {per:.2f} a candidate", _holds(max(by_count.values()) <= ASKED_US))  # fmt: skip
    if found:
        yield ("L5", f"training on {found['rows']} rows, two cores: s", f"{TRAINING_SECONDS:.0f}", f"{found['seconds']:.0f}",
               _holds(found["seconds"] <= TRAINING_SECONDS))  # fmt: skip
        yield "L5", "same bytes from the same rows", "yes", _holds(found["same_bytes"]), _holds(found["same_bytes"])
