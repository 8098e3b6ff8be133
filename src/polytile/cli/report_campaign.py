"""A campaign's folder as the subject of a report: what its workers measured, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polytile.campaigns.board import CAMPAIGN, Board, Result
from polytile.cli.campaign import sentence
from polytile.report.timeline import Sitting
from polytile.store import jsonl
from polytile.store.place import Place, place_of
from polytile.store.reading import Record


@dataclass(frozen=True)
class CampaignHeld:
    """The content of a campaign's folder.

    store     where the campaign files its measurements
    records   the measurements of its results, oldest first
    names     the kernels', by the first digits of their digests
    state     how far it is, in a sentence
    sittings  what its workers did
    """

    store: Place
    records: tuple[Record, ...]
    names: Mapping[str, Sequence[str]]
    state: str
    sittings: tuple[Sitting, ...]


def is_campaign(path: Path) -> bool:
    """Whether this is a campaign's folder."""
    return (path / CAMPAIGN).is_file()


def read_campaign(folder: Path) -> CampaignHeld:
    """What the results in a folder say; those that come meanwhile may be left out. Raises CampaignError if it is none."""
    board = Board(folder)
    status, names = board.status(), dict[str, list[str]]()
    sittings = []
    for name, result in board.results(set()):
        unit = board.unit(name)
        if unit.sizes:  # the unit is named like its kernel: words_digest
            names.setdefault(unit.about.rpartition("_")[2], [unit.about])
        sittings.append(_sitting(board, name, unit.about, result))
    records = sorted((record for one in sittings for record in one.records), key=lambda record: (record.taken_at, record.uid))
    return CampaignHeld(place_of(board.store or folder), tuple(records), names, sentence(status), tuple(sittings))


def _sitting(board: Board, name: str, about: str, result: Result) -> Sitting:
    records = jsonl.parse(result.lines.encode(), name).records if result.lines else ()
    ended = max((record.taken_at for record in records), default=board.filed_at(name))
    return Sitting(result.worker or "–", ended, result.seconds, records, about, result.error)
