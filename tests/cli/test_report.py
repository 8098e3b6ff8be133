"""`polytile report`: what it writes, and what it says when it cannot."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from polytile.campaigns.board import Board, Result, Unit
from polytile.store import jsonl
from polytile.store.reading import records
from tests.cli.helpers import DIGEST, filled, measured, named, run


@pytest.fixture
def store(empty_cache: Path) -> Path:
    """The store in the cache directory in force, with two kernels."""
    path = filled(
        empty_cache / "store.sqlite3",
        measured(),
        measured(candidate="persistent t1", seconds=2e-5),
        measured((("M", 7), ("N", 512))),
        measured((("K", 3),), kernel="e92d9fa160f0997e"),
    )
    named(path, "softmax_228d962c")
    return path


def test_the_page_of_the_store_in_force(store: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    result = run("report", "-o", output)
    assert result.exit_code == 0 and f"{output} written" in result.output
    assert "softmax_228d962c" in output.read_text() and f"Report on {store}" in output.read_text()
    assert [path.name for path in tmp_path.glob("report*")] == ["report.html"]


def test_text_and_csv_say_the_same(store: Path, tmp_path: Path) -> None:
    text = run("report", store, "--text").output
    assert "polytile why 228d962c0c6a657c M=64 N=512" in text and "What the numbers mean" in text
    result = run("report", store, "--csv", "-o", tmp_path / "tables")
    assert result.exit_code == 0 and "candidates.csv written" in result.output
    assert (tmp_path / "tables" / "candidates.csv").read_text().count("\n") == 5
    assert f"polytile why {DIGEST} M=64 N=512" in (tmp_path / "tables" / "sizes.csv").read_text()


def test_every_command_in_it_runs(store: Path) -> None:
    commands = [cell.strip() for row in run("report", "--text").output.splitlines() for cell in row.split("|")]
    for command in [cell for cell in commands if cell.startswith("polytile why")]:
        result = run(*command.split()[1:])
        assert result.exit_code == 0 and "measured at these sizes" in result.output, command


def test_kernel_leaves_the_others_out(store: Path) -> None:
    text = run("report", "--text", "--kernel", "softmax").output
    assert "softmax_228d962c" in text and "loop_e92d9fa1" not in text
    result = run("report", "--kernel", "nothing")
    assert result.exit_code == 2 and "--kernel 'nothing'" in result.output


def test_two_stores_are_compared(store: Path, tmp_path: Path) -> None:
    after = filled(tmp_path / "after.sqlite3", measured(seconds=3e-5), measured((("M", 7), ("N", 512))))
    text = run("report", store, after, "--text").output
    assert "What changed" in text and "1 slower, 0 faster, 1 within noise; 1 only before, 0 only after" in text


def test_an_exported_file_is_reported_and_its_damage_said(store: Path, tmp_path: Path) -> None:
    exported = tmp_path / "measurements.jsonl"
    run("store", "export", exported)
    exported.write_text(exported.read_text() + '{"uid": 1}\n')
    result = run("report", exported, "--text")
    assert result.exit_code == 0 and "polytile replay" in result.output and "line 6" in result.output


def newer(path: Path) -> Path:
    filled(path, measured())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    return path


def test_what_cannot_be_is_one_sentence(store: Path, tmp_path: Path) -> None:
    empty = filled(tmp_path / "empty.sqlite3", measured())
    with sqlite3.connect(empty) as connection:
        connection.execute("DELETE FROM measurements")
    other, text = tmp_path / "other.sqlite3", tmp_path / "project.toml"
    text.write_text("[project]\n")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    for words, says in [
        ((tmp_path / "none.sqlite3",), "there is no measurement store"),
        ((empty,), "has no measurements; run a compiled program"),
        ((newer(tmp_path / "newer.sqlite3"),), "has schema 99"),
        ((other,), "is no measurement store of polytile"),
        ((store, "-o", tmp_path / "away" / "report.html"), f"there is no folder {tmp_path / 'away'}; make it"),
        ((store, "-o", tmp_path), "it exists and is not a file"),
        ((store, "-o", store), "is what the report is on"),
        ((store, "--csv", "-o", tmp_path / "a" / "b"), f"there is no folder {tmp_path / 'a'}"),
        ((store, "--csv", "-o", empty), "cannot be written"),
        ((store, store, store), "merge them first"),
        ((text,), f"{text} holds nothing to report on. A report takes a store"),
        (("mysql://there",), "neither; write postgresql://"),
        ((store, "--text", "--csv"), "leave one of them out"),
    ]:
        result = run("report", *words)
        assert result.exit_code == 2 and says in " ".join(result.output.replace("│", " ").split()), (words, result.output)
    assert "softmax" in run("store", "show").output  # the store is as it was


def the_command_sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Gives the command a clock of its own: `time.sleep` itself belongs to the background's threads as well."""
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr("polytile.cli.report.time", clock)


