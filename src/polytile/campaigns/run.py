"""Runs a campaign from its spec to its results: `polytile campaign run`.

It may be killed at any moment. When restarted, it continues with what is in the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from polytile.campaigns import consensus
from polytile.campaigns.board import Board, Result, Status
from polytile.campaigns.places import Local, Place
from polytile.campaigns.spec import Spec
from polytile.campaigns.trace import Traced
from polytile.campaigns.worker import Resolve
from polytile.store import jsonl
from polytile.store import place as places
from polytile.store.transfer import add

STORE = "store.sqlite3"
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """How measuring ended: whether all units are done, and why not."""

    status: Status
    why: str = ""


def store_of(spec: Spec, folder: Path) -> places.Place:
    """The store of the campaign's measurements."""
    return places.place_of(spec.store) if spec.store else (folder / STORE).absolute()


def fill(board: Board, traced: Traced, processes: int = 1) -> None:
    """Put the units on the board, once per process, and set their order."""
    units = [replace(unit, process=number) for unit in traced.units.values() for number in range(processes)]
    for unit in units:
        board.add(unit)
    board.order(units)
    board.stop(False)


def measure(
    spec: Spec, board: Board, where: str, count: int, resolve: Resolve, watch: Callable[[Status, Result | None], None]
) -> Ended:
    """Let workers measure until everything is done or the spec's time is up. Measurements are added to the store as they
    arrive."""
    store, known = store_of(spec, board.root), set[str]()
    status = _collect(spec, board, store, known, watch)
    place = _place_of(where, board, spec.device, count, resolve) if status.left else Place()
    try:
        while status.left:
            if spec.seconds and status.device_seconds >= spec.seconds:
                board.stop()
                return Ended(status, f"the {spec.seconds:.6g} s of the spec are spent")
            place.tend()
            board.lose_lapsed()
            time.sleep(LOOK_SECONDS)
            status = _collect(spec, board, store, known, watch)
        return Ended(status)
    except KeyboardInterrupt:
        board.stop()
        return Ended(_collect(spec, board, store, known, watch), "stopped")
    finally:
        board.drive(False)
        place.close()


def _place_of(where: str, board: Board, kind: str, count: int, resolve: Resolve) -> Place:
    """The workers that `--workers` names."""
    if where == "local":
        return Local(board, kind, count)
    if where == "ray":
        from polytile.campaigns.on_ray import OnRay  # needs the extra `campaign`

        return OnRay(board, kind, count, resolve)
    return Place() if count == 0 else Local(board, kind, count)


def _collect(
    spec: Spec, board: Board, store: places.Place, known: set[str], watch: Callable[[Status, Result | None], None]
) -> Status:
    """Add the results since the last look to the store, and request more processes where a choice is in doubt.

    The store has all results that the status counts: results that arrive in between wait for the next look.
    """
    board.drive()
    status = board.status()
    new = dict(board.results(known))
    lines = {name: result.lines.encode() for name, result in new.items() if result.lines}
    if lines:
        add([record for name, text in lines.items() for record in jsonl.parse(text, name).records], store)
    known.update(new)
    doubtful = consensus.units_in_doubt(board, new, spec.processes)
    if doubtful:
        board.extend(doubtful)
        status = replace(status, units=len(board.wanted()))
    for result in new.values():
        watch(status, result)
    watch(status, None)
    return status
