"""A table of results: coloured boxes on a terminal, padded Markdown anywhere else.

The Markdown form reads as well in a log as it does rendered in a README, so the same run serves both.
"""

from __future__ import annotations

import csv
import html
import io
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text


def count(value: float) -> str:
    """1234567 → "1 234 567"."""
    return f"{value:,.0f}".replace(",", " ")


def micros(seconds: float) -> str:
    """Seconds as microseconds: three significant digits below 1000, whole numbers with spaced thousands above."""
    value = seconds * 1e6
    if value >= 99.95:
        return count(value)
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def ratio(value: float) -> str:
    """A ratio with two decimals."""
    return f"{value:.2f}"


def error(value: float) -> str:
    """A relative error, as in "1.2e-03"."""
    return f"{value:.1e}"


def text(value: Any) -> str:
    """Any value as text."""
    return str(value)


@dataclass(frozen=True)
class Column:
    """A heading, the format of the column's values, and its alignment. None is written as a dash."""

    heading: str
    write: Callable[[Any], str] = text
    align: Literal["left", "right"] = "right"

    def cell(self, value: Any) -> str:
        if value is None:
            return "–"
        return value if isinstance(value, str) else self.write(value)


@dataclass(frozen=True)
class Table:
    """Rows under columns, with a title above and notes below. Raises ValueError for a row of the wrong length.

    A `folded` table is a detail: in Markdown only its title shows until the reader opens it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = field(default=())
    folded: bool = False

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r} has {len(self.columns)} columns, but its row {number} has {len(row)} values."
                )

    @staticmethod
    def from_rows(
        title: str,
        columns: Sequence[Column | str],
        rows: Iterable[Sequence[Any]],
        notes: Sequence[str] = (),
        folded: bool = False,
    ) -> Table:
        """A table of these rows. A string in `columns` is a left-aligned text column."""
        all_columns = tuple(Column(column, align="left") if isinstance(column, str) else column for column in columns)
        return Table(title, all_columns, tuple(tuple(row) for row in rows), tuple(notes), folded)

    def cells(self) -> list[list[str]]:
        return [[column.cell(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """The table as Markdown, with columns that line up in plain text too."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.cells()]
        headings = [column.heading for column in self.columns]
        widths = [max(3, *(_width(row[i]) for row in [headings, *cells])) for i in range(len(headings))]

        def line(parts: Sequence[str]) -> str:
            padded = (_pad(part, width, c.align) for part, width, c in zip(parts, widths, self.columns, strict=True))
            return "| " + " | ".join(padded) + " |"

        rule = ["-" * (w - 1) + ":" if c.align == "right" else "-" * w for w, c in zip(widths, self.columns, strict=True)]
        opening = f"<details><summary>{html.escape(self.title)}</summary>" if self.folded else f"**{self.title}**"
        body = [opening, "", line(headings), line(rule), *map(line, cells)]
        notes = ["", *self.notes] if self.notes else []
        closing = ["", "</details>"] if self.folded else []
        return "\n".join(body + notes + closing) + "\n"

    def csv(self) -> str:
        """The table as comma-separated values with headings: raw numbers (times in seconds), and nothing for None."""
        written = io.StringIO()
        lines = csv.writer(written, lineterminator="\n")
        lines.writerow([column.heading.replace("µs", "seconds") for column in self.columns])
        lines.writerows(self.rows)
        return written.getvalue()

    def rich(self) -> rich_table.Table:
        drawn = rich_table.Table(title=self.title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for column in self.columns:
            drawn.add_column(column.heading, justify=column.align, overflow="fold")
        for row in self.cells():
            drawn.add_row(*(Text(cell) for cell in row))
        return drawn


def _width(content: str) -> int:
    """The number of terminal columns of `content`: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in content)
    return len(content) + wide - sum(unicodedata.combining(character) > 0 for character in content)


def _pad(content: str, width: int, align: str) -> str:
    space = " " * (width - _width(content))
    return space + content if align == "right" else content + space


def show(table: Table, console: Console | None = None) -> None:
    """Print `table`: drawn on a terminal, as Markdown elsewhere (a log, a pipe, a file)."""
    console = console or Console()
    if console.is_terminal:
        console.print(table.rich())
        for note in table.notes:
            console.print(Text(note))
        console.print()
    else:
        console.file.write(table.markdown() + "\n")
        console.file.flush()
