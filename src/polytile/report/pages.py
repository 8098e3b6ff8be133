"""A report as tables: what `--text` prints and `--csv` writes, and the first page of the HTML."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Iterator

from polytile.problem import sizes_text
from polytile.report.cells import Cell, Entry, Panel
from polytile.report.compare import FASTER, NOISE, SLOWER, Comparison
from polytile.report.contents import Report
from polytile.report.predictions import calibrations, first_choices
from polytile.report.rates import rate_of
from polytile.report.slowdown import CHOSEN, single
from polytile.report.tables import Column, Table, count, error, micros, ratio
from polytile.report.targets import targets
from polytile.report.timeline import Span
from polytile.store.records import Environment

PLACE = Column("place", count)
"""The number of a device and environment in the table of places."""

WORST = 10
"""Number of rows of the table of the largest slowdowns."""

MEANINGS = (
    ("µs", "Microseconds of a call: the 15th percentile of a race's samples; of several races, the lower median; of five"
     " or more, the mean of their middle half."),
    ("±", "Two standard errors of that time, in percent: about 95 % of repeated races lie within."),
    ("chosen", "What a program with this store and these options runs, by the rules of `polytile why`: the fastest, or, of those "
     "within noise of it, the first by prediction; the library's where nothing beats it."),
    ("× fastest", "A time over the fastest candidate's at the same size. 1.00 is the best that was measured."),
    ("clear", "No other candidate is within noise of the fastest, and another race would hardly choose differently."),
    ("within noise", "Others count as equal to the fastest: within 2 % on a processor, 1 % on a GPU, or within both times' "
     "standard errors, up to 5 %."),
    ("measured under load", "The process waited for a core for over a tenth of the race. Programs measure such a choice again."),
    ("in doubt", "A candidate that prediction prefers is slower by about as much as the noise: another race may choose it."),
    ("the only one that ran", "Nothing else has a time at this size, so there is nothing to compare with."),
    ("one for all sizes", "The candidate with a time at every size that has the least geometric mean of × fastest; a dash where "
     "no candidate was measured at every size, or only one size was."),
    ("predicted / measured", "What a candidate was expected to take over what it took: 1.00 is right, 0.50 promised twice the "
     "speed."),
    ("of the roof", "A rate over the lesser of two: the highest rate of operations on record for the device and these types, and "
     "the highest rate of bytes on record times the operations per byte. For kernels without a count of operations: of bytes."),
    ("faster, slower", "In a comparison: the time after differs from the time before by more than the noise band or than two "
     "standard errors of both."),
)  # fmt: skip
"""Explanations of the numbers, by their headings."""


def percent(value: float) -> str:
    """A share as a whole percentage: "12 %"."""
    return f"{100 * value:.0f} %"


def tenths(value: float) -> str:
    """A share in percent, with one decimal."""
    return f"{100 * value:.1f}"


def thousandths(value: float) -> str:
    """A number with up to three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def one_digit(value: float) -> str:
    """A number with one decimal."""
    return f"{value:.1f}"


def tables(report: Report) -> Iterator[tuple[str, Table]]:
    """Every table of a report, with the name of its file."""
    yield "summary", summary(report)
    yield "targets", aims(report)
    yield "devices", devices(report)
    yield "sources", sources(report)
    if report.comparison is not None:
        yield "changes", changes(report, report.comparison)
    yield "times", times(report)
    yield "kernels", kernels(report)
    yield "worst", worst(report)
    yield "slowdown", slowdowns(report)
    yield "predictions", predictions(report)
    yield "rates", rates(report)
    yield "sizes", sizes(report)
    yield "candidates", candidates(report)
    yield "meanings", Table.from_rows("What the numbers mean", ["word", "meaning"], MEANINGS)


