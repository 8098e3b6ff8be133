"""The suite of programs: what belongs to it, who is judged wrong, where a first call's time goes, what its rows come to."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import record
from benchmarks.architectures.models import MODELS
from benchmarks.programs import __main__ as programs
from benchmarks.programs import report
from benchmarks.programs.contestant import compiled, directly
from benchmarks.programs.judge import reference, run
from benchmarks.programs.program import LEVELS, Draw, Program
from benchmarks.programs.stages import RUNNING, ProcessorStages, Stages
from benchmarks.programs.suite import PROGRAMS


def test_there_are_programs_of_every_level_and_family() -> None:
    assert len(PROGRAMS) >= 150
    assert {program.level for program in PROGRAMS.values()} == set(LEVELS)
    families = {program.family for program in PROGRAMS.values() if program.level == "operator"}
    assert len(families) >= 15 and any(program.training for program in PROGRAMS.values())


def test_there_are_models_of_every_kind() -> None:
    assert len(MODELS) >= 40 and {model.family for model in MODELS.values()} == {"text", "image", "other"}
    assert any(model.training for model in MODELS.values())


@pytest.mark.parametrize("name", ["silu gate of one tensor's halves", "linear, softmax", "LeNet, training", "VAE"])
def test_inputs_and_weights_are_the_same_in_every_process(name: str) -> None:
    program = PROGRAMS[name]
    with torch.set_grad_enabled(program.training):
        first, second = (run(program, made, made, inputs) for made, inputs in (program.make(Draw("cpu")) for _ in range(2)))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def judged(function: Any, inputs: tuple[Tensor, ...], got: Any, **settings: Any) -> str:
    program = Program("", "operator", "", lambda d: (function, inputs), **settings)
    return reference(program, function, inputs).wrong(run(program, got, function, inputs))


def test_a_wrong_result_is_told_from_a_rounding() -> None:
    x = torch.randn(100, 100, generator=torch.Generator().manual_seed(0))
    assert judged(torch.sin, (x,), torch.sin) == ""
    assert judged(lambda x: x.sum(0), (x,), lambda x: x.flip(0).sum(0)) == ""
    assert judged(torch.sin, (x,), lambda x: torch.sin(x) + 1e-5).startswith("result 0 is off by")
    assert judged(torch.sin, (x,), lambda x: torch.sin(x).double()).startswith("result 0 is torch.float64")
    assert "infinite or NaN" in judged(torch.sin, (x,), lambda x: torch.where(x > 3, torch.inf, torch.sin(x)))
    assert judged(lambda x: x.argmax(1), (x,), lambda x: x.argmin(1)).startswith("result 0 is off by")


def test_a_sum_that_cancels_is_judged_by_its_terms() -> None:
    half = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 100
    x = torch.cat((half, -half))
    assert judged(torch.sum, (x,), lambda x: x.flip(0).cumsum(0)[-1]) == ""
    assert judged(torch.sum, (x,), lambda x: x.sum() + 10).startswith("result 0 is off by")


def test_gradients_are_results_of_training() -> None:
    x = torch.randn(9, 9, requires_grad=True)
    assert judged(lambda x: x.square().sum(), (x,), lambda x: (x * x).sum(), training=True) == ""
    wrong = judged(lambda x: x.square().sum(), (x,), lambda x: x.square().sum() + (x - x.detach()).sum(), training=True)
    assert wrong.startswith("result 1 is off by")


def test_time_of_a_call_is_told_by_stage() -> None:
    with Stages() as stages:
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            pass
    assert stages.seconds[RUNNING] > 0.05 and set(stages.as_json()) == {RUNNING}


class _Looks:
    """In place of the event that ends a watch: lets it look once, then calls `then` and ends it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then, self.count = then, 0

    def wait(self, seconds: float) -> bool:
        self.count += 1
        if self.count > 1:
            self.then()
        return self.count > 1


@pytest.mark.parametrize("kind", [Stages, ProcessorStages])
def test_a_look_keeps_nothing_of_a_call_that_returns(kind: type[Stages]) -> None:
    held, looked, gone = threading.Event(), threading.Event(), []

    def call() -> None:
        guard = torch.empty(1)
        gone.append(weakref.ref(guard))
        held.set()
        looked.wait()

    def then() -> None:
        looked.set()
        thread.join()
        gone.append(gone[0]() is None)

    thread = threading.Thread(target=call)
    thread.start()
    held.wait()
    stages: Any = kind()
    stages._thread, stages._done = thread.ident, _Looks(then)
    stages._watch()
    assert gone[1], "what the call held has lived on with its frame"


def test_a_program_runs_from_the_command_line_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--device", "cpu", "--only", "one element", "--contestants", "polytile", "--timing", "0.05", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["programs", *given, "--json", "--out", str(tmp_path)])
    programs.main()
    results = json.loads((tmp_path / "programs_cpu.json").read_text())["results"]
    (row,) = results["rows"]
    assert results["programs in the suite"] == len(PROGRAMS) and results["processes at a time"] == 1
    assert row["threads"] == 1 and set(row["beside"]) == {"direct", "called", "door"} and min(row["beside"].values()) >= 0
    assert row["wrong"] == "" and row["first_call_s"] > 0 and row["graphs"] == 1 and set(row["direct"]) == {"eager", "polytile"}
    programs.main()
    assert len((tmp_path / "programs_cpu.jsonl").read_text().splitlines()) == 1


