"""Programs and kernels are generated and compiled in another process while calls go on, and here where that cannot be."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile.compiler import building, early, handed, programs
from polytile.compiler.building import Turns
from polytile.runtime import background, builder, spare_core
from polytile.runtime import compile as compiling
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def nothing_left_over(empty_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    polytile.reset()
    yield
    background.drop()
    assert polytile.wait(timeout=PATIENCE)


@pytest.fixture
def done_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs made, and the kernels compiled, in this process."""
    found: list[str] = []

    def note(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            if name != "_run_compiler" or args[0].language == "c++":  # the dispatcher's own C is this process's
                found.append(name)
            return real(*args, **named)

        monkeypatch.setattr(owner, name, call)

    note(programs, "compile_program")
    note(compiling, "_run_compiler")
    return found


@pytest.fixture
def other_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Puts a program of one's own in the place of the process that generates and compiles."""
    builder.stop()

    def put(text: str) -> None:
        script = tmp_path / "other.py"
        script.write_text("import socket, sys, time\nconnection = socket.socket(fileno=int(sys.argv[1]))\n" + text)
        monkeypatch.setattr(builder, "SCRIPT", script)

    yield put
    builder.stop()
    builder._builder.deaths = 0


WEIGHT = torch.nn.Parameter(torch.randn(192, 192, generator=torch.Generator().manual_seed(0)), requires_grad=False)


def function(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.softmax(x @ WEIGHT, -1) * 1.5)


def served(function: Callable[..., Any], *rows: int) -> Callable[..., Any]:
    """The function, compiled, called and settled at each of these numbers of rows."""
    options = {"stall": "never", "isolation": "never", "builder": "process"}
    run: Callable[..., Any] = torch.compile(function, backend="polytile", dynamic=True, options=options)
    for number in rows:
        x = torch.randn(number, 192)
        for _ in range(2):
            torch.testing.assert_close(run(x), function(x))
            assert polytile.wait(timeout=PATIENCE)
    return run


def tiers_met() -> list[int]:
    return [int(bool(program.calls)) for program in programs.compiled_programs()]


def test_programs_and_kernels_are_made_in_another_process(
    done_here: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "polytile")
    monkeypatch.setattr(background, "REST", 0.0)  # calls come until all is learnt
    run = served(function, 5)
    assert tiers_met() == [1] and not done_here, caplog.text
    assert polytile.counters["compiler_runs"] > 0 and polytile.counters["weights_packed"] == 1, "before the program's first call"
    for rows in (70, 900, 6):
        x = torch.randn(rows, 192)
        while polytile.counters["dispatch_misses"] == 0 or background.pending():  # calls go on beside what is learnt
            torch.testing.assert_close(run(x), function(x))
    assert "compile_program" not in done_here
    assert "failed" not in caplog.text


class Attends(torch.nn.Module):
    """Three heads of 64 over the rows of a matrix."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(1, -1, 3, 64).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(-1, 192)


@pytest.mark.slow
def test_a_training_step_is_made_in_another_process(done_here: list[str]) -> None:
    parts = torch.nn.Linear(192, 192), Attends(), torch.nn.Linear(192, 48), torch.nn.LayerNorm(48), torch.nn.Dropout(0.0)
    layer = torch.nn.Sequential(*parts)

    def step(run: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
        layer.zero_grad()
        run(x).pow(2).sum().backward()
        return [p.grad.clone() for p in layer.parameters() if p.grad is not None]

    options = {"stall": "never", "isolation": "never", "builder": "process"}
    run = torch.compile(layer, backend="polytile", dynamic=True, options=options)
    for rows in (7, 7, 130):
        x = torch.randn(rows, 192)
        torch.testing.assert_close(step(run, x), step(layer, x), rtol=1e-4, atol=1e-4)
        assert polytile.wait(timeout=PATIENCE)
    assert tiers_met() == [1, 1] and "compile_program" not in done_here


def test_a_graph_that_holds_a_tensor_is_made_here(done_here: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "polytile")
    served(lambda x: x.exp() * torch.tensor([0.5, 2.0]).repeat(96), 5)
    assert tiers_met() == [1] and "compile_program" in done_here and "is made in this process" in caplog.text


def test_the_work_is_done_here_where_the_process_dies(other_program: Callable[[str], None], done_here: list[str]) -> None:
    other_program("sys.exit(3)")
    served(function, 5)
    assert tiers_met() == [1] and "compile_program" in done_here


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit('no torch')", "with status 1, saying: no torch"),
        ("connection.recv(1 << 20)\nconnection.sendall(b'garbage\\n')\ntime.sleep(60)", "no answer"),
        ("time.sleep(60)", "timed out"),
        ("connection.recv(99)\nconnection.sendall(b'{\"error\": \"the disk is full\", \"counts\": {}}\\n')", "the disk is full"),
    ],
    ids=["dies", "answers garbage", "hangs", "says what is wrong"],
)
def test_who_asks_is_told_that_there_is_no_answer(text: str, said: str, other_program: Callable[[str], None]) -> None:
    other_program(text)
    with pytest.raises(builder.BuilderFailed, match=said):
        builder.ask("program", {}, seconds=0.5 if "timed" in said else PATIENCE)


def test_a_process_that_dies_again_and_again_is_not_started_any_more(other_program: Callable[[str], None]) -> None:
    other_program("sys.exit(3)")
    for _ in range(builder.MOST_DEATHS):
        with pytest.raises(builder.BuilderFailed, match="status 3"):
            builder.ask("program", {})
    with pytest.raises(builder.BuilderFailed, match="has died"):
        builder.ask("program", {})


def test_modules_beside_the_users_script_take_no_others_place(
    other_program: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not me')")
    other_program("import json\nconnection.recv(1 << 20)\nconnection.sendall(b'{\"value\": 1, \"counts\": {}}\\n')")
    monkeypatch.setattr(builder, "SCRIPT", (tmp_path / "other.py").rename(tmp_path.parent / "other.py"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert builder.ask("program", {}) == 1


PROGRAM = """
import os, signal, torch, polytile
from polytile.runtime import builder
run = torch.compile(lambda x: torch.softmax(x.exp(), -1) * 2, backend="polytile", dynamic=True)
run(torch.randn(50, 64))
print(builder._builder.process.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then", [pytest.param("", marks=pytest.mark.slow), "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "is killed"]
)
def test_nothing_is_left_running(then: str, empty_cache: Path) -> None:
    environment = {**os.environ, "POLYTILE_STALL": "never", "POLYTILE_BUILDER": "process"}
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == (-signal.SIGKILL if then else 0) and not process.stderr, process.stderr
    until(lambda: not _runs(int(process.stdout)), "the process that compiles has ended")


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_forked_child_has_a_process_of_its_own(other_program: Callable[[str], None]) -> None:
    other_program("time.sleep(60)")
    builder.begin()
    child = os.fork()
    if child == 0:
        os._exit(int(builder._builder.process is not None))
    assert os.waitpid(child, 0)[1] == 0
    assert builder._builder.process is not None and not builder._builder.process.ended()


