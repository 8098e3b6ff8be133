"""`polytile store`: what has been measured, and moving it about."""

from __future__ import annotations

import enum
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polytile import files
from polytile.cli.plain import StorePlace, date, environment_text, sizes_text, store_at

if TYPE_CHECKING:
    from polytile.store.place import Place

app = typer.Typer(
    name="store",
    help="Look at the measurement store, copy measurements between stores and files, check it and tidy it.",
    no_args_is_help=True,
)


class Format(str, enum.Enum):
    """What `export` writes."""

    jsonl = "jsonl"
    t4 = "t4"


@app.command("ls")
def list_store(store: StorePlace = None) -> None:
    """List the devices and environments of the store, and how much was measured in each."""
    from polytile.report import Column, Table, show
    from polytile.report.overview import places
    from polytile.report.tables import count
    from polytile.store.reading import records

    place = store_at(store)
    rows = [
        (each.device, environment_text(dict(each.environment)), each.kernels, each.problems, each.measurements, date(each.newest))
        for each in places(records(place))
    ]
    numbers = [Column(name, count) for name in ("kernels", "problems", "measurements")]
    show(Table.from_rows(f"Measurements in {place}", ["device", "environment", *numbers, "newest"], sorted(rows)))


@app.command("show")
def show_kernel(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help="A kernel's name, a part of it, or the beginning of its digest.")
    ] = "",
    store: StorePlace = None,
) -> None:
    """Show each measurement of a kernel: sizes, candidate, outcome, time. Without a name, list the kernels."""
    from polytile.cli.kernels import kernels, matching
    from polytile.report import Column, Table, show
    from polytile.report.tables import count, error, micros
    from polytile.store import summarise

    place = store_at(store)
    if not kernel:
        rows = [(k.name, " ".join(k.size_names), len({r.measurement.problem for r in k.records}), len(k.records))
                for k in kernels(place)]  # fmt: skip
        numbers = [Column("problems", count), Column("measurements", count)]
        show(Table.from_rows(f"Kernels in {place}", ["kernel", "sizes", *numbers], rows))
        return
    numbers = [Column("µs", micros), Column("error", error)]
    columns: list[Column | str] = ["sizes", "candidate", "outcome", *numbers, "source", "taken"]
    for shown in matching(place, kernel):
        lines = []
        for record in sorted(shown.records, key=lambda record: (record.measurement.problem.sizes, record.taken_at)):
            m = record.measurement
            seconds, _ = summarise(m.samples)
            known = None if math.isnan(seconds) else seconds
            lines.append((sizes_text(m.problem.sizes), m.candidate, m.outcome.value, known, m.max_error,
                          m.source_hash[:8], date(record.taken_at)))  # fmt: skip
        show(Table.from_rows(f"{shown.name}, digest {shown.digest}", columns, lines))


@app.command("export")
def export_store(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write. JSON lines are appended to what it holds.")],
    format: Annotated[Format, typer.Option(help="JSON lines, or Kernel Tuner's T4 results.")] = Format.jsonl,
    kernel: Annotated[str, typer.Option(help="For T4: this kernel alone (its name or a part of it).")] = "",
    store: StorePlace = None,
) -> None:
    """Write the measurements to a file: as JSON lines, or as T4 results, which other tools read too."""
    from polytile.errors import StoreError

    place = store_at(store)
    if format is Format.t4:
        typer.echo(f"{_export_t4(place, file, kernel)} measurements written to {file}.")
        return
    if kernel:
        raise StoreError("only T4 results can be exported for one kernel; leave --kernel out, or add --format t4.")
    from polytile.store.transfer import export_lines

    done = export_lines(place, file)
    _tell(done.damaged, done.partial)
    typer.echo(f"{done.new} measurements added to {file}; {done.known} were there already.")


