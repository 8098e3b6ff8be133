"""Threads and processes that work in the background leave the cores to calls, until somebody waits for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polytile import options
from polytile.runtime import background as module
from polytile.runtime import builder
from polytile.runtime.background import NICENESS, Background, Disturbance, yield_to_calls
from polytile.runtime.compile import compile_cpp
from tests.waiting import PATIENCE, until

SOURCE = 'extern "C" long answer() { return 42; }\n'


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="cores are not shared among sessions here")
def test_a_process_in_a_session_of_its_own_yields_as_a_session() -> None:
    own = Path("/proc/self/autogroup").read_text()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield_to_calls(process.pid)
        found = Path(f"/proc/{process.pid}/autogroup").read_text(), niceness(process.pid)
        process.kill()
    assert found[0].split()[-1] == str(NICENESS) and found[1] == NICENESS
    assert Path("/proc/self/autogroup").read_text() == own


def niceness(task: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, task)


@pytest.fixture(params=["raised", "lowered only"])
def may_raise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system lets a user raise a priority again."""
    real = os.setpriority

    def only_lower(which: int, task: int, value: int) -> None:
        if value < niceness(task):
            raise PermissionError("as for users without privileges")
        real(which, task, value)

    monkeypatch.setattr(module.cpu, "cores_are_taken", lambda: True)
    if request.param == "lowered only":
        monkeypatch.setattr(module.os, "setpriority", only_lower)
    else:
        try:
            with subprocess.Popen(["sleep", "60"]) as process:
                real(os.PRIO_PROCESS, process.pid, niceness() + 1)
                process.kill()
                real(os.PRIO_PROCESS, process.pid, niceness())
        except PermissionError:
            pytest.skip("needs the privilege to raise priorities")
    return bool(request.param == "raised")