def summary(report: Report) -> Table:
    """The first table of a report on a store."""
    seen = report.overview
    cells = sum(number for _, number in seen.certainties)
    compared = report.comparison
    rows = [
        ("kernels", count(len({panel.digest for panel in report.panels}))),
        ("sizes", f"{count(cells)}: " + ", ".join(f"{count(number)} {word.value}" for word, number in seen.certainties)),
        ("measurements", f"{count(seen.measurements)}, {count(seen.live)} of them timed a program's own calls"),
        ("outcomes", ", ".join(f"{count(number)} {word}" for word, number in seen.outcomes)),
        ("timed samples", f"{seen.timing:.1f} s in all; each is the mean of several calls, so that measuring took longer"),
        ("compiling", "not recorded" if seen.compiling is None else f"{seen.compiling:.1f} s, each source once"),
    ]
    if report.state:
        rows.insert(0, ("campaign", report.state))
    if compared is not None:
        rows += [("compared", _compared(compared))]
    rows += [("made", f"{date(report.made)} by {report.command}")]
    before = f"{report.before.name} → " if report.before is not None else ""
    return Table.from_rows(f"Report on {before}{report.source.name}", ["subject", "found"], rows)


def aims(report: Report) -> Table:
    """The targets that these measurements can speak about, and which of them are met."""
    judged = targets(report.panels, report.comparison)
    rows = [(each.what, each.most, each.found, "met" if each.met else "missed") for each in judged]
    return Table.from_rows("Targets", ["target", Column("at most", thousandths), Column("found", thousandths), "verdict"], rows)


def _compared(found: Comparison) -> str:
    if found.geomean is None:
        return "no size has a time in both"
    counts = ", ".join(f"{count(found.count(verdict))} {verdict}" for verdict in (SLOWER, FASTER, NOISE))
    return (
        f"{count(len(found.changes))} sizes in both, time × {found.geomean:.3f} by geometric mean: {counts}; "
        f"{count(found.only_before)} only before, {count(found.only_after)} only after"
    )


def sizes_of(cell: Cell) -> str:
    """A cell's sizes, in the format of `polytile why`."""
    return sizes_text(cell.sizes, " ")


def date(seconds: float) -> str:
    """Seconds since 1970 as local date and minute."""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def moment(seconds: float) -> str:
    """Seconds since 1970 as local date and second."""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


FOR_MACHINES = {"caches", "flags", "method"}
"""Facts of little interest to people: shown only if places differ in them."""


def facts(own: Environment, others: Iterable[Environment]) -> str:
    """A text of facts; `others` are those of all places."""
    values: dict[str, set[str]] = {}
    for name, value in (fact for each in others for fact in each):
        values.setdefault(name, set()).add(value)
    return ", ".join(f"{name} {value}" for name, value in sorted(own) if name not in FOR_MACHINES or len(values[name]) > 1)


def environments(report: Report) -> list[str]:
    """A text of the environment of each place."""
    everywhere = [place.environment for place in report.overview.places]
    return [facts(environment, everywhere) for environment in everywhere]


def devices(report: Report) -> Table:
    """Where measurements were taken, with which versions."""
    numbers = [Column(name, count) for name in ("kernels", "sizes", "measurements")]
    places = report.overview.places
    rows = [
        (number, place.device, facts(place.facts, [each.facts for each in places]), environment, place.kernels, place.problems,
         place.measurements, date(place.oldest), date(place.newest))
        for number, (place, environment) in enumerate(zip(places, environments(report), strict=True), 1)
    ]  # fmt: skip
    columns: list[Column | str] = [PLACE, "device", "is", "environment", *numbers, "oldest", "newest"]
    return Table.from_rows("Places: devices and versions", columns, rows)


def times(report: Report) -> Table:
    """When what was measured: a row for each span of the time line."""
    rows = [
        (span.lane, moment(span.began), span.seconds, len({panel for panel, _ in span.spots}), len(span.spots), span.measurements,
         about(report, span))
        for span in report.timeline.spans
    ]  # fmt: skip
    numbers = [Column("s", one_digit), *(Column(name, count) for name in ("kernels", "sizes", "measurements"))]
    columns: list[Column | str] = [report.timeline.lanes, "began", *numbers, "what"]
    return Table.from_rows("When it was measured", columns, rows)


def about(report: Report, span: Span) -> str:
    """What was measured in a span, if it was one size, and what else is to say of it."""
    sizes = [f"{report.panels[panel].name} {sizes_of(report.panels[panel].cells[cell])}" for panel, cell in span.spots]
    return "; ".join((*(sizes if len(sizes) == 1 else ()), *span.words))


