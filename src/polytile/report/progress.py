"""Measuring as people like to watch it: a bar on a terminal while a problem is under way, a line for each problem in a log."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from polytile.problem import time_text
from polytile.tuning.progress import Step, watch


class Display:
    """Watches the steps of tuning. `lines` asks for lines on terminals too."""

    def __init__(self, console: Console, lines: bool = False) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._draws = console.is_terminal and not lines

    def __call__(self, step: Step) -> None:
        if self._draws:
            self._draw(step)
        if step.finished:
            self.line(f"polytile: {step}")

    def line(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, step: Step) -> None:
        if step.finished:
            self.close()
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("", total=step.candidates)
            self._bar.start()
        self._bar.update(self._task, description=described(step), completed=step.checked, total=step.candidates)


def described(step: Step) -> str:
    """What a bar says beside itself: the problem, what is being done, the best so far, the time left."""
    best = f", best {step.best} {time_text(step.seconds)}" if step.best else ""
    left = f", {max(0.0, step.left):.0f} s left" if step.left < math.inf else ""
    return f"{step.problem}: {step.doing}{best}{left}"


_shown: Display | None = None


def show_from_now_on(lines: bool = False) -> None:
    """Has everything that this process measures shown on stderr; asking again changes nothing."""
    global _shown
    if _shown is None:
        _shown = Display(Console(stderr=True), lines)
        watch(_shown)
