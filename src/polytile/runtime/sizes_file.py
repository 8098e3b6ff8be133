"""Files of recorded sizes: which sizes calls of compiled graphs had, and how often.

    {"format": "polytile sizes", "version": 1,
    "programs": [
    {"graph": "5c1f…", "about": "model.py:12 in forward", "sizes": {"s0": "L['x'].size()[0]"}, "seen": [[[8], 1200], [[31], 4]]},
    ...]}

A graph is known by a digest of its operators and inputs, the same in each process. Sizes are in the order of `hints=`. The
numbers of calls are estimates, as calls are sampled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polytile import files
from polytile.errors import SizesError

FORMAT, VERSION = "polytile sizes", 1

MOST_SIZES = 4096
"""Combinations of sizes that are counted of one graph: those that are more than one in so many of its calls are among them."""

FREQUENT, MOST_HINTS = 0.95, 32
"""What part of a graph's calls `frequent` answers for, and with how many combinations of sizes at most."""

Sizes = tuple[int, ...]
Counts = dict[Sizes, float]


@dataclass(frozen=True)
class Seen:
    """The sizes of one graph. `about`: where in the source it begins; `names`: what each size is, by its name in `hints=`;
    `calls`: how often each combination came."""

    graph: str
    about: str
    names: Mapping[str, str]
    calls: Mapping[Sizes, float]

    @property
    def total(self) -> float:
        """All calls."""
        return sum(self.calls.values())

    def ordered(self) -> list[tuple[Sizes, float]]:
        """Each combination with its calls, the most frequent first."""
        return sorted(self.calls.items(), key=lambda pair: (-pair[1], pair[0]))

    def frequent(self, share: float = FREQUENT, most: int = MOST_HINTS) -> list[tuple[Sizes, float]]:
        """The fewest combinations that `share` of all calls had, with their calls, and no more than `most`."""
        chosen, covered = [], 0.0
        for sizes, calls in self.ordered()[:most]:
            if covered >= share * self.total:
                break
            chosen.append((sizes, calls))
            covered += calls
        return chosen


def count(counts: Counts, sizes: Sizes, calls: float) -> None:
    """Adds so many calls. The counts are those of Misra and Gries: where there is no room for one more, all lose as much."""
    if sizes in counts or len(counts) < MOST_SIZES:
        counts[sizes] = counts.get(sizes, 0.0) + calls
        return
    left = {known: before - calls for known, before in counts.items() if before > calls}
    counts.clear()
    counts.update(left)


def read(path: Path) -> dict[str, Seen]:
    """What a file holds, by graph. Raises SizesError where there is none, or it is something else."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"it is of version {content['version']}, this polytile reads {VERSION}")
        found = [_seen(entry) for entry in content["programs"]]
    except FileNotFoundError:
        raise SizesError(f"there is no file {path}; `polytile sizes record -o {path} -- COMMAND` writes one.") from None
    except KeyError as error:
        raise SizesError(f"{path} is no file of recorded sizes (it has no {error}); name another.") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SizesError(f"{path} is no file of recorded sizes ({error}); name another.") from None
    return {seen.graph: seen for seen in found}


def _seen(entry: Mapping[str, object]) -> Seen:
    names, seen = entry["sizes"], entry["seen"]
    if not isinstance(names, dict) or not isinstance(seen, list):
        raise TypeError(f"the entry {json.dumps(entry)[:80]} is none of a graph")
    calls = {tuple(map(int, sizes)): float(number) for sizes, number in seen}
    if any(len(sizes) != len(names) for sizes in calls):
        raise ValueError("an entry has sizes without a name")
    return Seen(str(entry["graph"]), str(entry["about"]), names, calls)


def add(path: Path, new: Sequence[Seen]) -> None:
    """Adds the counts to the file, which is made if it is not there; other processes may add to it meanwhile. Raises SizesError
    where it is something else, and OSError where it cannot be written."""
    with _alone(path):
        known = read(path) if path.exists() else {}
        for seen in new:
            calls = dict(known[seen.graph].calls) if seen.graph in known else {}
            for sizes, number in seen.calls.items():
                count(calls, sizes, number)
            known[seen.graph] = Seen(seen.graph, seen.about, seen.names, calls)
        files.write_text(path, text(list(known.values())))


def text(programs: Sequence[Seen]) -> str:
    """The file: one graph a line."""
    lines = ",\n".join(json.dumps(_entry(seen)) for seen in sorted(programs, key=lambda seen: seen.graph))
    return f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION},\n"programs": [\n{lines}\n]}}\n'


def _entry(seen: Seen) -> dict[str, object]:
    counted = [[list(sizes), round(calls, 3)] for sizes, calls in seen.ordered()]
    return {"graph": seen.graph, "about": seen.about, "sizes": dict(seen.names), "seen": counted}


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Within the block no other process adds to the file."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
