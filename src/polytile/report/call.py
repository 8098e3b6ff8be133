"""The time line of a call on the host and on the device: the file that `Profile.save` writes, and a report on it.

The file is JSON, times are seconds:

    polytile_profile  FORMAT
    name              the function
    wall              of a call without a profiler
    environment       the machine and the versions, as text
    lines             [name, generated, calls, host, device] of each kernel and operator
    views             [name, [[lane, name, of, began, seconds, graph] of each step]]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from polytile import files
from polytile.errors import ReportError
from polytile.report.tables import Column, Table, micros

FORMAT = 1
MARK = "polytile_profile"

CALL, HOST = "call", "host"
"""The lanes of the function as a whole, and of the thread that calls it. Others are further threads, and a device's streams."""

APART, AS_IT_RUNS = "kernel by kernel", "as it runs"
"""Names of views. Under a profiler that watches the host, kernels are launched one by one, and each has its name on both sides.
Under one that only watches the device, CUDA graphs launch what they launch in the program."""

MEANINGS = (
    ("kernel by kernel", "The host's steps are kernels and ATen operators; what a step has launched has its colour and letter. "
     "The profiler lengthens the host's steps, and no CUDA graph is used."),
    ("as it runs", "The device's work in a call that only the driver watches, so that CUDA graphs launch what they launch in the "
     "program. The host's steps are launches, where the driver tells of them."),
    ("call", "The function from its call until it returns. Where no step runs, guards and Python do."),
    ("the call shown", "Each view shows the call whose length is the median of ten."),
)  # fmt: skip
"""Explanations of the terms."""


@dataclass(frozen=True)
class Line:
    """A kernel, or an ATen operator that a program calls.

    name       the kernel's name and the operators it came from, or ATen's name of the operator
    generated  whether it is a kernel of polytile's, which may run a library's function all the same
    calls      how often a call of the function runs it
    host       seconds in one call of the function until it returns; on a CPU its work is among them
    device     seconds that a GPU works for it in one call of the function
    """

    name: str
    generated: bool
    calls: float
    host: float
    device: float


@dataclass(frozen=True)
class Step:
    """What ran in a lane, `began` seconds after the call's beginning and for `seconds`.

    name   a kernel with its operators, an ATen operator or a launch; on a device, the compiled function
    of     the name of the host's step that launched it; "" if there is none
    graph  whether a CUDA graph launched it
    """

    lane: str
    name: str
    of: str
    began: float
    seconds: float
    graph: bool = False


@dataclass(frozen=True)
class View:
    """The steps of one call, in order of lanes and time."""

    name: str
    steps: tuple[Step, ...]

    @property
    def lanes(self) -> list[str]:
        return list(dict.fromkeys(step.lane for step in self.steps))

    @property
    def seconds(self) -> float:
        """From the call's beginning to the end of its last step."""
        return max((step.began + step.seconds for step in self.steps), default=0.0)

    def busy(self, lane: str) -> float:
        """Seconds in which at least one step of a lane runs."""
        total = end = 0.0
        for step in sorted((step for step in self.steps if step.lane == lane), key=lambda step: step.began):
            until = step.began + step.seconds
            total += max(0.0, until - max(step.began, end))
            end = max(end, until)
        return total


@dataclass(frozen=True)
class CallReport:
    """What a file of `Profile.save` says. `file` is its name, `wall` seconds of a call without a profiler."""

    file: str
    name: str
    wall: float
    environment: Mapping[str, str]
    lines: tuple[Line, ...]
    views: tuple[View, ...]

    @property
    def title(self) -> str:
        return f"Report on a call of {self.name}"


def save(path: Path, call: CallReport) -> None:
    """Writes the file, whole or not at all. Raises OSError."""
    views = [[view.name, [astuple(step) for step in view.steps]] for view in call.views]
    lines = [astuple(line) for line in call.lines]
    parts = {"name": call.name, "wall": call.wall, "environment": dict(call.environment), "lines": lines, "views": views}
    files.write_text(path, json.dumps({MARK: FORMAT, **parts}, indent=1) + "\n")


def is_profile(path: Path) -> bool:
    """Whether this is a file that `Profile.save` wrote."""
    try:
        with path.open("rb") as file:
            return f'"{MARK}"'.encode() in file.read(64)
    except OSError:
        return False


def read(path: Path) -> CallReport:
    """Raises ReportError if the file is damaged, or of another format."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content[MARK] != FORMAT:
            raise ReportError(
                f"the profile {path} has format {content[MARK]}, and this polytile reads format {FORMAT}. Save it again with "
                "this version."
            )
        lines = tuple(Line(*line) for line in content["lines"])
        views = tuple(View(name, tuple(Step(*step) for step in steps)) for name, steps in content["views"])
        return CallReport(str(path), str(content["name"]), float(content["wall"]), content["environment"], lines, views)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"the profile {path} cannot be read ({type(error).__name__}: {error}); save it again.") from None


def tables(call: CallReport) -> Iterator[tuple[str, Table]]:
    """Every table, with the name of its file."""
    yield "summary", summary(call)
    yield "lines", lines_table("What runs", call.lines)
    yield "steps", steps(call)
    yield "meanings", Table.from_rows("What the numbers mean", ["word", "meaning"], MEANINGS)


def summary(call: CallReport) -> Table:
    """The first table of a report on one call."""
    rows: list[tuple[str, str]] = [("a call without a profiler", f"{micros(call.wall)} µs")]
    for view in call.views:
        rows.append((view.name, f"{micros(view.seconds)} µs from the call to the last step's end"))
        rows += [(f"{view.name}, {lane}", _lane(view, lane)) for lane in view.lanes]
    rows += [(name, value) for name, value in call.environment.items() if name in ("processor", "accelerator", "torch", "date")]
    return Table.from_rows(call.title, ["subject", Column("found", align="left")], [*rows, ("made of", call.file)])


def _lane(view: View, lane: str) -> str:
    own = [step for step in view.steps if step.lane == lane]
    graphs = sum(step.graph for step in own)
    said = f", {graphs} of them launched by CUDA graphs" if graphs else ""
    return f"{len(own)} {'step' if len(own) == 1 else 'steps'}{said}, busy for {micros(view.busy(lane))} µs"


def lines_table(title: str, lines: Sequence[Line], notes: Sequence[str] = ()) -> Table:
    """Kernels and operators with their times, and the sum."""
    on_gpu = any(line.device for line in lines)
    columns = [Column("what runs", align="left"), Column("calls", "{:g}".format), Column("host, µs", micros)]
    columns += [Column("device, µs", micros)] if on_gpu else []
    rows = [(line.name, line.calls, line.host, line.device) for line in lines]
    totals = [sum(getattr(line, name) for line in lines) for name in ("calls", "host", "device")]
    rows.append(("all of these", *totals))
    return Table.from_rows(title, columns, [row[: len(columns)] for row in rows], notes)


def steps(call: CallReport) -> Table:
    """Each step of each view."""
    rows = [
        (view.name, step.lane, step.name, step.of or None, step.began, step.seconds, "graph" if step.graph else "")
        for view in call.views
        for step in view.steps
    ]
    words = [Column(name, align="left") for name in ("view", "lane", "step", "launched by")]
    return Table.from_rows("Steps", [*words, Column("began, µs", micros), Column("µs", micros), Column("by", align="left")], rows)
