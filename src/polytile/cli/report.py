"""`polytile report`: what a store, a package or a call's profile says, as one HTML file, as tables, or as lists (CSV)."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from polytile import files
from polytile.cli.kernels import names_beside, names_of
from polytile.cli.plain import store_at
from polytile.cli.report_campaign import is_campaign, read_campaign
from polytile.errors import ReportError
from polytile.packages.manifest import is_package, read_manifest
from polytile.problem import Problem
from polytile.report import Table, call, packaged, pages, show
from polytile.report.contents import Held, Report, Source, report
from polytile.runtime import collector
from polytile.store.jsonl import NotExported
from polytile.store.place import Server
from polytile.store.transfer import held, is_exported

SUBJECTS = (
    "A report takes a store (its file, a cache directory or a server's address), a file that `polytile store export` wrote, a "
    "campaign's folder, a package (.ptp), or the profile of a call, which polytile.profile(...).save(FILE) wrote."
)

Made = Report | packaged.PackageReport | call.CallReport


class NothingYet(ReportError):
    """A store has no measurements that are asked for."""


def reported(stores: Sequence[str], kernel: str = "") -> Report:
    """The report on one store, or on what changed between two; where `kernel` is not "", of the kernels that it fits alone.

    Raises StoreError where a store cannot be read, and ReportError where there is nothing to report on.
    """
    if len(stores) > 2:
        raise ReportError(f"a report is on one store, or compares two, and {len(stores)} were named; merge them first.")
    with collector.at_rest():  # of 20 000 measurements all stay, and looking for garbage takes a third of the time
        subjects = [_subject(store) for store in stores] or [_subject(None)]
        known: dict[str, list[str]] = {}
        for subject in subjects:
            for digits, names in subject.names.items():
                known.setdefault(digits, []).extend(names)

        def fits(problem: Problem) -> bool:
            return problem.kernel.startswith(kernel) or any(kernel in name for name in names_of(problem, known))

        words = ["polytile", "report", *(subject.name for subject in subjects), *(["--kernel", kernel] if kernel else [])]
        sources = [_fitting(subject, kernel, fits) for subject in subjects]
        before = sources[0] if len(sources) > 1 else None
        return report(sources[-1], before, lambda problem: names_of(problem, known)[0], time.time(), shlex.join(words))


@dataclass(frozen=True)
class Subject:
    """A store or a campaign that is reported: its name on the command line, what it holds, and names of its kernels."""

    name: str
    held: Held
    names: Mapping[str, Sequence[str]]


def _subject(named: str | None) -> Subject:
    """Raises StoreError or CampaignError where it cannot be read, and ReportError where it is something else."""
    if named is not None and is_campaign(Path(named)):
        content = read_campaign(Path(named))
        beside = {**names_beside(content.store), **content.names}
        return Subject(named, Held(Source(str(content.store)), content.records, content.state, content.sittings), beside)
    place = store_at(named)
    try:
        lines = held(place)
    except NotExported:
        raise ReportError(f"{place} holds nothing to report on. {SUBJECTS}") from None
    for sentence in (*lines.damaged, lines.partial):
        if sentence:
            typer.echo(f"polytile: {sentence}.", err=True)
    source = Source(str(place), not isinstance(place, Server) and is_exported(place))
    return Subject(str(place), Held(source, lines.records), names_beside(place))


def _fitting(subject: Subject, kernel: str, fits: Callable[[Problem], bool]) -> Held:
    """What a subject holds of kernels that fit. Raises NothingYet if there is none."""
    contents, name = subject.held, subject.name
    if not contents.records:
        raise NothingYet(f"{name} has no measurements; run a compiled program or `polytile tune` first, or name another store.")
    if not kernel:
        return contents
    chosen = [record for record in contents.records if fits(record.measurement.problem)]
    if not chosen:
        raise NothingYet(
            f"{name} has no measurement of a kernel that --kernel {kernel!r} fits; `polytile store show --store "
            f"{shlex.quote(contents.source.name)}` lists its kernels."
        )
    return replace(contents, records=chosen)


def reported_package(paths: Sequence[Path]) -> packaged.PackageReport:
    """The report on one package, or on what changed between two. Raises ReportError for more than two, and PackageError where one
    is damaged."""
    if len(paths) > 2:
        raise ReportError(f"a report is on one package, or compares two, and {len(paths)} were named.")
    packages = [packaged.Package(str(path), read_manifest(path)) for path in paths]
    command = shlex.join(["polytile", "report", *map(str, paths)])
    return packaged.PackageReport(packages[-1], packages[0] if len(packages) > 1 else None, command)


def made_of(named: Sequence[str], kernel: str = "") -> Made:
    """The report on what is named: stores, packages, or the profile of a call. Raises ReportError where these do not go together,
    StoreError and PackageError where one cannot be read."""
    paths = [Path(name) for name in named]
    if profiles := [path for path in paths if call.is_profile(path)]:
        if len(paths) > 1:
            raise ReportError(f"{profiles[0]} is the profile of a call, and a report on one compares nothing; name it alone.")
        return call.read(paths[0])
    packages = [path for path in paths if is_package(path)]
    if packages and len(packages) < len(paths):
        raise ReportError(f"{packages[0]} is a package, and the other is none; a report compares two stores or two packages.")
    return reported_package(packages) if packages else reported(named, kernel)


def is_stores(named: Sequence[str]) -> bool:
    """Whether stores or campaigns are named, rather than packages or a profile."""
    return not any(is_package(Path(name)) or call.is_profile(Path(name)) for name in named)


def tables_of(made: Made) -> Iterator[tuple[str, Table]]:
    """Every table, with the name of its file."""
    if isinstance(made, Report):
        return pages.tables(made)
    return call.tables(made) if isinstance(made, call.CallReport) else packaged.tables(made)


def print_tables(made: Made) -> None:
    """Every table, as all commands print them."""
    for _, table in tables_of(made):
        show(table)


def keep_written(stores: Sequence[str], kernel: str, output: Path, every: float) -> None:
    """Writes the page again every `every` seconds, until Ctrl-C. Where there is nothing to report on yet, it waits. Raises
    ReportError where the page cannot be written, or would replace a store."""
    typer.echo(f"Writing {output} every {every:g} s; Ctrl-C ends that.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            began = time.monotonic()
            with contextlib.suppress(NothingYet):
                if all(_is_there(store) for store in tuple(stores) or (None,)):
                    write_html(reported(stores, kernel), output, stores, every)
            time.sleep(max(0.0, began + every - time.monotonic()))


def _is_there(named: str | None) -> bool:
    """Whether there is a store or a campaign of this name, be it empty."""
    place = store_at(named)
    return isinstance(place, Server) or place.exists() or is_campaign(place.parent)


def write_html(made: Made, output: Path, sources: Sequence[str], every: float = 0.0) -> None:
    """Writes the page to `output`, whole or not at all. A page that is written every `every` seconds looks for the next one.
    Raises ReportError where it cannot be, or would replace its source."""
    places = [store_at(store) for store in sources] or [store_at(None)] if isinstance(made, Report) else list(map(Path, sources))
    held = [place for place in places if not isinstance(place, Server)]
    if any(output.exists() and output.samefile(path) for path in held):
        raise ReportError(f"-o {output} is what the report is on, and must not be replaced by it; name another file.")
    text = _html(made, every)
    try:
        files.write_text(output, text)
    except OSError as error:
        raise _unwritten(output, error) from None


def _html(made: Made, every: float) -> str:
    from polytile.report import html

    if isinstance(made, Report):
        return html.page(made, every)
    return html.call_page(made) if isinstance(made, call.CallReport) else html.package_page(made)


def write_csv(made: Made, folder: Path) -> list[Path]:
    """Writes each table to its own file in the folder, which is created if its parent exists. Raises ReportError otherwise."""
    written = []
    try:
        folder.mkdir(exist_ok=True)
        for name, table in tables_of(made):
            written.append(folder / f"{name}.csv")
            files.write_text(written[-1], table.csv())
    except OSError as error:
        raise _unwritten(folder, error) from None
    return written


def _unwritten(output: Path, error: OSError) -> ReportError:
    if isinstance(error, FileNotFoundError):
        return ReportError(f"-o {output} cannot be written: there is no folder {output.parent}; make it, or name another.")
    return ReportError(f"-o {output} cannot be written: {error.strerror or error}.")
