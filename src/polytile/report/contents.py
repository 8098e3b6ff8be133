"""The contents of a report as data: the printers (pages.py, html.py) add no facts of their own."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polytile.problem import Problem, sizes_text
from polytile.report.cells import Panel, Sizes, panels
from polytile.report.compare import Comparison, compare
from polytile.report.overview import Overview, overview
from polytile.report.rates import Roof, roofs
from polytile.report.slowdown import Curve, curves
from polytile.report.timeline import Sitting, Timeline, of_campaign, of_store
from polytile.store.reading import Record

DIGITS = 8
"""Number of digits of a kernel's digest in its name."""


@dataclass(frozen=True)
class Source:
    """Where measurements came from, as on a command line. `exported`: a file of measurements instead of a store."""

    name: str
    exported: bool = False

    def why(self, kernel: str, sizes: Sizes) -> str:
        """The command that shows a cell's choice again, for a kernel by digest at these sizes."""
        if self.exported:
            return f"polytile replay {self._quoted} --kernel {kernel[:DIGITS]} --choices"
        return f"polytile why {kernel} {sizes_text(sizes, ' ')} --store {self._quoted}"

    def show(self, kernel: str) -> str:
        """The command that lists a kernel's measurements."""
        return self.why(kernel, ()) if self.exported else f"polytile store show {kernel} --store {self._quoted}"

    @property
    def _quoted(self) -> str:
        return shlex.quote(self.name)


@dataclass(frozen=True)
class Report:
    """One store, or, with a comparison, `source` after `before`.

    `curves` holds the curves of each panel. `made` is the time of the report in seconds since 1970, `command` the command that
    made it, `state` how far the campaign is, if it is one.
    """

    source: Source
    overview: Overview
    panels: tuple[Panel, ...]
    curves: tuple[tuple[Curve, ...], ...]
    made: float
    command: str
    timeline: Timeline
    state: str = ""
    before: Source | None = None
    comparison: Comparison | None = None

    @functools.cached_property
    def roofs(self) -> list[Roof]:
        """The highest rates on each panel's device."""
        return roofs(self.panels)

    def place(self, panel: Panel) -> int:
        """The number, from 1, of the device and environment in which the panel was measured."""
        places = [(place.device, place.environment) for place in self.overview.places]
        return 1 + places.index((panel.device, panel.environment))


@dataclass(frozen=True)
class Held:
    """The measurements of one source, oldest first. Of a campaign also how far it is, and what its workers did."""

    source: Source
    records: Sequence[Record]
    state: str = ""
    sittings: Sequence[Sitting] | None = None


def report(held: Held, before: Held | None, name: Callable[[Problem], str], made: float, command: str) -> Report:
    """The report on these measurements, and on the changes since `before`. `name` returns the name of a problem's kernel."""
    shown = panels(held.records, name)
    seen = overview(held.records, shown)
    everything = tuple(map(curves, shown))
    line = _timeline(held, seen, shown)
    source, comparison = None, None
    if before is not None:
        source, comparison = before.source, compare(panels(before.records, name), shown)
    return Report(held.source, seen, shown, everything, made, command, line, held.state, source, comparison)


def _timeline(held: Held, seen: Overview, found: Sequence[Panel]) -> Timeline:
    if held.sittings is not None:
        return of_campaign(held.sittings, found)
    names = {(place.device, place.environment): f"place {number}" for number, place in enumerate(seen.places, 1)}
    return of_store(held.records, found, names)
