"""A campaign's folder: units are taken once, found again, and never lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from polytile.campaigns import board as boards
from polytile.campaigns.board import Board, Result, Unit
from polytile.errors import CampaignError


def unit(number: int, weight: float = 1.0) -> Unit:
    return Unit("k", {"n": number}, {"M": number}, {}, "cpu", "cpu-1", (("torch", "2"),), 1, 60.0, weight)


def filled(folder: Path, *units: Unit) -> Board:
    board = Board(folder, make=True)
    for each in units:
        board.add(each)
    board.order(units)
    return board


def lapse(board: Board, name: str) -> None:
    path = board.root / "taken" / f"{name}.json"
    before = path.stat().st_mtime - boards.LEASE_SECONDS - 1
    os.utime(path, (before, before))


def test_a_unit_is_read_as_it_was_written(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(3))
    assert board.unit(unit(3).id) == unit(3)


def test_what_comes_often_is_taken_first(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1, 2.0), unit(2, 9.0))
    assert [board.take("a"), board.take("b"), board.take("c")] == [unit(2).id, unit(1).id, None]


def test_of_what_comes_equally_often_that_with_most_candidates_is_taken_first(tmp_path: Path) -> None:
    short, long = replace(unit(1), candidates=3), replace(unit(2), candidates=40)
    for each in range(2):
        board = filled(tmp_path / str(each), *((short, long) if each else (long, short)))
        assert board.take("a") == long.id


def test_a_campaign_is_over_when_all_is_done_or_it_is_stopped(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1), unit(2))
    for number in (1, 2):
        assert not board.is_over()
        board.finish(unit(number).id, Result("a", 1.0, "lines"))
    assert board.is_over()
    board.order([unit(1), unit(2), unit(3)])
    assert not board.is_over()
    board.stop()
    assert board.is_over()


def test_many_workers_take_each_unit_once(tmp_path: Path) -> None:
    board = filled(tmp_path, *map(unit, range(60)))
    with ThreadPoolExecutor(8) as pool:
        taken = [name for name in pool.map(lambda n: board.take(f"w{n}"), range(80)) if name]
    assert sorted(taken) == sorted(unit(number).id for number in range(60))


def test_a_lease_without_signs_of_life_lapses_and_its_unit_is_taken_again(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1))
    name = board.take("a")
    board.lose_lapsed()
    assert board.take("b") is None
    lapse(board, str(name))
    board.lose_lapsed()
    assert board.take("b") == name
    assert board.status().lost == 1


def test_a_unit_over_which_workers_end_is_given_up(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1))
    for _ in range(boards.MOST_LOSSES):
        board.lose(str(board.take("a")))
    assert board.take("b") is None
    status = board.status()
    assert "ended or hung" in status.failed[unit(1).id]
    assert status.left == 0
    board.forget_failures()
    assert board.take("b") == unit(1).id


def test_the_first_result_stays(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1))
    assert board.finish(unit(1).id, Result("a", 1.0, "lines"))
    assert not board.finish(unit(1).id, Result("b", 2.0, "others"))
    assert board.result(unit(1).id).worker == "a"
    assert board.take("c") is None


def test_a_campaign_that_is_stopped_gives_no_units(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1))
    board.stop()
    assert board.take("a") is None
    board.stop(False)
    assert board.take("a") == unit(1).id


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="is no campaign's folder"):
        Board(tmp_path)


def test_a_unit_that_one_worker_compiles_is_taken_by_others_last(tmp_path: Path) -> None:
    board = filled(tmp_path, unit(1), unit(2, 0.5), unit(3, 0.2), unit(4, 0.1))
    assert board.take("a") == unit(1).id
    assert board.claim_next("a") == unit(2).id
    assert board.take("b") == unit(3).id
    assert board.claim_next("b") == unit(4).id
    assert board.claim_next("b") is None
    assert board.take("b", first=[unit(1).id, unit(4).id]) == unit(4).id
    assert board.take("b") == unit(2).id
    board.finish(unit(2).id, Result("b", 1.0, "lines"))
    assert board.take("a", first=[unit(2).id]) is None
    assert not (tmp_path / "ahead" / f"{unit(2).id}.json").exists()
