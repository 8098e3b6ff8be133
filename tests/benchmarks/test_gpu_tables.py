"""What the GPU suite makes of its cells, and how a run goes on from an earlier one's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import candidates, gemm, gemm_report, hints, products
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


def test_cells_of_a_revision_may_be_measured_once_more_and_count_until_they_are(tmp_path: Path) -> None:
    old, failed = tmp_path / "old.jsonl", cell("thin", 8, {}, revision="abc+", error="none")
    old.write_text("".join(json.dumps({**row, "revision": "abc+"}) + "\n" for row in [*AT_HINTS, failed]))
    cells = Cells(tmp_path / "own.jsonl", ["abc"])
    cells.take(old)
    assert len(cells.rows) == 2 and not cells.has(hints.AT_HINT, "bf16", (64, 64, 64))
    cells.add(cell(hints.AT_HINT, 64, {"tile a": 0.5}))
    cells.take(old)
    assert cells.has(hints.AT_HINT, "bf16", (64, 64, 64)) and not cells.has(hints.AT_HINT, "bf16", (128, 128, 128))
    again = Cells(tmp_path / "own.jsonl").rows
    assert [row["us"] for row in again] == [{"tile a": 0.5}, AT_HINTS[1]["us"]]


def test_what_was_asked_for_stands_before_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"library": 11.0, "polytile": 10.0, "peer": 9.0}
    thin = {"function": "thin: linear", "part": "thin", "dtype": "bf16", "shape": [1, 2, 3], "us": times, "bytes": 80e6}
    matrix = {**cell("matrix: polytile, hint 64", 64, {"eager": 10.0, "polytile, hint 64": 10.3}), "part": "matrix"}
    gemm_report.report({"copy_bytes_per_second": 1e13, "cells": [thin, matrix]})
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    found = {(line[0].strip(), line[3].strip(), line[5].strip()) for line in lines if len(line) == 6}
    assert ("thin: times the library's speed", "1.100", "") in found
    assert ("thin: least of a copy's bandwidth", "80%", "") in found
    assert ("hint × size: worst cell over its column's best", "1.030", "missed") in found
    assert ("within 2 % of the library and the peer for that shape", "0%, worst 1.11", "missed") in found


class Recorded:
    """Work that takes `seconds` of a clock for each of its cells."""

    def __init__(self, name: str, count: int, seconds: float, clock: list[float], log: list[str]) -> None:
        self.name, self.left, self.seconds, self.clock, self.log = name, count, seconds, clock, log

    def ask(self) -> None:
        self.log.append(f"ask {self.name}")

    def measure(self, deadline: float) -> None:
        while self.left and self.clock[0] < deadline:
            self.left -= 1
            self.clock[0] += self.seconds
            self.log.append(self.name)
        if self.name == "fails":
            raise RuntimeError("no such kernel")


def test_each_part_gets_a_share_of_the_time_and_the_first_ones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = [0.0], list[str]()
    monkeypatch.setattr(gemm.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gemm.torch.cuda, "synchronize", lambda: None)
    work = [Recorded("a", 9, 1.0, clock, log), Recorded("fails", 1, 1.0, clock, log), Recorded("c", 2, 1.0, clock, log)]
    gemm.run(work, 9.0, ahead=False)
    assert log == ["a", "a", "a", "fails", "c", "c", "a", "a", "a"]
    log.clear()
    gemm.run([Recorded(name, 0, 1.0, clock, log) for name in "abcde"], 99.0, ahead=True)
    assert log == [f"ask {name}" for name in "abcde"]


def test_the_first_shapes_are_of_all_kinds() -> None:
    shapes = products.at_weights((1, 2, 3, 4))
    found = gemm.spread(shapes)
    assert sorted(found) == sorted(shapes) and {shape[1:] for shape in found[:4]} == set(products.WEIGHTS)


def test_the_committed_results_make_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    gemm.report(json.loads((Path(gemm.record.RESULTS) / "gpu_gemm.json").read_text())["results"])
    shown = capsys.readouterr().out
    assert "polytile's kernel time over the best of the others" in shown and "hint × size at run time, bf16" in shown


def test_each_row_of_the_hint_study_has_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    class Fake:
        def __init__(self, compilers: int) -> None:
            assert compilers >= 1

        def run(self, function: str, given: dict[str, Any], seconds: float) -> dict[str, Any]:
            assert function == "benchmarks.gpu.hints:measured" and seconds > 0
            started.append(given)
            if given["hints"] == (64,) and given["who"] == hints.PEER:
                return {"error": "out of memory"}
            us = {str(n): {"eager": 1.0, given["name"]: float(n + len(started))} for n in hints.RUN_AT}
            return {"us": us, "chosen": dict.fromkeys(us, "aten"), "first_call_s": 2.0}

    monkeypatch.setattr(hints, "Processes", Fake)
    cells = Cells(tmp_path / "cells.jsonl")
    hints.matrix("bf16", time.monotonic() + 60, cells, peer=True)
    rows = [(given["who"], given["hints"]) for given in started]
    assert len(rows) == len(set(rows)) == 8 and {given["lock"] for given in started} != {""}
    assert {row["function"] for row in cells.rows} == {hints.MATRIX + name for name in hints.contestants(True)} - {
        "matrix: peer, hint 64"
    }
    hints.matrix("bf16", time.monotonic() + 60, cells, peer=True)
    assert [given["name"] for given in started[8:]] == ["peer, hint 64"]  # the others are not measured twice
