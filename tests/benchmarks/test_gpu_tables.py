"""What the GPU suite makes of its cells, and how a run goes on from an earlier one's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import candidates, gemm, hints
from benchmarks.gpu.grid import Cells, Earlier


def cell(function: str, size: int, us: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"function": function, "part": "pairs", "dtype": "bf16", "shape": [size] * 3, "us": us, **more}


AT_HINTS = [cell(hints.AT_HINT, 64, {"tile a": 1.0, "aten": 2.0}), cell(hints.AT_HINT, 128, {"tile b": 3.0, "cublaslt 1": 2.0})]


def test_the_winner_at_a_hint_may_be_asked_for_among_generated_kernels_alone() -> None:
    assert hints.winners(AT_HINTS) == {64: "tile a", 128: "cublaslt 1"}
    assert hints.winners(AT_HINTS, own=True) == {64: "tile a", 128: "tile b"}


def test_every_hints_winner_is_held_against_the_choice_at_every_size() -> None:
    rows = [*AT_HINTS, cell(hints.PAIRS, 64, {"tile a": 1.0, "tile b": 4.0, "cublaslt 1": 2.0}, chosen="tile a")]
    assert hints.speedups(rows, "bf16", own=False) == [1.0, 2.0]
    assert hints.speedups(rows, "bf16", own=True) == [1.0, 4.0]
    assert hints.speedups(rows, "fp32", own=False) == []


def test_regrets_stand_in_the_order_of_the_predictions() -> None:
    row = {"us": {"tile a": 2.0, "aten": 1.0}, "predicted_us": {"aten": 9.0, "tile a": 8.0}}
    assert candidates.regrets(row) == [2.0, 1.0]
    assert candidates.verdict([row]).startswith("1 shapes, regret of the first geomean 2.000, p95 2.00, worst 2.00; best of 3")


def test_the_peers_times_may_be_those_of_an_earlier_run_on_such_a_device(tmp_path: Path) -> None:
    times = {"eager": 9.0, "polytile": 5.0, "dynamic": 7.0, "static": 4.0}
    row = {"function": "softmax", "dtype": "bf16", "shape": [4, 8], "us": times}
    results = {"device": "H100", "copy_bytes_per_second": 3e12, "cells": [row, {**row, "shape": [8, 8], "error": "x"}]}
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"environment": {"revision": "abc"}, "results": results}))
    earlier = Earlier.read(file, "H100")
    assert earlier.origin == {"revision": "abc", "copy": 3e12}
    now = {**row, "us": {"eager": 8.0, "polytile": 3.0}}
    assert earlier.beside(now)["us"] == {"eager": 8.0, "polytile": 3.0, "dynamic": 7.0, "static": 4.0}
    assert earlier.beside({**now, "shape": [5, 5]}) == {**now, "shape": [5, 5]}
    with pytest.raises(SystemExit, match="this is H200"):
        Earlier.read(file, "H200")


def test_a_run_goes_on_from_the_cells_of_earlier_ones(tmp_path: Path) -> None:
    lines, whole = tmp_path / "cells.jsonl", tmp_path / "gpu_gemm.json"
    lines.write_text("".join(json.dumps(row) + "\n" for row in AT_HINTS))
    whole.write_text(json.dumps({"results": {"cells": [*AT_HINTS, cell("matrix: eager", 64, {"eager": 1.0})]}}))
    cells = Cells(tmp_path / "own.jsonl")
    for file in (lines, whole, lines):
        cells.take(file)
    assert [row["function"] for row in cells.rows] == [hints.AT_HINT, hints.AT_HINT, "matrix: eager"]
    assert Cells(tmp_path / "own.jsonl").rows == cells.rows


def test_the_committed_results_make_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    gemm.report(json.loads((Path(gemm.record.RESULTS) / "gpu_gemm.json").read_text())["results"])
    shown = capsys.readouterr().out
    assert "polytile's kernel time over the best of the others" in shown and "hint × size at run time, bf16" in shown
