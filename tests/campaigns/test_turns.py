"""Workers that share a GPU take turns on it: one tries candidates, the others do what the host has to do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polytile.campaigns import places
from polytile.campaigns.board import Board, Result
from polytile.campaigns.turns import Turn, wait_for_compilers
from polytile.campaigns.worker import Bench, result_of, work
from tests.campaigns.test_board import filled, unit
from tests.waiting import PATIENCE, until


def nothing() -> None:
    """What a device without work takes to settle."""


def take_turns(path: Path, log: Path, count: int) -> None:
    turn = Turn(path, nothing)
    for _ in range(count):
        with turn.taken(), open(log, "a") as file:
            for word in ("begin", "end"):
                file.write(f"{os.getpid()} {word}\n")
                file.flush()


def hold(path: Path, begun: Any) -> None:
    with Turn(path, nothing).taken():
        begun.set()
        signal.pause()


def test_turns_of_processes_do_not_overlap(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=take_turns, args=(tmp_path / "turn", tmp_path / "log", 50)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    said = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len(said) == 200
    assert all(begin == [end[0], "begin"] and end[1] == "end" for begin, end in zip(said[::2], said[1::2], strict=True))


def test_the_turn_of_a_worker_that_is_killed_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    worker = context.Process(target=hold, args=(tmp_path / "turn", begun))
    worker.start()
    assert begun.wait(PATIENCE)
    worker.kill()
    with Turn(tmp_path / "turn", nothing).taken():
        pass
    worker.join(PATIENCE)


def test_a_turn_within_a_turn_is_the_same(tmp_path: Path) -> None:
    settled: list[int] = []
    turn = Turn(tmp_path / "turn", lambda: settled.append(1))
    with turn.taken():
        with turn.taken():
            pass
        assert not settled
    assert settled == [1] and turn.held > 0


def test_a_turn_ends_even_if_the_device_fails(tmp_path: Path) -> None:
    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(ValueError, match="the trial"), Turn(tmp_path / "turn", fails).taken():
        raise ValueError("the trial")
    with Turn(tmp_path / "turn", nothing).taken():
        pass


def test_waiting_for_a_turn_counts_from_its_beginning(tmp_path: Path) -> None:
    first, second, ended = Turn(tmp_path / "turn", nothing), Turn(tmp_path / "turn", nothing), threading.Event()

    def wait() -> None:
        with second.taken():
            ended.set()

    with first.taken():
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: second.waited > 0, "the other waits")
        assert not ended.is_set()
    thread.join(PATIENCE)
    assert ended.is_set() and second.waited > 0 and first.held >= second.waited / 2


class Compiling:
    """A candidate that is compiled once it is told so."""

    def __init__(self) -> None:
        self.prepared, self.done, self.actions = False, False, list[Any]()

    def prepare(self) -> None:
        self.prepared = True

    def ready(self) -> bool:
        return self.done

    def failed(self) -> bool:
        return False

    def when_ready(self, action: Any) -> None:
        self.actions.append(action)


def test_compilers_are_waited_for_before_a_turn() -> None:
    ready, late = Compiling(), Compiling()
    ready.done = True
    candidates: Any = [ready, late]
    waiting = threading.Thread(target=wait_for_compilers, args=(candidates,))
    waiting.start()
    until(lambda: late.actions, "its compiler is waited for")
    assert ready.prepared and late.prepared and waiting.is_alive()
    late.actions[0]()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_units_that_are_compiled_come_before_others(tmp_path: Path) -> None:
    units = [replace(unit(number, 1.0 / number), kind="cuda") for number in (1, 2, 3)]
    board, done = filled(tmp_path, *units), []

    class Noted(Bench):
        def prepare(self, unit: Any) -> None:
            self._ahead[unit.id, self.place] = None, [Compiling()] if unit.sizes["M"] == 2 else []  # type: ignore[assignment]

        def measure(self, unit: Any) -> str:
            done.append(unit.sizes["M"])
            return ""

    work(board, "a", Noted(lambda *about: (print, ())))
    assert done == [1, 3, 2]


def test_each_gpu_has_several_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    class Noted(places.Local):
        def _start(self, number: int) -> None:
            started.append(self.devices[number])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    Noted(Board(tmp_path, make=True), "cuda")
    Noted(Board(tmp_path), "cuda", 1)
    Noted(Board(tmp_path), "cpu")
    assert started == ["4"] * places.A_GPU + ["7"] * places.A_GPU + ["4"] * places.A_GPU + [""]


def test_a_unit_takes_as_much_of_the_budget_as_of_its_device(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1), unit(2))
    gpu, cpu = board.wanted()
    board.finish(gpu, Result("a", 3.0, stages={"checking": 0.5, "measuring": 0.25}, device_seconds=1.0))
    board.finish(cpu, Result("b", 2.0))
    status = board.status()
    assert (status.seconds, status.device_seconds, status.trying) == (5.0, 3.0, 0.75)


def test_a_result_says_what_its_turns_took(tmp_path: Path) -> None:
    class Turned(Bench):
        def measure(self, unit: Any) -> str:
            self._turn = self._turn or Turn(tmp_path / "turn", nothing)
            with self._turn.taken():
                return ""

    bench = Turned(lambda *about: (print, ()))
    first, second = result_of(unit(1), bench), result_of(unit(2), bench)
    assert first.device_seconds is not None and 0 < first.device_seconds <= first.seconds
    assert second.device_seconds is not None and 0 < second.device_seconds <= second.seconds
