"""The overview reads every result file that it names."""

from __future__ import annotations

import pytest

from benchmarks.overview import ON_CPU, ON_GPU, Line, table


@pytest.mark.parametrize("line", [*ON_CPU, *ON_GPU], ids=lambda line: f"{line.suite}: {line.what}")
def test_every_line_has_cells_against_eager(line: Line) -> None:
    ((_, cells, times, least, _),) = table("", [line], {"eager": "× eager"}).rows
    assert cells > 0 and 0 < least <= times
