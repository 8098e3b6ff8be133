"""The features of a problem's candidates: numbers by name, the same for every device.

    work.*          facts about the problem: sizes, bytes of an element, layouts, operations
    device.*        numbers of the device, from its fingerprint
    best            binary logarithm of the best candidate's predicted µs
    behind          logarithm of the candidate's predicted time over the best candidate's
    memory_s, ...   terms in seconds, as shares of the predicted time
    places, ...     other terms
    config.m, ...   numbers of the config
    origin=triton   1 if true, else 0; likewise each string of the config: variant=tile

Times are shares, so that devices with different clocks have similar features. -1 stands for a missing number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from polytile.learn.offer import Offer
from polytile.problem import Problem

VERSION = 1
"""Version of the features' meaning. Models, and terms in stores, of an earlier version are not used; see also
tests/learn/golden."""

OWN = ("work.", "device.")
"""Prefixes of features that all candidates of a problem share, like `best`."""

UNSAID = -1.0

Row = dict[str, float]

GPU_NUMBERS = ("sms", "clock", "l2_bytes", "shared_per_sm")
CPU_NUMBERS = ("cores", "threads", "max_mhz")


def features(problem: Problem, machine: Mapping[str, str], offers: Sequence[Offer]) -> list[Row]:
    """The features of each offer. `machine` has the facts behind the problem's device fingerprint, as text."""
    best = min(offer.predicted for offer in offers)
    shared = {"best": math.log2(best * 1e6), **device_numbers(machine)}
    for offer in offers:
        for name, value in offer.terms.items():
            if name.startswith(OWN):
                shared.setdefault(name, float(value))
    return [{**shared, **_own(offer, best)} for offer in offers]


def _own(offer: Offer, best: float) -> Row:
    row = {"behind": math.log(offer.predicted / best), f"origin={offer.origin}": 1.0}
    for name, value in offer.terms.items():
        if not name.startswith(OWN):
            row[name] = value / offer.predicted if name.endswith("_s") else float(value)
    for name, said in offer.config.values:
        row.update({f"{name}={said}": 1.0} if isinstance(said, str) else {f"config.{name}": float(said)})
    return row


def words(problem: Problem, offers: Sequence[Offer]) -> set[str]:
    """What a model must have seen in order to rank these offers: dtypes, origins, and the strings of configs."""
    terms = {f"dtype={dtype}" for dtype in problem.dtypes} | {f"origin={offer.origin}" for offer in offers}
    return terms | {f"{n}={said}" for offer in offers for n, said in offer.config.values if isinstance(said, str)}


def values(row: Row, names: Sequence[str]) -> list[float]:
    """The row's features in the order of `names`."""
    return [row.get(name, 0.0 if "=" in name else UNSAID) for name in names]


def is_shared(name: str) -> bool:
    """Whether all candidates of a problem have the same value of this feature."""
    return name == "best" or name.startswith(OWN)


def device_numbers(machine: Mapping[str, str]) -> Row:
    """Known numbers of a device: multiprocessors, clock, caches and memory of a GPU; cores, threads, clock and caches of a
    CPU."""
    on_gpu = machine.get("kind") == "cuda"
    numbers = {f"device.{name}": _number(machine.get(name)) for name in (GPU_NUMBERS if on_gpu else CPU_NUMBERS)}
    if on_gpu:
        numbers["device.memory"] = _number(machine.get("memory_clock")) * _number(machine.get("memory_bus_bits"))
    else:
        caches = json.loads(machine.get("caches", "{}"))
        numbers |= {f"device.{name}": float(size) for name, size in caches.items() if isinstance(size, int | float)}
    return {name: value for name, value in numbers.items() if not math.isnan(value)}


def architecture(machine: Mapping[str, str]) -> str:
    """What devices must share for one model to serve them: "cuda sm90", "cuda gfx942", "cpu avx512"; "" if unknown."""
    if machine.get("kind") == "cuda":
        return f"cuda {machine.get('arch') or 'sm' + machine.get('capability', '?')}"
    return f"cpu {machine['isa']}" if "isa" in machine else ""


def _number(text: str | None) -> float:
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan
