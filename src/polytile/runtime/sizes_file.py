"""Files of recorded sizes: the sizes of compiled graphs' calls, and how often each occurred.

    {"format": "polytile sizes", "version": 1,
    "programs": [
    {"graph": "5c1f…", "about": "model.py:12 in forward", "sizes": {"s0": "L['x'].size()[0]"}, "seen": [[[8], 1200],
    [[31], 4]]},
    ...]}

A graph is identified by a digest of its operators and inputs, which is the same in every process. Sizes are in the
order of `hints=`. The numbers of calls are estimates, since calls are sampled.
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
"""Number of combinations of sizes counted per graph. Any combination with more than 1/MOST_SIZES of the calls is among them."""

FREQUENT, MOST_HINTS = 0.95, 32
"""Share of a graph's calls that `frequent` covers, and the largest number of combinations it returns."""

Sizes = tuple[int, ...]
Counts = dict[Sizes, float]


@dataclass(frozen=True)
class Seen:
    """The recorded sizes of one graph. `about` is its source location, `names` describes each size by its name in
    `hints=`, and `calls` counts the calls at each combination of sizes."""

    graph: str
    about: str
    names: Mapping[str, str]
    calls: Mapping[Sizes, float]

    @property
    def total(self) -> float:
        """Total number of calls."""
        return sum(self.calls.values())

    def ordered(self) -> list[tuple[Sizes, float]]:
        """Each combination with its number of calls, most frequent first."""
        return sorted(self.calls.items(), key=lambda pair: (-pair[1], pair[0]))

    def frequent(self, share: float = FREQUENT, most: int = MOST_HINTS) -> list[tuple[Sizes, float]]:
        """The fewest combinations that cover `share` of all calls, at most `most`, with their numbers of calls."""
        chosen, covered = [], 0.0
        for sizes, calls in self.ordered()[:most]:
            if covered >= share * self.total:
                break
            chosen.append((sizes, calls))
            covered += calls
        return chosen


def count(counts: Counts, sizes: Sizes, calls: float) -> None:
    """Adds `calls` calls at `sizes`, by the algorithm of Misra and Gries: when the table is full, every count drops by
    as much."""
    if sizes in counts or len(counts) < MOST_SIZES:
        counts[sizes] = counts.get(sizes, 0.0) + calls
        return
    left = {known: before - calls for known, before in counts.items() if before > calls}
    counts.clear()
    counts.update(left)


def read(path: Path) -> dict[str, Seen]:
    """Contents of a file, by graph. Raises SizesError if it is missing or of another kind."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"it is of version {content['version']}, this polytile reads {VERSION}")
        programs = [_seen(entry) for entry in content["programs"]]
    except FileNotFoundError:
        raise SizesError(f"there is no file {path}; `polytile sizes record -o {path} -- COMMAND` writes one.") from None
    except KeyError as error:
        raise SizesError(f"{path} is no file of recorded sizes (it has no {error}); name another.") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SizesError(f"{path} is no file of recorded sizes ({error}); name another.") from None
    return {seen.graph: seen for seen in programs}


def _seen(entry: Mapping[str, object]) -> Seen:
    names, seen = entry["sizes"], entry["seen"]
    if not isinstance(names, dict) or not isinstance(seen, list):
        raise TypeError(f"the entry {json.dumps(entry)[:80]} does not describe a graph")
    calls = {tuple(map(int, sizes)): float(number) for sizes, number in seen}
    if any(len(sizes) != len(names) for sizes in calls):
        raise ValueError("an entry has sizes without a name")
    return Seen(str(entry["graph"]), str(entry["about"]), names, calls)


def add(path: Path, new: Sequence[Seen]) -> None:
    """Adds the counts to the file, which is created if needed. Safe against concurrent processes. Raises SizesError if
    the file is of another kind, and OSError if it cannot be written."""
    with _alone(path):
        known = read(path) if path.exists() else {}
        for seen in new:
            calls = dict(known[seen.graph].calls) if seen.graph in known else {}
            for sizes, number in seen.calls.items():
                count(calls, sizes, number)
            known[seen.graph] = Seen(seen.graph, seen.about, seen.names, calls)
        files.write_text(path, text(list(known.values())))


def text(programs: Sequence[Seen]) -> str:
    """The file's text, one graph a line."""
    lines = ",\n".join(json.dumps(_entry(seen)) for seen in sorted(programs, key=lambda seen: seen.graph))
    return f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION},\n"programs": [\n{lines}\n]}}\n'


def _entry(seen: Seen) -> dict[str, object]:
    counted = [[list(sizes), round(calls, 3)] for sizes, calls in seen.ordered()]
    return {"graph": seen.graph, "about": seen.about, "sizes": dict(seen.names), "seen": counted}


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes from adding to the file within the block."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
