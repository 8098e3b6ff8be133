"""The committed comparisons of CUTLASS's products with the other sources."""

from __future__ import annotations

import json

import pytest

from benchmarks import record
from benchmarks.gpu import cutlass
from benchmarks.gpu.cutlass import PUBLISHED, SUITES

COMMITTED = [name for name in SUITES if (record.RESULTS / f"{name}.json").exists()]


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_tables_have_every_listed_size_that_was_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result, suite = json.loads((record.RESULTS / f"{name}.json").read_text())["results"], SUITES[name]
    cutlass.report(result, suite)
    printed = capsys.readouterr().out
    for shape in suite.listed:
        measured = sum(row["shape"] == list(shape) for part in result["parts"] for row in part["times"])
        assert printed.count(f" {'×'.join(map(str, shape))} ") == measured
    for part in result["parts"]:
        assert part["summary"] == cutlass.summary(part["times"])
        assert all(row["best"]["cutlass"] and row["best"]["triton"] for row in part["times"])


def test_the_committed_tables_have_the_published_sizes() -> None:
    result = json.loads((record.RESULTS / "gpu_cutlass.json").read_text())["results"]
    for part in result["parts"]:
        best = {tuple(row["shape"]): row["best"] for row in part["times"]}
        assert all(best[shape]["cutlass"] and best[shape]["cublaslt"] for shape in PUBLISHED)
