"""A report as the JSON inside its HTML: lists instead of objects, and tables of recurring values, so that 20 000 rows fit.

    panel   [name, digest, family, dtypes, layouts, number of its place from 1, names of sizes, cells, curves, roof]
    cell    [sizes, chosen, place of its certainty, entries, names of its rivals, work]
    work    [operations or null, bytes] of a call, or null
    roof    [operations a second or null, bytes a second or null]
    entry   [identity, µs, ± %, times measured, outcome, predicted µs, error, seconds to compile, registers, spilled bytes,
             shared bytes, times measured live, message]; unknown values are null, and omitted at the end
    span    [number of its lane, seconds from the first span's beginning, seconds, measurements, kernels, sizes, text,
             [panel, cell] if it is one size, when it began as text]
    curve   [candidate, cells with any time, geometric mean, p95, [slowdown, cell] of the worst, all slowdowns, least first]

`report.js` reads it in the same order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from typing import Any

from polytile.problem import Outcome
from polytile.report.cells import Cell, Certainty, Entry, Panel
from polytile.report.compare import Change
from polytile.report.contents import DIGITS, Report
from polytile.report.pages import about, environments, interval, moment
from polytile.report.rates import Roof
from polytile.report.slowdown import CHOSEN, Curve
from polytile.report.timeline import Span
from polytile.runtime import regime

WORST = 5
"""Number of cells that a curve names: those with its largest slowdowns."""

DETAIL = 200
"""Maximum number of characters of a message on the page; `--text` and `--csv` have all of them."""

KERNEL, SIZES = "{kernel}", "{sizes}"
"""Placeholders in a command for a kernel's digest and for sizes."""


class Index:
    """Numbers values in order of their first occurrence."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self.places.setdefault(value, len(self.places))

    @property
    def values(self) -> list[Any]:
        return list(self.places)


class Payload:
    """The data that a page draws for one report. `values` is all of it, as JSON values."""

    def __init__(self, report: Report) -> None:
        self._names, self._configs, self._origins, self._who = Index(), Index(), Index(), Index()
        self._outcomes, self._report = Index(), report
        self._outcomes(Outcome.OK.value)
        parts = zip(report.panels, report.curves, report.roofs, strict=True)
        panels = [self._panel(panel, curves, roof) for panel, curves, roof in parts]
        compared = report.comparison
        sizes = {size for panel in report.panels for cell in panel.cells for _, size in cell.sizes}
        self.values = {
            "panels": panels,
            "changes": [self._change(change) for change in compared.changes] if compared is not None else None,
            "times": self._times(),
            "names": self._names.values,
            "configs": self._configs.values,
            "origins": self._origins.values,
            "who": self._who.values,
            "places": [[place.device, said] for place, said in zip(report.overview.places, environments(report), strict=True)],
            "outcomes": self._outcomes.values,
            "certainties": [certainty.value for certainty in Certainty],
            "regimes": {size: _regime(size) for size in sorted(sizes)},
            "why": report.source.why(KERNEL, ((SIZES, 0),)).replace(f"{SIZES}=0", SIZES),
            "show": report.source.show(KERNEL),
            "digits": DIGITS if report.source.exported else None,
        }

    def _panel(self, panel: Panel, curves: tuple[Curve, ...], roof: Roof) -> list[Any]:
        return [
            panel.name, panel.digest, panel.family, " ".join(panel.dtypes), " ".join(panel.layouts),
            self._report.place(panel), panel.size_names,
            [self._cell(cell) for cell in panel.cells], [self._curve(curve) for curve in curves],
            [_short(roof.operations), _short(roof.bytes)],
        ]  # fmt: skip

    def _times(self) -> list[Any]:
        """What a lane is, the lanes' names, and the spans."""
        line, lanes = self._report.timeline, Index()
        first = min((span.began for span in line.spans), default=0.0)
        spans = [self._span(span, lanes(span.lane), first) for span in line.spans]
        return [line.lanes, lanes.values, spans]

    def _span(self, span: Span, lane: int, first: float) -> list[Any]:
        kernels, text = len({panel for panel, _ in span.spots}), about(self._report, span)
        spot = list(next(iter(span.spots))) if len(span.spots) == 1 else None
        when = round(span.began - first, 2), round(span.seconds, 2)
        return [lane, *when, span.measurements, kernels, len(span.spots), text, spot, moment(span.began)]

    def _cell(self, cell: Cell) -> list[Any]:
        sizes = [size for _, size in cell.sizes]
        certainty = list(Certainty).index(cell.certainty)
        chosen = -1 if cell.chosen is None else cell.chosen
        work = None if cell.work is None else [_short(cell.work.operations), _short(cell.work.bytes)]
        entries = [self._entry(entry) for entry in cell.entries]
        return [sizes, chosen, certainty, entries, list(map(self._names, cell.rivals)), work]

    def _entry(self, entry: Entry) -> list[Any]:
        who = self._who((self._names(entry.candidate), self._configs(entry.config), self._origins(entry.origin), entry.source))
        width = interval(entry)
        taken = entry.resources
        values = [
            who, _micros(entry.seconds), None if width is None else _short(100 * width), entry.measured,
            self._outcomes(entry.score.outcome.value), _micros(entry.predicted), _short(entry.max_error),
            _short(entry.compile_seconds), taken.registers, taken.spilled_bytes, taken.shared_bytes, entry.live or None,
            entry.detail[:DETAIL] or None,
        ]  # fmt: skip
        while values[-1] is None:
            values.pop()
        return values

    def _curve(self, curve: Curve) -> list[Any]:
        name = -1 if curve.candidate == CHOSEN else self._names(curve.candidate)
        worst = [[_short(slowdown), place] for slowdown, place in curve.points[: -1 - WORST : -1]]
        points = [_short(slowdown) for slowdown, _ in curve.points]
        return [name, curve.of, _short(curve.geomean), _short(curve.p95), worst, points]

    def _change(self, change: Change) -> list[Any]:
        band = _short(100 * change.band)
        return [
            change.panel, change.cell, self._names(change.before.candidate), _micros(change.before.seconds),
            self._names(change.after.candidate), _micros(change.after.seconds), _short(change.ratio), band, change.verdict,
            "; ".join(change.differs),
        ]  # fmt: skip


NOTHING: dict[str, Any] = {"panels": [], "changes": None, "certainties": [], "places": [], "every": 0}
"""The data of a page without kernels."""


def as_json(values: dict[str, Any]) -> str:
    """The JSON, escaped so that no browser mistakes any of it for the end of its element."""
    written = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _short(value: float | None) -> float | None:
    """Four digits; None for values that JSON cannot represent."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def _micros(seconds: float | None) -> float | None:
    return None if seconds is None else _short(seconds * 1e6)


def _regime(size: int) -> str:
    """A text of the sizes that share a regime with this one."""
    low, high = regime.bounds(regime.bucket(size)) if size >= 0 else (size, size)
    if low == high:
        return str(size)
    return f"{low}..{high}, 16 {'divides' if size % 16 == 0 else 'does not divide'} it"
