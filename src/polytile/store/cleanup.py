"""Finds measurements that no lookup can return again, shows them, and removes them on request.

Two kinds, by what must be equal for a lookup to find a measurement:

- its source is superseded: a candidate of the same name and config, for the same kernel, device and environment, was
  measured later from another source;
- its environment is gone: torch, the compiler, the driver or the way of measuring is not the present one, and nothing has
  been measured in that environment for some days (another machine that shares the store may still have the older torch).

Other devices (where there is no GPU, all GPUs), thread settings and kernels that no program compiles any more are kept:
nothing here can tell that they will not come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polytile.errors import StoreError
from polytile.store import schema
from polytile.store.database import Unusable
from polytile.store.place import Place
from polytile.store.reading import opened, reading

SOFTWARE = ("torch", "compiler", "flags", "triton", "driver", "method")
"""The facts of an environment that an upgrade replaces for good."""

GPU = "driver"
"""A fact that environments of GPUs have and those of processors have not."""

DAYS = 30.0


@dataclass(frozen=True)
class Stale:
    """Measurements, by their numbers, that can be removed, whose they are, and why."""

    what: str
    why: str
    ids: tuple[int, ...]


def stale(place: Place, present: Sequence[Mapping[str, str]], now: float, days: float = DAYS) -> list[Stale]:
    """What can go from the store at the time `now` (seconds since 1970). `present` are the environments of this machine: its
    processor's and, where it has a GPU, that of its GPUs.

    The newest row always stays: SQLite would give its number to the next one, and processes that read on
    from the last number they know would miss that. Raises StoreError where the store cannot be read.
    """
    with reading(place) as reader:
        rows = reader.rows(schema.SOURCES)
    last = max((row[0] for row in rows), default=0)
    gone = _gone(rows, present, now - days * 86400)
    groups: dict[tuple[str, str], list[int]] = {}
    newest_source = {_maker(row): row[-1] for row in rows}
    for row in rows:
        number, environment, kernel, candidate = row[0], row[2], row[5], row[7]
        if number == last:
            continue
        if environment in gone:
            groups.setdefault((gone[environment], "this software is not here any more"), []).append(number)
        elif newest_source[_maker(row)] != row[-1]:
            what = f"{candidate} of {row[4]} {kernel[:8]}"
            groups.setdefault((what, "its source has changed since"), []).append(number)
    return [Stale(what, why, tuple(ids)) for (what, why), ids in sorted(groups.items())]


def remove(place: Place, groups: Iterable[Stale]) -> int:
    """Removes what `stale` returned, all or nothing, and gives the space back; returns how many measurements went.
    Raises StoreError if the store is no store, or cannot be changed."""
    with reading(place):  # a program's own way of opening would set aside what is no store
        pass
    database = opened(place)
    try:
        return database.remove([number for group in groups for number in group.ids])
    except Unusable as error:
        raise StoreError(f"nothing was removed from {place}: {error}.") from None
    finally:
        database.close()


def _gone(rows: list[tuple[Any, ...]], present: Sequence[Mapping[str, str]], before: float) -> dict[str, str]:
    """Digest → description of each environment whose software is not the present one of its kind, not used since
    `before`."""
    last_used = {row[2]: row[1] for row in rows}  # rows come oldest first
    facts = {row[2]: dict(json.loads(row[3])) for row in rows}
    gone = {}
    for environment, said in facts.items():
        for here in present:
            other = [name for name in SOFTWARE if said.get(name) != here.get(name)]
            if (GPU in said) == (GPU in here) and other and last_used[environment] < before:
                gone[environment] = ", ".join(f"{name} {said.get(name, 'unknown')}" for name in other)
    return gone


def _maker(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Whose source a measurement is of: environment, kernel, device, candidate and config."""
    _, _, environment, _, family, kernel, device, candidate, config, _ = row
    return environment, family, kernel, device, candidate, config
