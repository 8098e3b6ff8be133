"""The committed comparison of CUTLASS's products with the other sources."""

from __future__ import annotations

import json

import pytest

from benchmarks import record
from benchmarks.gpu import cutlass


def test_the_committed_tables_have_the_published_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((record.RESULTS / "gpu_cutlass.json").read_text())["results"]
    cutlass.report(result, cutlass.SUITES["gpu_cutlass"])
    printed = capsys.readouterr().out
    for m, n, k in cutlass.PUBLISHED:
        assert printed.count(f"{m}×{n}×{k}") == len(result["parts"])
    for part in result["parts"]:
        assert part["summary"] == cutlass.summary(part["times"])
        assert all(
            row["best"]["cutlass"] and row["best"]["triton"] and row["best"]["cublaslt"] for row in part["times"]
        )
