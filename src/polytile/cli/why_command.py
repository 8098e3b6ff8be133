"""`polytile why` between the words of its command line and the tables it prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polytile import options
from polytile.cli.kernels import Kernel, the_one
from polytile.cli.plain import sizes_text
from polytile.cli.why import Here, Why, sizes_of, why
from polytile.multikernel.planfile import Plan
from polytile.multikernel.spec import threads
from polytile.report import Column, Table
from polytile.report.tables import micros, ratio
from polytile.runtime import device
from polytile.store.place import Place
from polytile.tuning.environment import environment


def answer(word: str, words: Sequence[str], store: Place, plan: Path | None) -> tuple[list[Table], bool]:
    """The tables to print, and whether there is an answer. Raises PolytileError as its parts do."""
    kernel = the_one(store, word)
    sizes = sizes_of(kernel, words)
    pinned = str(plan) if plan is not None else options.get("plan")
    found = why(kernel, sizes, here(), (pinned, Plan.read(pinned)) if pinned else None)
    asked = sizes_text(tuple(sizes.items()))
    return [_table(kernel, asked, one) for one in found], all(one.candidate is not None for one in found)


def here() -> Here:
    """This process, as calls made in it would be."""
    return Here(device.fingerprint(), dict(environment()), threads())


def _table(kernel: Kernel, asked: str, found: Why) -> Table:
    name = f"{kernel.name} at {asked}"
    measured = sizes_text(found.sizes)
    if found.candidate is not None:
        where = f" ({measured})" if measured != asked else ""
        title = f"{name} → {found.candidate}: {found.provenance}{where}"
        notes: tuple[str, ...] = ()
    else:
        title = f"{name}: {found.provenance}; the nearest measurement is at {measured}"
        notes = tuple(f"- {sentence}." for sentence in found.differs)
    chosen = next((ranked.seconds for ranked in found.standings if ranked.candidate == found.candidate), None)
    base = chosen or next((ranked.seconds for ranked in found.standings if ranked.seconds), None)
    rows = [(r.candidate, r.seconds, r.seconds / base if r.seconds and base else None, r.note) for r in found.standings]
    return Table.of(title, ["candidate", Column("µs", micros), Column("× chosen" if chosen else "× fastest", ratio), "note"],
                    rows, notes)  # fmt: skip


__all__ = ["answer", "here"]
