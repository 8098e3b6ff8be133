"""Programs and decisions that an earlier process, or an earlier compile of the same graph, has left in the cache directory."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from polytile import counters, store
from polytile.compiler import backend, programs, stored
from polytile.dispatch import recorded
from polytile.dispatch.multikernel import MultiKernel
from polytile.frontend import graph_text
from polytile.frontend.graph import Lowered, lower_graph
from polytile.runtime import background
from polytile.runtime.convolution import PackedConvolution
from tests.behaviour.helpers import compiled, decisions, multikernels, report_of
from tests.waiting import PATIENCE

BOUND = {"rtol": 1e-4, "atol": 1e-4}


def attend(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, int]:
    """A product with an epilogue, rows, columns, a library call, a view of an argument, and a size."""
    scores = nn.functional.linear(x, weight, bias).relu() * 2
    return torch.softmax(scores, -1), torch.sort(scores.sum(0))[0], x.shape[0] * 2


def inputs(rows: int = 37, columns: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, columns), torch.randn(33, columns), torch.randn(33)


def anew(function: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """Compiles and calls the function as if nothing had been compiled before; how many of its graphs came from disk."""
    torch._dynamo.reset()
    before = counters["programs_loaded"]
    got, expected = compiled(function, **options)(*arguments), function(*arguments)
    torch.testing.assert_close(got, expected, **BOUND)
    return int(counters["programs_loaded"]) - before


def test_a_graph_that_was_compiled_before_is_neither_lowered_nor_generated(empty_cache: Path) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        before = {name: value for name, value in counters.items() if name not in ("seconds", "library_calls")}
        lowering = counters["seconds"]["lowering"]
        let_go()
        assert anew(attend, *inputs(), stall="never") == 1
        assert counters["seconds"]["lowering"] == lowering
        for name in ("dispatch_misses", "candidates_benchmarked", "compiler_runs", "tier0_calls"):
            assert counters[name] == before[name], name
        assert counters["store_hits"] > before["store_hits"]
        torch._dynamo.reset()
        again = compiled(attend)
        for rows, columns in ((1, 5), (3, 7), (300, 64)):
            given = inputs(rows, columns)
            torch.testing.assert_close(again(*given), attend(*given), **BOUND)


def test_a_program_from_disk_decides_in_no_call(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something serves sizes that no process has met."""
    deciding: list[str] = []
    choose = MultiKernel.choose_entry

    def noted(kernel: MultiKernel, args: tuple[Any, ...]) -> Any:
        deciding.append(kernel.spec.name)
        return choose(kernel, args)

    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        let_go()
        torch._dynamo.reset()
        again = compiled(attend, stall="never")
        again(*inputs())
        monkeypatch.setattr(MultiKernel, "choose_entry", noted)
        with background.background.held():
            for rows, columns in ((300, 64), (7, 9), (1000, 800)):
                given = inputs(rows, columns)
                torch.testing.assert_close(again(*given), attend(*given), **BOUND)
    assert counters["programs_loaded"] and not deciding


def let_go() -> None:
    """Lets go of the programs of this process."""
    torch._dynamo.reset()
    gc.collect()


