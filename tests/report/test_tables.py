"""Tables: the same rows drawn on a terminal and as Markdown elsewhere."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from polytile.report import Column, Table, environment, show
from polytile.report.tables import count, micros


def example() -> Table:
    columns = ["kernel", Column("µs", micros), Column("calls", count)]
    return Table.from_rows("Kernels", columns, [("softmax", 1.25e-6, 12345), ("a|b", None, 7)], ["A note."])


def test_markdown_lines_up_and_escapes_bars() -> None:
    lines = example().markdown().splitlines()
    assert lines == [
        "**Kernels**",
        "",
        "| kernel  |   µs |  calls |",
        "| ------- | ---: | -----: |",
        "| softmax | 1.25 | 12 345 |",
        "| a\\|b    |    – |      7 |",
        "",
        "A note.",
    ]


def test_a_folded_table_shows_its_title_until_it_is_opened() -> None:
    lines = dataclasses.replace(example(), title="a < b", folded=True).markdown().splitlines()
    assert lines[:2] == ["<details><summary>a &lt; b</summary>", ""]
    assert lines[-3:] == ["A note.", "", "</details>"]


def test_a_table_is_markdown_in_a_log_and_drawn_on_a_terminal() -> None:
    log, terminal = io.StringIO(), io.StringIO()
    show(example(), Console(file=log, force_terminal=False))
    show(example(), Console(file=terminal, force_terminal=True, width=80))
    assert log.getvalue() == example().markdown() + "\n"
    assert "12 345" in terminal.getvalue() and "|" not in terminal.getvalue().replace("a|b", "")


def test_markup_in_a_cell_is_text() -> None:
    terminal = io.StringIO()
    show(Table.from_rows("t", ["sizes"], [("[s0, s1]",)]), Console(file=terminal, force_terminal=True, width=80))
    assert "[s0, s1]" in terminal.getvalue()


def test_a_row_of_the_wrong_length_is_refused_with_its_number() -> None:
    with pytest.raises(ValueError, match="has 2 columns, but its row 1 has 3 values"):
        Table.from_rows("t", ["a", "b"], [(1, 2), (1, 2, 3)])


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.5e-6, "0.50"),
        (9.994e-6, "9.99"),
        (9.996e-6, "10.0"),
        (99.94e-6, "99.9"),
        (99.96e-6, "100"),
        (1.5, "1 500 000"),
    ],
)
def test_microseconds_keep_three_digits(seconds: float, written: str) -> None:
    assert micros(seconds) == written


def test_the_environment_is_text_and_names_what_results_depend_on() -> None:
    facts = environment()
    assert {"date", "polytile", "torch", "python", "processor", "cores", "threads"} <= facts.keys()
    assert all(isinstance(value, str) and value for value in facts.values())
