"""`polytile tune`: everything measured ahead of time, and kept whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytile import options
from polytile.dispatch.links import measured
from polytile.dispatch.planfile import Plan
from polytile.dispatch.selector import Request
from polytile.store.reading import records
from tests.cli.helpers import new_process, run

TARGET = """
import torch

def softmax(x):
    return torch.softmax(x, -1)

def cases():
    return softmax, [(torch.randn(20, 300),), (torch.randn(300, 20),)]

def seven():
    return 7

def nothing():
    return softmax, []

NUMBER = 7
"""


@pytest.fixture
def target(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Python file to tune, with nothing compiled and nothing known; calls wait for nothing unless the command says so."""
    monkeypatch.delenv("POLYTILE_STALL", raising=False)
    new_process()
    path = tmp_path / "target.py"
    path.write_text(TARGET)
    yield path
    new_process()


def test_what_a_function_returns_is_tuned_once(target: Path, empty_cache: Path) -> None:
    first = run("tune", f"{target}:cases", "--quick", "--save-plan", target.parent / "plan")
    assert first.exit_code == 0, first.output
    assert "[1/2] float32[20, 300]: 1 choice, " in first.output and "[2/2] float32[300, 20]" in first.output
    assert "measured now" in first.output and "2 of 2 calls" in first.output
    assert f"Kept in {empty_cache / 'store.sqlite3'}" in first.output and records(empty_cache / "store.sqlite3")
    assert {dict(p.sizes)["n0"] for p in Plan.read(target.parent / "plan").decisions} >= {20, 300}
    new_process()
    again = run("tune", f"{target}:cases", "--quick")
    assert "2 of 2 calls, 0 candidates measured" in again.output and "measured before" in again.output


def test_exhaustive_measures_every_candidate_of_the_whole_space(
    target: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, frozenset[str]]] = []
    shortlisted = measured.shortlist

    def seen(request: Request) -> Any:
        asked.append((options.get("configs"), request.names))
        return shortlisted(request)

    monkeypatch.setattr(measured, "shortlist", seen)
    result = run("tune", f"{target}:softmax", "--exhaustive", "--shapes", "20x300")
    assert result.exit_code == 0
    ((configs, names),) = asked
    assert configs == "exhaustive" and {m.measurement.candidate for m in records(empty_cache / "store.sqlite3")} == names
    refused = run("tune", f"{target}:softmax", "--exhaustive", "--quick", "--shapes", "20x300")
    assert refused.exit_code == 2 and "measures little" in refused.output


def test_a_function_is_called_with_tensors_of_the_given_shapes(target: Path) -> None:
    result = run("tune", f"{target}:softmax", "--shapes", "20x300", "--shapes", "2x3x40", "--dtype", "bfloat16")
    assert result.exit_code == 0
    assert "bfloat16[20, 300]" in result.output and "bfloat16[2, 3, 40]" in result.output