def sources(report: Report) -> Table:
    """Whose candidates win."""
    total = sum(each.chosen for each in report.overview.wins)
    numbers = [Column("candidates tried", count), Column("with a time", count), Column("chosen", count), Column("share", percent)]
    rows = [(each.origin or "not recorded", each.tried, each.timed, each.chosen, each.chosen / total if total else None)
            for each in report.overview.wins]  # fmt: skip
    return Table.from_rows("Sources of candidates, over all sizes", ["source", *numbers], rows)


def changes(report: Report, found: Comparison) -> Table:
    """Each size in both stores, the largest slowdown first."""
    rows = []
    for change in found.changes:
        panel = report.panels[change.panel]
        rows.append((
            panel.name, report.place(panel), sizes_of(panel.cells[change.cell]), change.before.candidate, change.before.seconds,
            change.after.candidate, change.after.seconds, change.ratio, change.band, change.verdict, "; ".join(change.differs),
        ))  # fmt: skip
    columns: list[Column | str] = [
        "kernel", PLACE, "sizes", "before", Column("µs before", micros), "after", Column("µs after", micros), Column("×", ratio),
        Column("noise %", tenths), "verdict", "differs in",
    ]  # fmt: skip
    return Table.from_rows("What changed", columns, rows)


def kernels(report: Report) -> Table:
    """A row for each kernel on each device in each environment."""
    rows = []
    for panel, curves in zip(report.panels, report.curves, strict=True):
        one = single(curves)
        rows.append((
            panel.name, panel.digest, panel.family, " ".join(panel.dtypes), " ".join(panel.layouts), report.place(panel),
            " ".join(panel.varying), len(panel.cells), len(panel.candidates),
            one.candidate if one else None, one.geomean if one else None, one.worst[0] if one else None,
        ))  # fmt: skip
    columns: list[Column | str] = [
        "kernel", "digest", "family", "types", "layouts", PLACE, "sizes that vary", Column("sizes", count),
        Column("candidates", count), "one for all sizes", Column("× fastest", ratio), Column("at worst", ratio),
    ]  # fmt: skip
    return Table.from_rows("Kernels", columns, rows)


def worst(report: Report) -> Table:
    """Where the best single candidate of a kernel costs most compared with choosing for each size."""
    slowest = []
    for panel, own in zip(report.panels, report.curves, strict=True):
        one = single(own)
        slowest += [(slowdown, panel, place, one.candidate) for slowdown, place in one.points if slowdown > 1] if one else []
    slowest.sort(key=lambda row: -row[0])
    rows = [
        (panel.name, report.place(panel), sizes_of(panel.cells[place]), candidate, slowdown, _chosen(panel.cells[place]))
        for slowdown, panel, place, candidate in slowest[:WORST]
    ]
    columns: list[Column | str] = ["kernel", PLACE, "sizes", "one for all sizes", Column("× fastest", ratio), "chosen there"]
    return Table.from_rows("Where one candidate for all sizes costs most", columns, rows)


def _chosen(cell: Cell) -> str | None:
    return cell.winner.candidate if cell.winner is not None else None


def slowdowns(report: Report) -> Table:
    """Each candidate's times relative to the fastest."""
    rows = []
    for panel, curves in zip(report.panels, report.curves, strict=True):
        for curve in curves:
            slowdown, place = curve.worst
            rows.append((
                panel.name, report.place(panel), curve.candidate, len(curve.points), curve.of, curve.geomean, curve.p95, slowdown,
                sizes_of(panel.cells[place]) if slowdown > 1 else None,
            ))  # fmt: skip
    columns: list[Column | str] = [
        "kernel", PLACE, "candidate", Column("sizes", count), Column("of", count), Column("× fastest", ratio),
        Column("p95", ratio), Column("worst", ratio), "worst at",
    ]  # fmt: skip
    notes = [f"{CHOSEN}: what runs at each size. × fastest is the geometric mean over the sizes at which a candidate has a time."]
    return Table.from_rows("Slowdown over the fastest", columns, rows, notes)


