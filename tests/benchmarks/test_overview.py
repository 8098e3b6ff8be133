"""The overview reads every result file that it names."""

from __future__ import annotations

import pytest

from benchmarks.overview import EACH, ON_CPU, ON_GPU, Line, table


@pytest.mark.parametrize("line", [*ON_CPU, *ON_GPU], ids=lambda line: f"{line.suite}: {line.what}")
def test_every_line_has_cells_against_eager(line: Line) -> None:
    ((_, cells, times, least, _),) = table("", [line], {"eager": "× eager"}).rows
    assert cells > 0 and 0 < least <= times


@pytest.mark.parametrize("suite", EACH)
def test_every_function_and_model_has_a_line_and_together_they_are_all_cells(suite: str) -> None:
    title, lines = EACH[suite]
    rows = table(title, lines(), {"eager": "× eager"}).rows
    parts = [cells for what, cells, *_ in rows if not what.startswith("all")]
    assert len(parts) > 10 and sum(parts) == sum(cells for what, cells, *_ in rows if what.startswith("all"))
