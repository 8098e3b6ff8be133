"""A stream of requests: the same for everybody, checked against eager, and judged by what calls took above tier 0."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.stream import __main__ as command
from benchmarks.stream import judge, serving
from benchmarks.stream.report import counters_table, late_table, stream_table
from benchmarks.stream.stacks import Stacks
from benchmarks.stream.workloads import WORKLOADS, Request, Workload

SIZES = [[3, 5], [2, 9], [4, 2], [3, 7], [2, 6]]


def tiny(trains: bool) -> Workload:
    def model(device: str) -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), nn.GELU()).train(trains)
        return nn.Sequential(made, Mean()) if trains else made

    return Workload(
        "tiny", model, lambda size, generator: [torch.randn(size.batch, size.length, 8, generator=generator)],
        {"cpu": Request(4, 9)}, trains, {"cpu": 1e-4},
    )  # fmt: skip


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Serves SIZES in this process; what comes back has been through JSON, as from another process."""
    monkeypatch.setitem(WORKLOADS, "tiny", tiny(False))
    monkeypatch.setitem(WORKLOADS, "trained", tiny(True))

    def run(contestant: str, workload: str = "tiny", **given: Any) -> dict[str, Any]:
        torch._dynamo.reset()
        task = {
            "workload": workload, "contestant": contestant, "device": "cpu", "requests": SIZES, "synchronised": True,
            "stacks": False, "expected": [], "until": time.time() + 600, **given,
        }  # fmt: skip
        return dict(json.loads(json.dumps(serving.run(task))))

    return run


@pytest.mark.parametrize("workload", ["tiny", "trained"])
def test_contestants_serve_the_same_requests_and_are_judged(
    serve: Callable[..., dict[str, Any]], workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: serve(name, workload) for name in ("eager", "aot_eager", "never")}
    cells = {name: judge.judged(run, runs, SIZES, 1e-4) for name, run in runs.items()}
    for name, cell in cells.items():
        assert cell["served"] == 5 and cell["wrong"] == cell["failures"] == [] and cell["settled"]
        assert 0 < cell["first_result"] <= cell["total"] and cell["peak"]["host"] > 1e6
        assert cell["last_quarter"] > 0 and cell["graphs"] == (name != "eager")
    own = runs["never"]
    assert own["tier0"][0] == 0 and set(own["again"]) == set("01234")
    assert cells["never"]["counters"]["settled"]["kernels_generated"] > 0 and not cells["eager"]["counters"]
    assert cells["aot_eager"]["first_over_tier0"] == 1
    command.tables("decoder", "cpu", {"requests": 5, "contestants": cells})
    shown = capsys.readouterr().out
    assert 'polytile, stall="never"' in shown and "of 5)" not in shown


def test_a_stream_ends_when_its_time_is_over_and_says_how_far_it_came(serve: Callable[..., dict[str, Any]]) -> None:
    cut = serve("eager", until=time.time() - 1)
    cell = judge.judged(cut, {"eager": cut}, SIZES, 1e-4)
    assert cell["served"] == 1 and cell["extra"] is None and cell["last_quarter"] is None
    (row,) = stream_table("", 5, {"eager": cell}).rows
    assert row[3].endswith("(1 of 5)")


def made_up(seconds: list[float], **given: Any) -> dict[str, Any]:
    number = len(seconds)
    return {
        "seconds": seconds, "host": seconds, "processor": seconds, "samples": [[1.0, 2.0]] * number, "graphs": [0], "tier0": [],
        "learning": [], "stages": {}, "late": {}, "own": False, "again": {str(n): 0.01 for n in range(number)},
        "settled": True, "wait_seconds": 0.0, "counters": {}, "settled_counters": {}, "peak": {"host": 1},
        "settled_peak": {"host": 1}, "failures": [], "cores_used_by_others": 0.0, **given,
    }  # fmt: skip


def test_what_a_call_waits_is_what_it_takes_above_tier_0() -> None:
    tier0 = made_up([1.01, 0.01, 0.02, 0.01])
    settled = made_up([9.0] * 4, again={"1": 0.005, "2": 0.016, "3": 0.01})
    ours = made_up([2.0, 0.02, 0.02, 0.02], own=True, tier0=[0, 1], learning=[0, 1, 2], stages={"0": {"tracing": 1.0}})
    ours |= {"stages": {"0": {"tracing": 1.0}, "3": {"choosing": 0.007}}, "late": {"3": {"samples": 2}}}
    cell = judge.judged(ours, {"aot_eager": tier0, "compile": settled, "never": ours}, SIZES, 1e-4)
    assert cell["first_over_tier0"] == pytest.approx(2 / 1.01)
    assert cell["total"] == pytest.approx(2.06) and cell["total_without_tracing"] == pytest.approx(1.06)  # aot_eager's: 1 s
    assert cell["extra"]["worst"] == pytest.approx(0.01) and cell["extra"]["over_1_ms"] == 2  # the first call is left out
    assert [late["request"] for late in cell["late"]] == [1, 3, 2]
    assert cell["late"][1]["stages"] == {"choosing": 0.007} and cell["late"][1]["stacks"] == {"samples": 2}
    assert cell["slow_calls"] == 1 and cell["last_quarter"] == pytest.approx(2)
    assert cell["throughput_at_tier0"] == pytest.approx(0.5) and cell["throughput_learning"] == pytest.approx(0.8)
    assert cell["caller_stages"] == {"calls": 1, "choosing": 0.007}
    late_table("", cell["late"]).markdown()
    counters_table("", {"eager": cell | {"counters": {}}}).markdown()
    gpu = {"never": cell | {"peak": {"host": 1, "device": 5_000_000}}}
    assert "| of the host: p99.9 ms |" in stream_table("", 4, gpu).markdown()
    noise = judge.judged(tier0, {"aot_eager": tier0}, SIZES, 1e-4)
    assert noise["extra"]["worst"] == pytest.approx(0.01)  # of the call that took 0.02 s in the stream and 0.01 s later