def test_calls_without_guards_are_of_what_the_program_gives() -> None:
    """One that draws numbers is seeded; one whose own callable takes a token for effects has none."""
    inputs = (torch.randn(33, 5),)
    for function, known in ((lambda x: x + torch.rand_like(x), True), (lambda x: torch.linalg.cholesky(x.t() @ x), False)):
        program = Program("one", "operator", "library", lambda d, f=function: (f, inputs))
        with torch.no_grad():
            call, _ = compiled(function, "polytile", training=False)
            results = run(program, call, function, inputs)
            assert (directly(call, inputs, results) is not None) == known


def row(program: str, who: str, **more: Any) -> dict[str, Any]:
    base = {"program": program, "contestant": who, "level": "chain", "family": "product", "wrong": "", "strides": ""}
    return {**base, "first_call_s": 4.0, "stages": {"tracing": 3.0}, **more}


ROWS = [
    row("a", "polytile", direct={"eager": 2.0, "polytile": 1.0}),
    row("a", "inductor", direct={"eager": 3.0, "inductor": 1.0}, first_call_s=16.0),
    row("b", "polytile", direct={"eager": 1.0, "polytile": 2.0}, first_call_s=9.0),
    row("c", "polytile", wrong="result 0 is off by 1", direct={"eager": 9.0, "polytile": 1.0}),
    {"program": "c", "contestant": "inductor", "level": "chain", "family": "product", "error": "it did not end"},
]


def test_rows_come_to_counts_ratios_and_lists() -> None:
    assert report.counts(ROWS).rows == (
        ("polytile", "chain", 3, 2, 1, 0), ("polytile", "all", 3, 2, 1, 0),
        ("inductor", "chain", 2, 1, 0, 1), ("inductor", "all", 2, 1, 0, 1),
    )  # fmt: skip
    assert report.over_peer(ROWS, "direct") == {"a": pytest.approx(2 / 3)}
    (*_, every) = report.ratios(ROWS).rows
    assert every[2:6] == (2, pytest.approx(1.0), 0.5, 1)  # what is wrong has no time
    assert [one[0] for one in report.slow(ROWS).rows] == ["b"]
    assert [one[0] for one in report.first_calls(ROWS).rows] == ["b", "a", "c"]
    assert [one[:3] for one in report.broken(ROWS).rows] == [("c", "polytile", "wrong"), ("c", "inductor", "failed")]


def test_rows_of_earlier_runs_are_taken_along(tmp_path: Path) -> None:
    earlier, own = tmp_path / "earlier.jsonl", tmp_path / "own.jsonl"
    earlier.write_text("".join(json.dumps(one) + "\n" for one in (*ROWS[:2], {**ROWS[0], "first_call_s": 2.0})))
    rows = programs.Rows(own, [earlier])
    rows.add(ROWS[2])
    again = programs.Rows(own)
    assert [(one["program"], one["contestant"]) for one in again.all] == [("a", "polytile"), ("a", "inductor"), ("b", "polytile")]
    assert again.all[0]["first_call_s"] == 2.0 and ("a", "inductor") in again and ("c", "polytile") not in again


def test_a_run_goes_on_from_the_record_and_from_rows_of_a_run(tmp_path: Path) -> None:
    record.write("programs_cpu", {"rows": ROWS[:2]}, tmp_path)
    lines = tmp_path / "programs_cpu.jsonl"
    lines.write_text(json.dumps({**ROWS[0], "first_call_s": 2.0}) + "\n")
    later = time.time_ns() + 10**9
    os.utime(lines, ns=(later, later))
    assert [one["first_call_s"] for one in programs.Rows(lines).all] == [2.0, 16.0]
    os.utime(lines, ns=(0, 0))  # the record was written last: another checkout's, say
    assert [one["first_call_s"] for one in programs.Rows(lines).all] == [4.0, 16.0]
    other = programs.Rows(tmp_path / "other.jsonl", [tmp_path / "programs_cpu.json"])
    other.add(ROWS[2])
    assert len(other.all) == 3 and other.all[2]["processor"]
    with pytest.raises(FileNotFoundError, match="misspelt"):
        programs.Rows(lines, [tmp_path / "misspelt.jsonl"])


def test_of_rows_timed_on_busy_cores_the_verdict_alone_is_taken_along(tmp_path: Path) -> None:
    timed = {"contestant": "polytile", "wrong": "", "first_call_s": 90.0, "direct": {"eager": 1.0, "polytile": 9.0}}
    rows = [
        {"program": "quiet", **timed, "beside": {"direct": 0.1}}, {"program": "busy", **timed, "beside": {"direct": 1.4}},
        {"program": "late", "contestant": "polytile", "error": programs.LATE},
    ]  # fmt: skip
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("".join(json.dumps(row) + "\n" for row in rows))
    taken = programs.Rows(tmp_path / "own.jsonl", [earlier], beside=0.5).all
    assert taken == [rows[0], {"program": "busy", "contestant": "polytile", "wrong": ""}]
