"""The overview reads every result file that it names."""

from __future__ import annotations

import pytest

from benchmarks import overview
from benchmarks.overview import BEHIND_DOOR, EACH, ON_CPU, ON_GPU, UNGUARDED, WHOLE, Line, table

MEASURED = [line for line in (*ON_CPU, *ON_GPU) if table("", [line], {"eager": "× eager"}).rows]


def test_every_suite_of_results_has_a_line() -> None:
    assert {line.suite for line in MEASURED} >= {"models", "loops", "programs_cpu", "matmul", "gpu", "gpu_models", "gpu_gemm"}


@pytest.mark.parametrize("line", MEASURED, ids=lambda line: f"{line.suite}: {line.what}, {line.of}")
def test_every_line_has_cells_against_eager(line: Line) -> None:
    ((_, of, cells, times, least, slower, _),) = table("", [line], {"eager": "× eager"}).rows
    assert cells > 0 and 0 < least <= times and (slower > 0) == (least < overview.BELOW)
    assert of in (overview.WHOLE, overview.BEHIND_DOOR, overview.UNGUARDED, overview.KERNELS, overview.STREAM, overview.TRACED)


def test_loops_are_told_by_each_way_to_call() -> None:
    assert [line.of for line in MEASURED if line.suite == "loops"] == [WHOLE, BEHIND_DOOR, UNGUARDED]


@pytest.mark.parametrize("suite", EACH)
def test_every_function_and_model_has_a_line_and_together_they_are_all_cells(suite: str) -> None:
    title, lines = EACH[suite]
    rows = table(title, lines(), {"eager": "× eager"}).rows
    parts = [cells for what, _, cells, *_ in rows if not what.startswith("all")]
    assert len(parts) > 10 and sum(parts) == sum(cells for what, _, cells, *_ in rows if what.startswith("all"))
