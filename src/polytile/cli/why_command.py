"""`polytile why` between the words of its command line and the tables it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polytile import options
from polytile.cli.kernels import Kernel, the_one
from polytile.cli.plain import sizes_text
from polytile.cli.why import Here, Why, sizes_of, why
from polytile.multikernel.planfile import Plan
from polytile.report import Column, Table
from polytile.report.tables import micros, ratio
from polytile.runtime import device, pytorch
from polytile.store.place import Place
from polytile.tuning.environment import of_kind


def is_function(word: str) -> bool:
    """Whether the word names a function in a file (why_program.py) rather than a kernel."""
    return ".py:" in word


def answer(word: str, words: Sequence[str], store: Place, plan: Path | None) -> tuple[list[Table], bool]:
    """The tables to print, and whether there is an answer. Raises PolytileError as its parts do."""
    kernel = the_one(store, word)
    sizes = sizes_of(kernel, words)
    found = answers(kernel, sizes, plan_in_force(plan))
    asked = sizes_text(tuple(sizes.items()))
    return [table_of(f"{kernel.name} at {asked}", asked, one) for one in found], all(one.candidate for one in found)


def plan_in_force(named: Path | None) -> tuple[str, Plan] | None:
    """The plan's name and content: the one named, else the one of the option `plan`. Raises PlanError where it cannot be read."""
    name = str(named) if named is not None else options.get("plan")
    return (name, Plan.read(name)) if name else None


def answers(kernel: Kernel, sizes: Mapping[str, int], plan: tuple[str, Plan] | None) -> list[Why]:
    """What is known for the devices of this machine; where that is nothing, what is nearest to being so."""
    found = [why(kernel, sizes, place, plan) for place in (here(), *gpus())]
    known = [each for each in found if all(one.candidate is not None for one in each)]
    if plan is not None and known:
        return known[0]
    return [one for each in known for one in each] or min(found, key=lambda each: len(each[0].differs))


def here() -> Here:
    """This process, as calls made in it on the processor would be."""
    return Here(device.fingerprint(), dict(of_kind("cpu")), pytorch.threads())


def gpus() -> list[Here]:
    """The same for calls on each GPU."""
    return [Here(fingerprint, dict(of_kind("cuda")), pytorch.threads()) for fingerprint in pytorch.gpus()]


def table_of(name: str, asked: str, found: Why) -> Table:
    """The answer about what is called `name`, asked for at the sizes `asked`, and how each candidate did."""
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


__all__ = ["answer", "answers", "gpus", "here", "is_function", "plan_in_force", "table_of"]
