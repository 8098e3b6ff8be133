"""Several processes measure a unit, and more of them where the choice between its candidates stays in doubt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile.campaigns import consensus, trace
from polytile.campaigns.board import Board, Result, Unit, work_of
from polytile.campaigns.spec import Model, Spec
from polytile.campaigns.worker import Bench, work
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store import jsonl
from polytile.store.reading import Record
from tests.campaigns.test_board import filled, unit

PROBLEM = Problem("loop", "k", (("M", 64),), ("float32",), (), "cuda-1")


def records(**us: Sequence[float]) -> list[Record]:
    """What processes have measured of candidates, of which the first is predicted to be the fastest."""
    return [
        Record(f"{name}{number}", float(number), Measurement(
            PROBLEM, name, Config.of({}), name, Outcome.OK, (value * 1e-6,) * 3, predicted=place * 1e-6,
        ))
        for place, (name, values) in enumerate(us.items(), 1)
        for number, value in enumerate(values)
    ]  # fmt: skip


def lines(found: Sequence[Record]) -> str:
    return jsonl.header() + "".join(map(jsonl.line, found))


@dataclass(frozen=True)
class Drawn:
    seconds: float


def test_the_spread_of_processes_is_that_of_normal_numbers() -> None:
    draw = random.Random(5)
    found = [[Drawn(1 + draw.gauss(0, 0.004)) for _ in range(3)] for _ in range(400)]
    assert consensus.spread_of(found) == pytest.approx(0.004, rel=0.1)  # type: ignore[arg-type]
    assert consensus.spread_of([[Drawn(1.0)]]) == 0.0  # type: ignore[list-item]


def test_a_gap_far_from_the_band_is_in_no_doubt() -> None:
    steady = [10.0, 10.01, 10.02]
    assert not consensus.in_doubt(records(first=steady, second=[20.0, 20.02, 20.04]))
    assert not consensus.in_doubt(records(first=[20.0, 20.02, 20.04], second=steady))


def test_a_gap_as_wide_as_the_band_is_in_doubt() -> None:
    assert consensus.in_doubt(records(first=[10.09, 10.10, 10.11], second=[9.99, 10.0, 10.01]))


def test_more_processes_are_sure_of_a_smaller_difference() -> None:
    first, second = [10.10, 10.14, 10.18], [9.96, 10.0, 10.04]
    assert consensus.in_doubt(records(first=first, second=second))
    assert not consensus.in_doubt(records(first=first * 12, second=second * 12))


def measured_by(board: Board, number: int, found: Sequence[Record]) -> str:
    name = replace(unit(1), process=number).id
    board.finish(name, Result("a", 1.0, lines(found)))
    return name


def test_one_process_more_is_asked_for_where_in_doubt(tmp_path: Path) -> None:
    board = filled(tmp_path, *(replace(unit(1), process=number) for number in range(2)))
    near = records(first=[10.10], second=[10.0])
    one = measured_by(board, 0, near)
    assert not consensus.units_in_doubt(board, [one], 2)  # the second process has not measured yet
    two = measured_by(board, 1, records(first=[10.11], second=[10.02]))
    (more,) = consensus.units_in_doubt(board, [one, two], 2)
    assert more == replace(unit(1), process=2)
    assert not consensus.units_in_doubt(board, [one, two], 1)
    board.extend([more])
    assert board.wanted()[-1] == more.id


def test_no_more_processes_than_the_most_are_asked_for(tmp_path: Path) -> None:
    count = 2 * consensus.MOST
    board = filled(tmp_path, *(replace(unit(1), process=number) for number in range(count)))
    names = [measured_by(board, number, records(first=[10.10], second=[10.0 + number * 1e-2])) for number in range(count)]
    assert not consensus.units_in_doubt(board, names, 2)


def test_a_process_measures_the_same_work_once(tmp_path: Path) -> None:
    board = filled(tmp_path, *(replace(unit(1), process=number) for number in range(2)))
    done = []

    class Noted(Bench):
        def measure(self, unit: object) -> str:
            done.append(unit)
            return ""

    def bench() -> Bench:
        return Noted(lambda *about: (print, ()))

    assert work(board, "a", bench())
    assert [each.process for each in map(board.unit, board.wanted())] == [0, 1]
    assert len(done) == 1
    assert not work(board, "b", bench())  # as a process of its own would
    assert len(done) == 2
    assert len({work_of(name) for name in board.wanted()}) == 1


def test_workers_wait_for_a_driver_that_may_add_units(tmp_path: Path) -> None:
    board = filled(tmp_path)
    assert board.is_over()
    board.drive()
    assert not board.is_over()
    board.drive(False)
    assert board.is_over()


def test_a_gpus_worker_compiles_the_next_units_before_it_measures_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polytile.campaigns.worker.AHEAD", 2)
    units = [replace(unit(number, 1.0 / number), kind="cuda") for number in (1, 2, 3, 4)]
    board, done = filled(tmp_path, *units), []

    class Noted(Bench):
        def prepare(self, unit: Unit) -> None:
            done.append(f"compile {unit.sizes['M']}")

        def measure(self, unit: Unit) -> str:
            done.append(f"measure {unit.sizes['M']}")
            return ""

    work(board, "a", Noted(lambda *about: (print, ())))
    assert done == ["compile 2", "compile 3", "measure 1", "compile 4", "measure 2", "measure 3", "measure 4"]


def test_a_unit_that_was_compiled_ahead_gives_the_same_measurements(tmp_path: Path) -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    def resolve(about: object, device: str) -> Any:
        return softmax, [(torch.randn(7, 24),)]

    spec = Spec(models=(Model("m.py:softmax", hints=[{"s0": 40}]),))
    with trace.tracing(str(tmp_path / "store"), "thorough"):
        (traced,) = trace.trace(spec, resolve, print).units.values()
    bench = Bench(resolve)
    bench.prepare(traced)
    assert len(bench._ahead) == 1
    ahead = bench.measure(traced)
    assert not bench._ahead
    fresh = Bench(resolve)
    found = [jsonl.parse(text.encode(), "lines").records for text in (ahead, fresh.measure(traced))]
    names = [{record.measurement.candidate for record in each} for each in found]
    assert names[0] == names[1] and len(names[0]) > 1
    for each in (bench, fresh):
        each.close()