def test_starting_the_process_waits_for_no_answer(other_program: Callable[[str], None]) -> None:
    """A second graph is traced while the first one's program is made: the thread that traces did wait for it, for seconds."""
    other_program("time.sleep(60)")

    def ask() -> None:
        with pytest.raises(builder.BuilderFailed):
            builder.ask("program", {})

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    until(lambda: builder._builder.lock.locked(), "somebody waits for an answer")
    here = threading.Thread(target=builder.begin, daemon=True)
    here.start()
    here.join(PATIENCE / 10)
    assert not here.is_alive() and asking.is_alive()
    builder.stop()
    asking.join(PATIENCE)


def test_what_many_programs_need_is_compiled_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    begun: list[int] = []
    made: list[int] = []

    class Work:
        def __init__(self, number: int) -> None:
            self.number = number
            begun.append(number)

        def result(self) -> None:
            made.append(self.number)
            if self.number == 2:
                requests.put({"do": "program"})

    monkeypatch.setattr(handed, "needed_by_many", lambda linear: (Work(n) for n in range(9 if linear else 1)))
    building._prepare_until_asked(requests, linear=False)
    assert made == [0]
    building._prepare_until_asked(requests, linear=True)
    assert made == begun == [0, 0, 1, 2]


@pytest.mark.parametrize("matrix", [True, False])
def test_the_process_knows_whether_products_may_come(monkeypatch: pytest.MonkeyPatch, matrix: bool) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(builder, "wanted", lambda: True)
    monkeypatch.setattr(builder, "begin", lambda linear: begun.append(linear))
    early.expect([torch.ones(3), torch.ones(3, 3, dtype=torch.float32 if matrix else torch.int64), 7])
    assert begun == [matrix]


