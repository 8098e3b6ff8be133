"""`polytile why` between the words of its command line and the tables it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polytile import options
from polytile.cli.kernels import Kernel, matching, meant_by, shortest
from polytile.cli.plain import FAILED, sizes_text
from polytile.cli.why import Here, Why, given_sizes, sizes_of, why
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.planfile import Plan
from polytile.errors import StoreError
from polytile.report import Column, Table
from polytile.report.tables import count, micros, ratio
from polytile.runtime import device, pytorch
from polytile.runtime.cuda.gpus import gpus as visible_gpus
from polytile.store.place import Place
from polytile.tuning.environment import of_kind


def is_function(word: str) -> bool:
    """Whether the word names a function in a file (why_program.py) rather than a kernel."""
    return ".py:" in word


def answer(word: str, words: Sequence[str], store: Place, plan: Path | None, every: bool = False) -> tuple[list[Table], int]:
    """The tables to print, and the status: 0 if there is an answer, 1 if something is not known, FAILED if the word means several
    kernels, which are listed unless `every` one is asked about. Raises PolytileError as its parts do."""
    matches = matching(store, word)
    kernels = matches if every else meant_by(word, matches)
    if len(kernels) > 1 and not every:
        return [list_of(word, kernels)], FAILED
    tables: list[Table] = []
    known, in_force = True, plan_in_force(plan)
    for kernel in kernels:
        for sizes in all_sizes(kernel, words) if every else [sizes_of(kernel, words)]:
            asked = sizes_text(tuple(sizes.items()))
            for one in answers(kernel, sizes, in_force):
                tables.append(table_of(f"{kernel.name} at {asked}", asked, one))
                known = known and one.candidate is not None
    if not tables:
        raise StoreError(f"no kernel that {word!r} fits was measured at {' '.join(words)}.")
    return tables, 0 if known else 1


def list_of(word: str, kernels: Sequence[Kernel]) -> Table:
    """The kernels that a word may mean, with what to type for each."""
    rows = []
    for place, kernel in enumerate(kernels, 1):
        at = list(dict.fromkeys(sizes_text(record.measurement.problem.sizes) for record in kernel.records))
        shown = "; ".join(at[:2]) + ("; …" if len(at) > 2 else "")
        rows.append((place, kernel.name, shortest(kernel, kernels), len(at), len(kernel.records), shown))
    number, sizes, measurements = (Column(heading, count) for heading in ("#", "sizes", "measurements"))
    names: list[Column | str] = [number, "kernel", "type", sizes, measurements, "such as"]
    note = f"Type more of the name, or the digits under `type`, in place of {word}; or add --all."
    return Table.from_rows(f"{word!r} may mean {len(kernels)} kernels", names, rows, [note])


def all_sizes(kernel: Kernel, words: Sequence[str]) -> list[dict[str, int]]:
    """The sizes at which the kernel was measured, in order, of which those asked for are as asked; none for a kernel of other
    sizes."""
    try:
        asked = given_sizes(kernel, words)
    except StoreError:
        return []
    measured = {record.measurement.problem.sizes for record in kernel.records}
    wanted = sorted({tuple({**dict(sizes), **asked}.items()) for sizes in measured})
    return [dict(sizes) for sizes in wanted]


def plan_in_force(named: Path | None) -> tuple[str, Plan] | None:
    """The plan's name and content: the one named, else the one of the option `plan`. Raises PlanError where it cannot be read."""
    name = str(named) if named is not None else options.get("plan")
    return (name, Plan.read(name)) if name else None


def answers(kernel: Kernel, sizes: Mapping[str, int], plan: tuple[str, Plan] | None) -> list[Why]:
    """What is known for the devices of this machine; where that is nothing, what is nearest to being so."""
    everywhere = [why(kernel, sizes, place, plan) for place in (here(), *gpus())]
    known = [each for each in everywhere if all(one.candidate is not None for one in each)]
    if plan is not None and known:
        return known[0]
    return [one for each in known for one in each] or min(everywhere, key=lambda each: len(each[0].differs))


def here() -> Here:
    """This process, as calls made in it on the processor would be."""
    return Here(device.fingerprint(), dict(of_kind("cpu")), pytorch.threads(), plan_conditions("cpu"))


def gpus() -> list[Here]:
    """The same for calls on each GPU."""
    facts, threads, conditions = dict(of_kind("cuda")), pytorch.threads(), plan_conditions("cuda")
    return [Here(fingerprint, facts, threads, conditions) for fingerprint in visible_gpus()]


def table_of(name: str, asked: str, reason: Why) -> Table:
    """The answer about what is called `name`, asked for at the sizes `asked`, and how each candidate did."""
    measured = sizes_text(reason.sizes)
    if reason.candidate is not None:
        where = f" ({measured})" if measured != asked else ""
        title = f"{name} → {reason.candidate}: {reason.provenance}{where}"
        notes: tuple[str, ...] = ()
    else:
        title = f"{name}: {reason.provenance}; the nearest measurement is at {measured}"
        notes = tuple(f"- {sentence}." for sentence in reason.differs)
    chosen = next((ranked.seconds for ranked in reason.standings if ranked.candidate == reason.candidate), None)
    base = chosen or next((ranked.seconds for ranked in reason.standings if ranked.seconds), None)
    rows = [(r.candidate, r.seconds, r.seconds / base if r.seconds and base else None, r.note) for r in reason.standings]
    ratios = Column("× chosen" if chosen else "× fastest", ratio)
    return Table.from_rows(title, ["candidate", Column("µs", micros), ratios, "note"], rows, notes)