@pytest.mark.parametrize("off", [[1.0, 2.1], [1.0, float("nan")]], ids=["other numbers", "no number"])
def test_a_wrong_result_is_told(off: list[float]) -> None:
    eager, ours = made_up([0.01] * 3), made_up([0.01] * 3)
    ours["samples"] = [[1.0, 2.0], off, [1.0, 2.0 + 1e-9]]
    (line,) = judge.judged(ours, {"eager": eager}, SIZES, 1e-4)["wrong"]
    assert line.startswith("request 1: ")


def test_a_contestant_that_failed_has_a_row_that_says_so() -> None:
    cell = judge.judged({"error": "did not end in time"}, {}, SIZES, 1e-4)
    (row,) = stream_table("", 5, {"tune": cell}).rows
    assert "did not end in time" in row


def wait_for(seconds: float) -> None:
    time.sleep(seconds)


def test_a_late_call_is_found_where_it_waits() -> None:
    stacks = Stacks()
    stacks.arm(60.0)
    wait_for(0.01)
    assert stacks.disarm() == {}
    stacks.arm(0.0)
    while not stacks._samples:
        wait_for(0.01)
    found = stacks.disarm()
    assert found["samples"] >= 1 and "wait_for" in next(iter(found["caller"]))


def test_a_stream_is_the_same_whoever_serves_it() -> None:
    workload = WORKLOADS["decoder"]
    sizes = workload.requests("cpu", 20, 0)
    assert sizes == workload.requests("cpu", 30, 0)[:20] != workload.requests("cpu", 20, 1)
    first, second = (workload.arguments(sizes[3], 3, "cpu") for _ in range(2))
    assert torch.equal(first[0], second[0]) and first[0].shape == (sizes[3].batch, sizes[3].length)


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_serves_a_request(name: str) -> None:
    found = serving.run({
        "workload": name, "contestant": "eager", "device": "cpu", "requests": [[1, 2], [2, 3]], "synchronised": True,
        "stacks": False, "expected": [], "until": time.time() + 60,
    })  # fmt: skip
    assert len(found["samples"]) == 2 and found["samples"][0] != found["samples"][1]


@pytest.mark.parametrize("warm", [["--warm"], ["--warm", "never"]], ids=["all", "one"])
def test_a_second_process_finds_the_caches_of_the_first(
    warm: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contestants' processes are made up: each gives the directory that it was given, and how long it may take."""
    given: list[tuple[str, str, float]] = []

    def run(self: Any, function: str, task: dict[str, Any], seconds: float, variables: dict[str, str]) -> dict[str, Any]:
        given.append((task["contestant"], variables["POLYTILE_CACHE_DIR"], task["until"] - time.time()))
        return made_up([0.01] * 3, own=task["contestant"] == "never", counters=COUNTS, settled_counters=COUNTS, device="cpu")

    monkeypatch.setattr(command.Processes, "run", run)
    out, calls = tmp_path / "results", tmp_path / "calls.jsonl"
    arguments = ["--workloads", "mlp", "--contestants", "eager", "never", "--seconds", "30", "--json", *warm]
    command.main([*arguments, "--out", str(out), "--calls", str(calls)])
    names, places, shares = zip(*given, strict=True)
    assert names == ("eager", "never", "never") and places[0] != places[1] == places[2]
    assert 9 < shares[0] < 10.1 and shares[2] > 29
    written = json.loads((out / "stream_cpu.json").read_text())
    assert set(written["results"]["workloads"]["mlp"]["contestants"]) == {"eager", "never", "never, warm"}
    assert "revision" in written["environment"] and len(calls.read_text().splitlines()) == 3
    printed = capsys.readouterr().out
    command.main([*arguments, "--out", str(out), "--calls", str(calls)])
    assert len(given) == 3 and capsys.readouterr().out == printed, "what the file has is not run again"
    command.main(["--show", "--out", str(out)])
    assert capsys.readouterr().out.startswith(printed.strip()) and 'stall="never", warm' in printed


COUNTS = {
    "dispatch_misses": 1, "candidates_benchmarked": 2, "compiler_runs": 3, "store_hits": 4, "seconds": {"choosing": 0.5},
}  # fmt: skip
