"""Progress for people to watch: one line on a terminal while something is waited for, or one line per problem."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)  # fmt: skip
from rich.text import Text

from polytile.counters import STAGES
from polytile.problem import time_text
from polytile.tuning.progress import Step, unwatch, watch
from polytile.waits import Wait


def bars(console: Console) -> Progress:
    """Bars of a command: what each is of, how far it is, since when, and how long it will take."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console)


class Bar:
    """One line on a terminal: what is waited for and since when; during measurement, which problem and how far. It disappears
    when closed."""

    def __init__(self, wait: Wait, console: Console | None = None) -> None:
        self._wait = wait
        self._step: Step | None = None
        # The program's own output appears above the line, unless it is redirected.
        whole = console is None and sys.stdout is not None and sys.stdout.isatty()
        self._bar = Progress(
            SpinnerColumn(), _Words(self.doing), BarColumn(20), _Count(), _Words(self.waited),
            console=console or Console(stderr=True), transient=True, redirect_stdout=whole, redirect_stderr=whole,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)
        self._bar.start()
        watch(self)

    def __call__(self, step: Step) -> None:
        """Show the progress of a problem."""
        self._step = None if step.finished else step
        completed, total = (0, None) if step.finished else (step.checked, step.candidates)
        self._bar.reset(self._task, completed=completed, total=total)

    def doing(self) -> str:
        """The text before the bar."""
        if self._step is not None:
            return f"polytile: {described(self._step)}"
        *outer, inner = tuple(self._wait.doing)
        tasks = [what for what in outer if what not in STAGES]
        return f"polytile: {', '.join((*tasks[-1:], inner))}"

    def waited(self) -> str:
        """The text after the bar."""
        return f"{time.monotonic() - self._wait.since:.0f} s"

    def close(self) -> None:
        """Remove the line from the terminal."""
        unwatch(self)
        self._bar.stop()


class _Words(ProgressColumn):
    def __init__(self, words: Callable[[], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(self._words(), overflow="ellipsis", no_wrap=True)


class _Count(ProgressColumn):
    """Completed and total count, once the total is known."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}")


def described(step: Step) -> str:
    """The text beside a bar: the problem, the current activity, the best so far, the time left."""
    best = f", best {step.best} {time_text(step.seconds)}" if step.best else ""
    left = f", {max(0.0, step.left):.0f} s left" if step.left < math.inf else ""
    return f"{step.problem}: {step.doing}{best}{left}"


class Lines:
    """A line for each problem that was measured."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, step: Step) -> None:
        if step.finished:
            self._console.print(Text(f"polytile: {step}"), soft_wrap=True)


_shown: Lines | None = None


def print_lines_from_now_on() -> None:
    """Print a line on stderr for each problem that this process measures. Calling it again has no effect."""
    global _shown
    if _shown is None:
        _shown = Lines(Console(stderr=True))
        watch(_shown)