def _export_t4(place: Place, file: Path, kernel: str) -> int:
    from polytile.cli.kernels import matching
    from polytile.errors import StoreError
    from polytile.store import kernel_tuner
    from polytile.store.reading import records

    chosen = [record for one in matching(place, kernel) for record in one.records] if kernel else records(place)
    try:
        files.write_text(file, kernel_tuner.text(chosen))
    except OSError as error:
        raise StoreError(f"the measurements cannot be written to {file}: {error.strerror or error}.") from None
    return len(chosen)


@app.command("import")
def import_store(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines or T4 results, as `export` or another tool writes them.")
    ],
    store: StorePlace = None,
) -> None:
    """Add the measurements of a file. Those that are in the store already stay as they are.

    Measurements that cannot be read are reported and left out; the status is then 1. A last line that was never finished is
    reported too, but is no failure.
    """
    from polytile.store.transfer import import_file

    place = store_at(store)
    done = import_file(file, place)
    _tell(done.damaged, done.partial)
    typer.echo(f"{done.new} measurements added to {place}; {done.known} were there already.")
    raise typer.Exit(1 if done.damaged else 0)


@app.command("merge")
def merge_store(
    sources: Annotated[list[str], typer.Argument(metavar="STORE", help="Stores to read: files, cache directories or servers.")],
    store: StorePlace = None,
) -> None:
    """Add the measurements of other stores to this one. The others are only read."""
    from polytile.store.place import place_of
    from polytile.store.transfer import merge

    place = store_at(store)
    for source in map(place_of, sources):
        done = merge(source, place)
        typer.echo(f"{done.new} measurements added from {source} to {place}; {done.known} were there already.")


@app.command("check")
def check_store(store: StorePlace = None) -> None:
    """Read the whole store, say whether it is sound and what it holds. The status is 1 where it is not sound."""
    from polytile.report import Table, show
    from polytile.store.check import check

    health = check(store_at(store))
    rows = [
        ("sound", "no" if health.troubles else "yes"),
        ("size", f"{health.size_bytes / 2**10:.0f} KiB"),
        *((name, str(number)) for name, number in health.counts.items()),
        *((f"outcome: {name}", str(number)) for name, number in sorted(health.outcomes.items())),
        ("taken", f"{date(health.oldest)} to {date(health.newest)}"),
        ("set aside as damaged", ", ".join(path.name for path in health.set_aside) or "none"),
    ]
    show(Table.from_rows(f"Store {health.place}", ["subject", "found"], rows, [f"- {trouble}." for trouble in health.troubles]))
    raise typer.Exit(1 if health.troubles else 0)


@app.command("gc")
def collect(
    store: StorePlace = None,
    days: Annotated[float, typer.Option(help="How long another torch or compiler must not have been used.", min=0)] = 30.0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them. Without it they are only shown.")] = False,
) -> None:
    """Show, and with --remove take out, measurements that no lookup can return any more.

    Those are measurements of a kernel's source that has changed since, and of a torch or compiler that is no longer
    installed. Other devices and thread settings stay.
    """
    from polytile.report import Column, Table, show
    from polytile.report.tables import count
    from polytile.store import cleanup
    from polytile.tuning.environment import present

    place = store_at(store)
    stale = cleanup.stale(place, [dict(facts) for facts in present()], time.time(), days)
    total = sum(len(group.ids) for group in stale)
    if not stale:
        typer.echo(f"Every measurement in {place} can still be used.")
        return
    columns: list[Column | str] = ["measurements of", "why", Column("count", count)]
    show(Table.from_rows(f"Can go from {place}", columns, [(group.what, group.why, len(group.ids)) for group in stale]))
    if remove:
        typer.echo(f"{cleanup.remove(place, stale)} measurements removed.")
    else:
        typer.echo(f"{total} measurements would go; nothing was removed. Add --remove to remove them.")


def _tell(damaged: tuple[str, ...], partial: str) -> None:
    for sentence in (*damaged, partial):
        if sentence:
            typer.echo(f"polytile: {sentence}.", err=True)