def test_a_page_is_kept_up_to_date_until_it_is_stopped(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, slept = tmp_path / "live.html", []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert ("e92d9fa160f0997e" in output.read_text()) and '"every":3.0' in output.read_text()
        assert ("f" * 16 in output.read_text()) == (len(slept) == 2)
        if len(slept) == 2:
            raise KeyboardInterrupt
        filled(store, measured((("K", 3),), kernel="f" * 16))

    the_command_sleeps(monkeypatch, sleep)
    result = run("report", "-o", output, "--every", 3)
    assert result.exit_code == 0 and "every 3 s" in result.output and len(slept) == 2 and max(slept) <= 3


def test_a_page_on_a_store_that_is_not_there_yet_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later, output = tmp_path / "later.sqlite3", tmp_path / "live.html"

    def sleep(seconds: float) -> None:
        if output.exists():
            raise KeyboardInterrupt
        filled(later, measured())

    the_command_sleeps(monkeypatch, sleep)
    assert run("report", later, "-o", output, "--every", 1).exit_code == 0 and output.exists()
    for words in (("--text",), ("--csv",)):
        assert "leave out" in run("report", later, "--every", 1, *words).output


def campaign(folder: Path, store: str = "") -> Board:
    """A campaign with two units, of which one has a result."""
    board = Board(folder, make=True, store=store)
    units = [Unit(f"softmax_{DIGEST[:8]}", {}, {"M": m, "N": 512}, {}, "cpu", "cpu", (), 1, 60.0) for m in (64, 7)]
    for unit in units:
        board.add(unit)
    board.order(units)
    own = filled(folder / "own.sqlite3", measured(), measured(candidate="persistent t1", seconds=2e-5))
    board.finish(units[0].id, Result("gpu0", 4.0, jsonl.header() + "".join(map(jsonl.line, records(own)))))
    return board


def test_a_campaign_is_reported_with_its_workers_and_how_far_it_is(tmp_path: Path) -> None:
    board = campaign(tmp_path / "serving", store="postgresql://fleet@db/polytile")
    text = run("report", board.root, "--text").output
    assert "1 of 2 units measured, 1 left" in text
    (span,) = [row for row in text.splitlines() if row.startswith("| gpu0")]
    assert "4.0" in span and f"softmax_{DIGEST[:8]} M=64 N=512" in span
    assert f"polytile why {DIGEST} M=64 N=512 --store postgresql://fleet@db/polytile" in text
    assert run("report", board.root, "-o", tmp_path / "report.html").exit_code == 0


def test_a_page_on_a_campaign_is_kept_up_to_date_before_its_store_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, output = campaign(tmp_path / "serving"), tmp_path / "live.html"

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    the_command_sleeps(monkeypatch, sleep)
    assert run("report", board.root, "-o", output, "--every", 1).exit_code == 0
    assert not (board.root / "store.sqlite3").exists() and "gpu0" in output.read_text()