def test_the_process_is_ready_soon() -> None:
    """It traces nothing; Dynamo takes a fifth of the time to import."""
    text = "import sys; from polytile.compiler import building; building._makers(); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=PATIENCE)


def test_compilers_run_in_turns_with_calls(other_program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them, the process waits until this one lets it go on."""
    other_program(
        "connection.recv(1 << 20)\n"
        'connection.sendall(b\'{"note": "ran", "seconds": 0.25}\\n\')\n'
        'assert b"go" in connection.recv(1 << 20)\n'
        'connection.sendall(b\'{"value": 7, "counts": {}}\\n\')\n'
    )
    rests: list[float] = []
    monkeypatch.setattr(builder, "_rest", lambda ran, *before: rests.append(ran))
    assert builder.ask("program", {}) == 7 and rests == [0.25]


def test_who_asks_does_other_work_while_the_process_rests_but_asks_for_nothing_more(
    other_program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(
        "connection.recv(1 << 20)\n"
        'connection.sendall(b\'{"note": "ran", "seconds": 0.25}\\n\')\n'
        "connection.recv(1 << 20)\n"
        'connection.sendall(b\'{"value": 7, "counts": {}}\\n\')\n'
    )
    said: list[str] = []

    def meanwhile() -> None:
        with pytest.raises(builder.BuilderFailed) as why:
            builder.ask("kernels", {})
        said.append(str(why.value))

    monkeypatch.setattr(builder, "_rest", lambda ran, before, at_tier0, work: work())
    assert builder.ask("program", {}, meanwhile=meanwhile) == 7 and "works for this thread" in said[0]


def test_no_more_compilers_run_side_by_side_than_the_request_allows() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns, running, most = Turns(theirs), 0, 0

        def compiler() -> None:
            nonlocal running, most
            with turns.turn():
                running += 1
                most = max(most, running)
                time.sleep(0.05)
                running -= 1

        for side_by_side in (1, 2):
            turns.begin(side_by_side)
            threads = [threading.Thread(target=compiler, daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                turns.go()
                time.sleep(0.01)
            assert most == side_by_side


def test_who_compiles_asks_for_its_turn_while_it_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns = Turns(theirs)
        turns.wait()  # nobody asks for anything: it does not wait
        turns.begin()
        turns.wait()  # the first compiler
        time.sleep(0.02)  # it generates and compiles
        waiting = threading.Thread(target=turns.wait, daemon=True)
        waiting.start()
        note = json.loads(ours.recv(1 << 10))
        assert note["note"] == "ran" and note["seconds"] >= 0.02 and waiting.is_alive()
        turns.go()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        turns.end({"value": 1})
        assert ours.recv(1 << 10) == b'{"value": 1}\n'


@pytest.mark.parametrize("at_tier0", [0.0, 3.0], ids=["programs serve calls", "calls wait for the program"])
def test_calls_have_all_cores_between_compilers_while_programs_serve_them(at_tier0: float) -> None:
    alive, wanted = background.background, list[bool]()
    before = alive.seconds, alive.tier0_seconds
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(background, "is_here", lambda: True)
        patched.setattr(builder, "usable_cores", lambda: 1)
        patched.setattr(alive, "last_call", float("inf"))
        patched.setattr(alive, "hear", lambda: wanted.append(spare_core.is_wanted()))
        patched.setattr(alive, "seconds", alive.seconds + 4)
        patched.setattr(alive, "tier0_seconds", alive.tier0_seconds + at_tier0)
        with spare_core.wanted():
            builder._rest(0.02, *before)
            assert spare_core.is_wanted()
    assert not wanted if at_tier0 else wanted and not any(wanted)