def test_programs_are_found_by_graph_options_and_sources(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        assert anew(attend, *inputs(), fuse=False) == 0
        assert anew(lambda *given: (*attend(*given)[:2], 3), *inputs()) == 0, "another graph"
        assert anew(attend, *(t.double() for t in inputs())) == 0, "other types"
        for what in ("source_digest", "_versions"):
            with monkeypatch.context() as patch:
                patch.setattr(stored, what, lambda: "another version")
                assert anew(attend, *inputs()) == 0
        assert anew(attend, *inputs(50, 60)) == 1, "what the tracer sees first is no part of it"


def test_a_damaged_program_is_set_aside_and_made_again(empty_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        (file,) = (empty_cache / "programs").iterdir()
        file.write_bytes(file.read_bytes()[:-100])
        assert anew(attend, *inputs()) == 0
        assert file.with_name(file.name + ".bad").exists() and "set aside" in caplog.text
        name = f"programs/{file.name}"
        stored.current().write(name, json.dumps({"wrapper": ["python", "cpu"], "parts": {"shared": [["no", 1]]}}).encode())
        assert anew(attend, *inputs()) == 0
        assert "cannot be read (KeyError: 'no')" in caplog.text
        assert anew(attend, *inputs()) == 1


def test_damaged_decisions_are_made_again(empty_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        for file in (empty_cache / "decisions").iterdir():
            file.write_bytes(b"[]")
        let_go()
        assert anew(attend, *inputs(), stall="never") == 1
        assert polytile.wait(PATIENCE) and "set aside" in caplog.text
        caplog.clear()
        let_go()
        assert anew(attend, *inputs(), stall="never") == 1
        assert "set aside" not in caplog.text


def test_what_others_have_measured_since_counts(empty_cache: Path) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        chosen = {decision.problem: decision.candidate for decision in decisions()}
        timed = [m for m in store.current().measurements() if m.samples and m.problem in chosen]
        beaten = next(m for m in timed if m.candidate != chosen[m.problem])
        least = min(min(m.samples) for m in timed if m.problem == beaten.problem)
        faster = dataclasses.replace(beaten, samples=(least / 100,) * len(beaten.samples))
        store.current().append(*[faster] * 5)
        let_go()
        assert anew(attend, *inputs(), stall="never") == 1
        assert polytile.wait(PATIENCE)
        assert {d.candidate for d in decisions() if d.problem == beaten.problem} == {beaten.candidate}


def test_what_has_no_form_on_disk_is_lowered_anew_and_the_log_says_why(
    empty_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = torch.randn(20)
    caplog.set_level(logging.INFO, "polytile")
    with torch.no_grad():
        for _ in range(2):
            assert anew(lambda x: torch.tensor([1.0, 2.5, 3.0]).sum() + x * 2 + torch.ones(20), table) == 0
    assert "is lowered again by each process: " in caplog.text
    assert not (empty_cache / "programs").exists()


def test_a_lowering_that_adds_a_guard_leaves_no_program(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lower(graph: torch.fx.GraphModule, name: str, weights: Mapping[str, str]) -> Lowered:
        assert next(node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder") > 5
        return lower_graph(graph, name, weights)

    monkeypatch.setattr(backend, "lower_graph", lower)
    caplog.set_level(logging.INFO, "polytile")
    with torch.no_grad():
        for _ in range(2):
            assert anew(attend, *inputs()) == 0
    assert "its lowering relies on guards that it has added" in caplog.text


def test_a_compile_looks_for_the_graphs_symbols_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked, symbolic = [], graph_text._symbolic

    def counted(graph: torch.fx.GraphModule) -> Iterator[Any]:
        walked.append(graph)
        return symbolic(graph)

    monkeypatch.setattr(graph_text, "_symbolic", counted)
    with torch.no_grad():
        for loaded in (0, 1):
            assert anew(attend, *inputs()) == loaded and len(walked) == loaded + 1


def test_forward_and_backward_graphs_come_from_disk(empty_cache: Path) -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (torch.layer_norm(x @ weight, (weight.shape[1],)).relu() ** 2).mean()

    given = torch.randn(30, 20), torch.randn(20, 40, requires_grad=True)
    loss(*given).backward()
    expected, given[1].grad = given[1].grad, None
    for loaded in (0, 2):
        torch._dynamo.reset()
        before = counters["programs_loaded"]
        compiled(loss)(*given).backward()
        assert counters["programs_loaded"] - before == loaded
        torch.testing.assert_close(given[1].grad, expected, **BOUND)
        given[1].grad = None


def test_a_backward_program_takes_over_beside_a_forward_one_from_disk(empty_cache: Path) -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (torch.tanh(x @ weight) ** 2).mean()

    given = torch.randn(30, 20), torch.randn(20, 40, requires_grad=True)
    compiled(loss)(*given).backward()
    backward = list(empty_cache.glob("programs/backward-*.json"))
    assert backward
    for file in backward:
        file.unlink()
    torch._dynamo.reset()
    run, loaded, served = compiled(loss, stall="never"), counters["programs_loaded"], counters["tier0_calls"]
    run(*given).backward()
    assert (counters["programs_loaded"] - loaded, counters["tier0_calls"] - served) == (1, 1)
    assert polytile.wait(timeout=PATIENCE)
    run(*given).backward()
    assert counters["tier0_calls"] - served == 1


def test_packed_convolutions_come_from_disk(empty_cache: Path) -> None:
    net = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).eval()
    images = torch.randn(1, 64, 4, 4)
    with torch.no_grad():
        for loaded in (0, 1):
            assert anew(net, images) == loaded
            targets = programs.compiled_programs()[-1].targets
            assert len({target for target in targets if isinstance(target, PackedConvolution)}) == 2
            let_go()


class Halved(nn.Module):
    """A product by the weight that a loop makes of one stored as bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(60, 20).bfloat16(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.float() / 2).t()


def test_weights_that_loops_compute_are_looked_up_by_programs_from_disk(empty_cache: Path) -> None:
    module, x = Halved(), torch.randn(37, 20)
    with torch.no_grad():
        for loaded in (0, 1):
            assert anew(module, x) == loaded
            calls = [call for _, call in programs.compiled_programs()[-1].calls if call.computed_weight is not None]
            assert [call.site.bytes for call in calls if call.site is not None] == [60 * 20 * 4]
            del calls
            let_go()


def test_equal_loops_of_several_programs_are_one_kernel(empty_cache: Path) -> None:
    def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1), torch.softmax(y, -1)

    with torch.no_grad():
        for loaded in (0, 1):
            torch._dynamo.reset()
            before = counters["programs_loaded"]
            run = compiled(rows)
            for x, y in ((torch.randn(8, 40), torch.randn(9, 30)), (torch.randn(1, 40), torch.randn(9, 30))):
                torch.testing.assert_close(run(x, y), rows(x, y))
            assert counters["programs_loaded"] - before == 2 * loaded, "both traces, of many rows and of one"
            kernels = {kernel for program in programs.compiled_programs() for kernel in program.multikernels}
            assert len([kernel for kernel in kernels if "n0" in kernel.spec.size_names]) == len({k.spec for k in kernels})


PROGRAM = """
import json, sys, torch, polytile
from tests.behaviour.test_stored_programs import attend, inputs
run, wrong = polytile.compile(attend, options={"stall": sys.argv[1]}), []
with torch.no_grad():
    for rows in (37, 300, 37):
        given = inputs(rows)
        for got, expected in zip(run(*given), attend(*given)):
            if not torch.allclose(torch.as_tensor(got), torch.as_tensor(expected), rtol=1e-4, atol=1e-4):
                wrong.append(rows)
polytile.wait()
print(json.dumps({"counters": dict(polytile.counters), "wrong": wrong}))
"""


def in_a_process(stall: str, cache: Path, **variables: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "POLYTILE_CACHE_DIR": str(cache), **variables}
    started = [sys.executable, "-c", PROGRAM, stall]
    return report_of(subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True))


def test_a_second_process_needs_no_compiler(empty_cache: Path, tmp_path: Path) -> None:
    cold = in_a_process("tune", empty_cache)
    assert cold["counters"]["compiler_runs"] > 0 and not cold["wrong"]
    elsewhere = tmp_path / "shipped"
    shutil.copytree(empty_cache, elsewhere)
    elsewhere.chmod(0o700)
    for stall in ("never", "tune"):
        warm = in_a_process(stall, elsewhere, PATH="", CXX="")
        counted = warm["counters"]
        assert not warm["wrong"] and counted["programs_loaded"] == 1 and counted["store_hits"] > 0
        nothing = ["compiler_runs", "candidates_benchmarked", "tier0_calls", "failures"]
        if stall == "tune":  # else a call may come before the background has read what is known of its sizes
            nothing.append("dispatch_misses")
        assert {name: counted[name] for name in nothing} == dict.fromkeys(nothing, 0)
        assert counted["seconds"]["lowering"] == counted["seconds"]["generating"] == counted["seconds"]["measuring"] == 0


def test_without_a_compiler_an_unknown_graph_runs_as_library_calls(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        assert anew(lambda x: torch.softmax(x, 0) * 3, torch.randn(20, 30)) == 0
        assert "no C++ compiler" in caplog.text
        assert anew(attend, *inputs()) == 1


def test_a_plan_decides_whatever_is_on_disk(empty_cache: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs()) == 0
        polytile.save_plan(tmp_path / "plan.json")
        kept = {file.name: file.read_bytes() for file in (empty_cache / "decisions").iterdir()}
        let_go()
        assert anew(attend, *inputs(), plan=str(tmp_path / "plan.json")) == 0
        assert {decision.link for kernel in multikernels() for decision in kernel.decisions} <= {"plan", "only"}
        assert kept == {file.name: file.read_bytes() for file in (empty_cache / "decisions").iterdir()}


def test_decisions_of_two_processes_are_both_kept(empty_cache: Path) -> None:
    with torch.no_grad():
        assert anew(attend, *inputs(37)) == 0
        files = {file: len(json.loads(_payload(file))) for file in (empty_cache / "decisions").iterdir()}
        let_go()
        recorded._recorded.clear()
        assert anew(attend, *inputs(900)) == 1
        assert all(len(json.loads(_payload(file))) >= before for file, before in files.items())
        assert sum(len(json.loads(_payload(file))) for file in files) > sum(files.values())


def _payload(file: Path) -> bytes:
    found = stored.current().read(f"decisions/{file.name}")
    assert found is not None
    return found
