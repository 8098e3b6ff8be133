"""The drawing of a call's steps: a row for each lane, a bar for each step, as numbers for the page's template."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polytile.report.call import CALL, Step, View
from polytile.report.tables import micros

COLOURS = 8
"""Number of colours of a page; further names have the first ones again, with letters of their own."""

LEFT, RIGHT, ROW, TOP, BELOW = 140, 20, 24, 6, 24
WIDTH, STEP_WIDTH, WIDEST = 900, 12, 20_000
"""Pixels of a drawing, at least and at most, and for each step of the lane that has the most."""

BAR, LETTERED = ROW - 5, 14
"""Pixels of a bar upwards, and across of the narrowest one that has a letter."""


@dataclass(frozen=True)
class Bar:
    """A step, in pixels. `text` says all of it, `letter` is "" where there is no room."""

    x: float
    y: float
    width: float
    colour: int
    letter: str
    text: str


@dataclass(frozen=True)
class Group:
    """A step of the host and what it launched, which have one colour and letter, and the seconds of all of them."""

    name: str
    colour: int
    letter: str
    seconds: str


class Chart:
    """The drawing of a view."""

    def __init__(self, view: View) -> None:
        self.view, self.label = view, f"What ran when in a call, {view.name}"
        self.lanes = [(lane, TOP + number * ROW + 16) for number, lane in enumerate(view.lanes)]
        self.bottom = TOP + len(self.lanes) * ROW
        self.height = self.bottom + BELOW
        most = max(collections.Counter(step.lane for step in view.steps).values())
        self.width = min(max(WIDTH, most * STEP_WIDTH), WIDEST)
        names = dict.fromkeys(_group(step) for step in view.steps if step.lane != CALL)
        self._place = {name: place for place, name in enumerate(names)}

    def ticks(self) -> Iterator[tuple[float, str, str]]:
        """Where a line of the time's axis is, what it says, and how that is anchored."""
        for quarter in range(5):
            seconds = self.view.seconds * quarter / 4
            yield self._across(seconds), f"{micros(seconds)} µs", "start" if not quarter else "middle" if quarter < 4 else "end"

    def bars(self) -> Iterator[Bar]:
        rows = {lane: TOP + number * ROW + 2 for number, lane in enumerate(self.view.lanes)}
        for step in self.view.steps:
            left, right = self._across(step.began), self._across(step.began + step.seconds)
            colour, letter = self._look(_group(step))
            width = max(2.0, right - left)
            yield Bar(left, rows[step.lane], round(width, 1), colour, letter if width >= LETTERED else "", _text(step))

    def groups(self) -> list[Group]:
        made = []
        for name in self._place:
            seconds = sum(step.seconds for step in self.view.steps if _group(step) == name and step.lane != CALL)
            made.append(Group(name, *self._look(name), f"{micros(seconds)} µs"))
        return made

    def rows(self) -> list[list[Any]]:
        """The steps as a list of the page; times are µs."""
        made = []
        for step in self.view.steps:
            times = round(step.began * 1e6, 2), round(step.seconds * 1e6, 2)
            made.append([step.lane, step.name, *times, step.of, "graph" if step.graph else ""])
        return made

    def _across(self, seconds: float) -> float:
        return round(LEFT + (self.width - LEFT - RIGHT) * seconds / (self.view.seconds or 1.0), 1)

    def _look(self, name: str) -> tuple[int, str]:
        """Colour and letter of a group; the call as a whole has the colour of nothing, and no letter."""
        place = self._place.get(name)
        return (COLOURS, "") if place is None else (place % COLOURS, _letter(place))


HEADS = ("lane", "step", "began, µs", "µs", "launched by", "by")
"""The columns of `Chart.rows`."""


def _group(step: Step) -> str:
    return step.of or step.name


def _letter(place: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def _text(step: Step) -> str:
    launched = (f", launched by {step.of}" if step.of else "") + (", by a CUDA graph" if step.graph else "")
    return f"{step.name}, {step.lane}: {micros(step.seconds)} µs from {micros(step.began)} µs on{launched}"