def test_ctrl_c_keeps_what_was_measured(target: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, tasks = measured.tuner, []

    def interrupted(task: Any) -> Any:
        tasks.append(task)
        if len(tasks) > 1:
            raise KeyboardInterrupt
        return tuner(task)

    monkeypatch.setattr(measured, "tuner", interrupted)
    result = run("tune", f"{target}:cases")
    assert result.exit_code == 130 and "Stopped: 1 of 2 calls" in result.output
    assert {record.measurement.problem.size["n0"] for record in records(empty_cache / "store.sqlite3")} == {20}
    monkeypatch.setattr(measured, "tuner", tuner)
    new_process()
    assert "[1/2] float32[20, 300]: 1 choice, 0 candidates measured" in run("tune", f"{target}:cases", "--quick").output


def test_a_call_that_fails_is_told_and_the_others_go_on(target: Path) -> None:
    result = run("tune", f"{target}:softmax", "--shapes", "20x30,20x30", "--shapes", "20x30")
    assert result.exit_code == 2
    assert "[1/2] float32[20, 30] float32[20, 30]: TypeError" in result.output
    assert "[2/2] float32[20, 30]: 1 choice" in result.output and "1 of 2 calls" in result.output


@pytest.mark.parametrize(
    "words, said",
    [
        (("none.py:cases",), "there is no file"),
        (("target.py",), "write it as FILE.py:function"),
        (("target.py:gelu",), "has no function 'gelu'; it has softmax, cases, seven, nothing."),
        (("target.py:NUMBER",), "has no function 'NUMBER'"),
        (("target.py:softmax",), "cannot be called without arguments"),
        (("target.py:seven",), "returned int; it has to return a callable and a list of argument tuples"),
        (("target.py:nothing",), "it has to return a callable and a list of argument tuples"),
        (("target.py:softmax", "--shapes", "4x3", "--seconds", "-3"), "greater than or equal to 0"),
        (("target.py:softmax", "--shapes", "4 by 3"), "'4 by 3' is no list of shapes"),
        (("target.py:softmax", "--shapes", "4x3", "--dtype", "float31"), "no element type 'float31'"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(target: Path, words: tuple[str, ...], said: str) -> None:
    result = run("tune", str(target.parent / words[0]), *words[1:])
    assert result.exit_code == 2 and said in result.output and "Traceback" not in result.output


def test_a_file_that_cannot_be_run_says_why(target: Path) -> None:
    target.write_text("import torch\n1 / 0\n")
    result = run("tune", f"{target}:cases")
    assert result.exit_code == 2 and "cannot be run: ZeroDivisionError: division by zero" in result.output


def test_a_function_that_cannot_say_what_to_tune_is_named_with_its_error(target: Path) -> None:
    target.write_text("def cases():\n    return 1 / 0\n")
    result = run("tune", f"{target}:cases")
    assert result.exit_code == 2 and "cases cannot say what to tune: ZeroDivisionError: division by zero" in result.output


KERNELS = """
import torch, triton
import triton.language as tl
import polytile

@polytile.kernel("x[N] -> y[N]", hints=[{"N": 300}])
def doubled(x, y, N):
    y.copy_(x * 2)

@doubled.implementation
def added(x, y, N):
    torch.add(x, x, out=y)

def made(N):
    return {"src": torch.randn(N), "dst": torch.empty(N), "grid": lambda meta: (triton.cdiv(N, meta["BLOCK"]),)}

@triton.heuristics({"EVEN": lambda given: given["N"] % 2 == 0})
@polytile.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], ["N"], make_args=made, stall="never")
@triton.jit
def copied(src, dst, N, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N), at < N)

bare = polytile.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], ["N"])(copied.fn.fn)
"""


def test_a_kernel_is_tuned_at_its_hints_or_at_given_sizes(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("POLYTILE_ISOLATION", "never")
    monkeypatch.syspath_prepend(str(target.parent))
    (target.parent / "own_kernels.py").write_text(KERNELS)
    hinted = run("tune", f"{target.parent / 'own_kernels.py'}:doubled", "--quick")
    assert hinted.exit_code == 0 and "N=300: 1 choice, 1 candidate measured" in hinted.output, hinted.output
    plan = target.parent / "plan"
    launched = run("tune", "own_kernels:copied", "--at", "N=100", "--at", "N=1000", "--quick", "--save-plan", plan)
    assert launched.exit_code == 0 and "N=1000: 1 choice, 2 candidates measured" in launched.output, launched.output
    assert {dict(p.sizes)["N"] for p in Plan.read(plan).decisions} >= {100, 1000}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bare"], "say at which sizes it is to be tuned, as --at M=16,N=4096"),
        (["bare", "--at", "N"], "--at N names no sizes"),
        (["bare", "--at", "N=3"], "needs make_args= to return the kernel's arguments by name"),
        (["doubled", "--at", "M=3"], "has to say each of N"),
        (["doubled", "--shapes", "3"], "say its sizes by name"),
        (["made", "--at", "N=3"], "is no kernel of polytile.kernel or polytile.autotune"),
        (["nothing"], "has no function 'nothing'"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said(words: list[str], said: str, target: Path) -> None:
    pytest.importorskip("triton")
    path = target.parent / "own_kernels.py"
    path.write_text(KERNELS)
    told = run("tune", f"{path}:{words[0]}", *words[1:])
    assert told.exit_code != 0 and said in " ".join(told.output.split()), told.output