class Noting:
    """A job that notes its thread and how nice that is, once it may end."""

    disturbs = Disturbance.NONE

    def __init__(self, found: list[tuple[int, int]]) -> None:
        self.found, self.begun, self.may_end = found, threading.Event(), threading.Event()

    def urgency(self) -> tuple[float, ...]:
        return (0.0,)

    def run(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        self.found.append((threading.get_native_id(), niceness()))


@pytest.fixture
def alone() -> Iterator[Background]:
    made = Background()
    yield made
    made._closed = True
    made._ring()


def test_the_thread_has_ordinary_priority_while_somebody_waits(alone: Background, may_raise: bool) -> None:
    found: list[tuple[int, int]] = []
    first, second, third = Noting(found), Noting(found), Noting(found)
    alone.submit(first)
    assert first.begun.wait(PATIENCE)
    with alone.hurried():
        alone.submit(second)
        first.may_end.set()
        second.may_end.set()
        assert alone.wait(PATIENCE)
    third.may_end.set()
    alone.submit(third)
    until(lambda: len(found) == 3, "the third job")
    (thread, during), (other, waited), (_, behind) = found
    assert (during, waited, behind) == (niceness() if may_raise else NICENESS, niceness(), NICENESS)
    assert (thread == other) is may_raise


def test_a_thread_that_has_cores_goes_on_where_no_priority_can_be_raised(
    alone: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lend_priority", lambda task: False)
    monkeypatch.setattr(module.cpu, "cores_are_taken", lambda: False)
    found: list[tuple[int, int]] = []
    first, second = Noting(found), Noting(found)
    alone.submit(first)
    assert first.begun.wait(PATIENCE)
    with alone.hurried():
        alone.submit(second)
        first.may_end.set()
        second.may_end.set()
        assert alone.wait(PATIENCE)
    assert found[0] == found[1]


@pytest.mark.parametrize(("then", "taken"), [("cpu 190 5 5 0 0 0 0 0 0 0", True), ("cpu 100 60 5 35 0 0 0 0 0 0", False)])
def test_cores_are_taken_where_niced_processes_and_idling_have_little_time(
    then: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.cpu, "STAT", tmp_path / "stat")
    assert module.cpu.cores_are_taken(0.0)  # nobody says
    (tmp_path / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 1\n")
    monkeypatch.setattr(module.cpu.time, "sleep", lambda seconds: (tmp_path / "stat").write_text(then + "\n"))
    assert module.cpu.cores_are_taken() is taken


def test_what_works_for_the_background_knows_it_in_each_of_its_threads(alone: Background) -> None:
    here: list[bool] = []
    job = Noting([])
    job.run = lambda: here.append(alone.is_here())  # type: ignore[method-assign]
    alone.submit(job)
    until(lambda: len(here) == 1, "the job")
    assert here == [True] and not alone.is_here()


@pytest.fixture
def patient(tmp_path: Path) -> tuple[Path, Callable[[], list[int]]]:
    """A compiler that does not go on while it is nicer than this process, and how nice its runs have been at their beginning."""
    notes, program, real = tmp_path / "notes", tmp_path / "patient", shutil.which("g++") or shutil.which("clang++")
    program.write_text(
        "#!/bin/bash\n"
        f'[[ " $* " == *" -o "*patience* || " $* " == *patience*" -o "* ]] || exec {real} "$@"\n'
        f"until (( $(nice) > {niceness()} )) || [[ -e {notes} ]]; do sleep 0.01; done\n"
        f"nice >> {notes}\n"
        f"while (( $(nice) > {niceness()} )); do sleep 0.01; done\n"
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return program, lambda: [int(n) for n in notes.read_text().split()] if notes.exists() else []


def test_a_compiler_has_ordinary_priority_while_somebody_waits(
    patient: tuple[Path, Callable[[], list[int]]], may_raise: bool, empty_cache: Path
) -> None:
    program, runs = patient
    alone = module.background
    job = Noting([])
    job.may_end.set()
    alone.submit(job)
    until(lambda: bool(job.found), "the background to begin")
    with options.override(cxx=str(program)):
        compilation = compile_cpp("patience", SOURCE)
        until(lambda: bool(runs()), "the compiler")
        with alone.hurried():
            assert compilation.result(PATIENCE).path.exists()
    assert runs() == [NICENESS] + [niceness()] * (not may_raise)


def test_the_process_that_generates_has_ordinary_priority_while_somebody_waits(may_raise: bool) -> None:
    builder.stop()
    builder.begin()
    first = builder._builder.running()
    try:
        assert niceness(first.pid) == NICENESS
        with module.background.hurried():
            if may_raise:
                assert niceness(first.pid) == niceness()
            else:
                until(first.ended, "the end of the process")
            with pytest.raises(builder.BuilderFailed, match="KeyError"):  # it answers
                builder.ask("nothing that it knows", {})
            second = builder._builder.running()
            assert niceness(second.pid) == niceness() and (second is first) is may_raise
        assert niceness(builder._builder.running().pid) == NICENESS and builder._builder.deaths == 0
    finally:
        builder.stop()


def test_a_request_to_a_process_that_had_yielded_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "other.py"  # it answers while it is not nice
    script.write_text(
        "import json, os, socket, sys, time\n"
        "connection = socket.socket(fileno=int(sys.argv[1]))\n"
        "connection.recv(1 << 20)\n"
        f"while os.getpriority(os.PRIO_PROCESS, 0) > {niceness()}: time.sleep(0.01)\n"
        "connection.sendall(json.dumps({'value': os.getpid(), 'counts': {}}).encode() + b'\\n')\n"
        "time.sleep(60)\n"
    )
    builder.stop()
    monkeypatch.setattr(builder, "SCRIPT", script)
    monkeypatch.setattr(module, "lend_priority", lambda task: False)
    monkeypatch.setattr(module.cpu, "cores_are_taken", lambda: True)
    first, answers = builder._builder.running().pid, []
    asking = threading.Thread(target=lambda: answers.append(builder.ask("program", {})))
    asking.start()
    until(builder._builder.lock.locked, "the request")
    with module.background.hurried():
        asking.join(PATIENCE)
    builder.stop()
    assert answers and answers[0] != first
    assert builder._builder.deaths == 0