def predictions(report: Report) -> Table:
    """How near predictions came, by kernel and source; and what the best predicted candidate loses to the fastest."""
    rows = []
    for panel in report.panels:
        lost = first_choices(panel)
        for each in calibrations(panel):
            rows.append((
                panel.name, report.place(panel), each.origin or "not recorded", len(each.points), each.geomean,
                each.quantile(0.05), each.quantile(0.95), statistics.geometric_mean(lost) if lost else None,
                max(lost, default=None),
            ))  # fmt: skip
    columns: list[Column | str] = [
        "kernel", PLACE, "source", Column("times", count), Column("predicted / measured", ratio), Column("p5", ratio),
        Column("p95", ratio), Column("best predicted, × fastest", ratio), Column("at worst", ratio),
    ]  # fmt: skip
    notes = ["The last two columns are of all sources of a kernel: the candidate of the least prediction, at the sizes at which "
             "several were measured."]  # fmt: skip
    return Table.from_rows("Predictions", columns, rows, notes)


def rates(report: Report) -> Table:
    """What runs at each size, as rates, beside the best that was measured on the device."""
    rows = []
    for panel, roof in zip(report.panels, report.roofs, strict=True):
        for cell in panel.cells:
            if (rate := rate_of(cell)) is not None:
                rows.append((
                    panel.name, report.place(panel), sizes_of(cell), _chosen(cell), rate.intensity,
                    None if rate.operations is None else rate.operations / 1e9, rate.bytes / 1e9, roof.share(rate),
                ))  # fmt: skip
    columns: list[Column | str] = [
        "kernel", PLACE, "sizes", "chosen", Column("operations per byte", one_digit), Column("Gop/s", one_digit),
        Column("GB/s", one_digit), Column("of the roof", percent),
    ]  # fmt: skip
    notes = ["The roof is the highest rate on record for the device: of operations with the same types, and of bytes."]
    return Table.from_rows("Rates", columns, rows, notes)


def sizes(report: Report) -> Table:
    """Each kernel at each size: what runs, how certain that is, and the command that shows it."""
    rows = [_size(report, panel, cell) for panel in report.panels for cell in panel.cells]
    columns: list[Column | str] = [
        "kernel", PLACE, "sizes", "chosen", Column("µs", micros), Column("± %", tenths), "source", "certainty", "equal to it",
        Column("candidates", count), "command",
    ]  # fmt: skip
    return Table.from_rows("Sizes", columns, rows)


def _size(report: Report, panel: Panel, cell: Cell) -> tuple[object, ...]:
    winner = cell.winner
    runs = (winner.candidate, winner.seconds, interval(winner), winner.origin) if winner is not None else (None,) * 4
    told = cell.certainty.value, ", ".join(cell.rivals), len(cell.entries), report.source.why(panel.digest, cell.sizes)
    return panel.name, report.place(panel), sizes_of(cell), *runs, *told


def interval(entry: Entry) -> float | None:
    """Two standard errors of the time, relative; None for a single sample."""
    return 2 * entry.score.noise if entry.seconds is not None and entry.score.noise < float("inf") else None


def candidates(report: Report) -> Table:
    """Every candidate at every size, as a table."""
    rows = [
        (panel.name, report.place(panel), sizes_of(cell), *_candidate(cell, place))
        for panel in report.panels for cell in panel.cells for place in range(len(cell.entries))
    ]  # fmt: skip
    columns: list[Column | str] = [
        "kernel", PLACE, "sizes", "candidate", "config", "source", "outcome", Column("µs", micros), Column("± %", tenths),
        Column("× fastest", ratio), "chosen", Column("predicted µs", micros), Column("measured", count), Column("live", count),
        Column("error", error), Column("registers", count), Column("spilled bytes", count), Column("shared bytes", count),
        Column("compile s", ratio), "code", "detail",
    ]  # fmt: skip
    return Table.from_rows("Candidates", columns, rows)


def _candidate(cell: Cell, place: int) -> tuple[object, ...]:
    entry = cell.entries[place]
    slowdown = entry.seconds / cell.best if entry.seconds is not None and cell.best is not None else None
    taken = entry.resources
    return (
        entry.candidate, entry.config, entry.origin, entry.score.outcome.value, entry.seconds, interval(entry), slowdown,
        "yes" if place == cell.chosen else "", entry.predicted, entry.measured, entry.live, entry.max_error, taken.registers,
        taken.spilled_bytes, taken.shared_bytes, entry.compile_seconds, entry.source, entry.detail,
    )  # fmt: skip
