"""`polytile store`: what it shows, what it copies, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from polytile.problem import Outcome
from polytile.store.reading import records
from tests.cli.helpers import filled, measured, named, run


@pytest.fixture
def store(empty_cache: Path) -> Path:
    """The store in the cache directory in force, with two kernels."""
    path = filled(
        empty_cache / "store.sqlite3",
        measured(),
        measured(candidate="persistent t1", seconds=2e-5),
        measured((("M", 7), ("N", 512)), outcome=Outcome.WRONG),
        measured((("K", 3),), kernel="e92d9fa160f0997e"),
    )
    named(path, "softmax_228d962c")
    return path


def test_every_command_says_in_sentences_what_it_does() -> None:
    commands = [
        *[("store", name) for name in ("ls", "show", "export", "import", "merge", "check", "gc")],
        ("plan", "show"), ("plan", "diff"), ("why",), ("tune",), ("doctor",), ("report",),
    ]  # fmt: skip
    for words in commands:
        result = run(*words, "--help")
        assert result.exit_code == 0 and "." in result.output.split("Options")[0].split("Arguments")[0], words


def test_ls_counts_by_device_and_environment(store: Path) -> None:
    filled(store, measured(torch="1.0"))
    output = run("store", "ls").output
    assert str(store) in output and "torch 1.0" in output
    counts = [[cell.strip() for cell in row.split("|")[3:6]] for row in output.splitlines() if row.startswith("| cpu")]
    assert sorted(counts) == [["1", "1", "1"], ["2", "3", "4"]]


def test_show_lists_kernels_then_the_measurements_of_those_that_match(store: Path) -> None:
    assert "softmax_228d962c" in run("store", "show").output and "loop_e92d9fa1" in run("store", "show").output
    for word in ("softmax", "228d"):
        output = run("store", "show", word).output
        assert "M=64 N=512" in output and "20.0" in output and "wrong result" in output and "K=3" not in output


def test_show_of_an_unknown_kernel_names_those_there_are(store: Path) -> None:
    result = run("store", "show", "relu")
    assert result.exit_code == 2
    assert "no measurement of a kernel called 'relu'; it has loop_e92d9fa1, softmax_228d962c." in result.output


def test_a_missing_store_is_one_sentence_and_a_failure(empty_cache: Path, tmp_path: Path) -> None:
    for words in (["ls"], ["show"], ["check"], ["gc"], ["export", tmp_path / "x"], ["merge", tmp_path / "none"]):
        result = run("store", *words)
        assert result.exit_code == 2 and result.output.startswith("polytile: there is no measurement store"), words
    assert not (tmp_path / "x").exists()


def test_an_unreadable_store_is_one_sentence_and_stays_as_it_is(empty_cache: Path) -> None:
    path = empty_cache / "store.sqlite3"
    path.write_bytes(b"something else" * 100)
    for command in ("ls", "show", "check", "gc"):
        result = run("store", command)
        assert result.exit_code == 2 and "cannot be read" in result.output and "Traceback" not in result.output
    assert path.read_bytes() == b"something else" * 100


def test_export_and_import_carry_a_store_elsewhere(store: Path, tmp_path: Path) -> None:
    assert "4 measurements added" in run("store", "export", tmp_path / "lines").output
    assert "0 measurements added" in run("store", "export", tmp_path / "lines").output
    result = run("store", "import", tmp_path / "lines", "--store", tmp_path / "other")
    assert result.exit_code == 0 and "4 measurements added" in result.output
    assert records(tmp_path / "other") == records(store)
    assert "0 measurements added" in run("store", "import", tmp_path / "lines").output


def test_an_import_makes_the_cache_directory_with_the_store_in_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("store", "export", tmp_path / "lines")
    monkeypatch.setenv("POLYTILE_CACHE_DIR", str(tmp_path / "new"))
    assert f"4 measurements added to {tmp_path / 'new' / 'store.sqlite3'}" in run("store", "import", tmp_path / "lines").output
    assert records(tmp_path / "new" / "store.sqlite3") == records(store)


def test_an_export_to_what_is_no_file_is_refused(store: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for format in ("jsonl", "t4"):
        result = run("store", "export", tmp_path / "pipe", "--format", format)
        assert result.exit_code == 2 and f"written to {tmp_path / 'pipe'}: it exists and is not a file." in result.output
        assert (tmp_path / "pipe").is_fifo()


def test_t4_results_carry_a_store_elsewhere_too(store: Path, tmp_path: Path) -> None:
    assert "4 measurements written" in run("store", "export", tmp_path / "t4.json", "--format", "t4").output
    result = run("store", "import", tmp_path / "t4.json", "--store", tmp_path / "other")
    assert result.exit_code == 0 and "4 measurements added" in result.output
    assert records(tmp_path / "other") == records(store)


def test_import_tells_of_a_partial_line_and_fails_for_a_damaged_one(store: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    run("store", "export", lines)
    lines.write_bytes(lines.read_bytes()[:-30])
    result = run("store", "import", lines, "--store", tmp_path / "b")
    assert result.exit_code == 0 and "was never finished and is left out" in result.output
    lines.write_bytes(lines.read_bytes() + b"\n")
    result = run("store", "import", lines, "--store", tmp_path / "c")
    assert result.exit_code == 1 and "cannot be read" in result.output and "3 measurements added" in result.output


def test_import_of_a_missing_or_foreign_file_is_a_failure(store: Path, tmp_path: Path) -> None:
    result = run("store", "import", tmp_path / "none")
    assert result.exit_code == 2 and "No such file" in result.output
    (tmp_path / "foreign").write_text("a,b\n1,2\n")
    result = run("store", "import", tmp_path / "foreign")
    assert result.exit_code == 2 and "does not hold exported measurements" in result.output


def test_t4_is_exported_for_everything_or_for_one_kernel(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "t4.json"
    for words, number in (((), 4), (("--kernel", "softmax"), 3)):
        assert run("store", "export", "--format", "t4", file, *words).exit_code == 0
        assert len(json.loads(file.read_text())["results"]) == number
    result = run("store", "export", file, "--kernel", "softmax")
    assert result.exit_code == 2 and "add --format t4" in result.output


def test_merge_adds_other_stores_and_leaves_them_alone(store: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    other = filled(tmp_path / "cache" / "store.sqlite3", measured((("K", 9),)))
    third = filled(tmp_path / "third", measured((("K", 10),)), measured((("K", 11),)))
    output = run("store", "merge", tmp_path / "cache", third).output
    assert "1 measurements added" in output and "2 measurements added" in output
    assert (len(records(store)), len(records(other)), len(records(third))) == (7, 1, 2)


def test_check_fails_where_something_was_edited(store: Path) -> None:
    result = run("store", "check")
    assert result.exit_code == 0 and "| yes" in result.output
    with sqlite3.connect(store) as connection:
        connection.execute("DROP TRIGGER measurements_stay")
        connection.execute("UPDATE measurements SET seconds = 0.5 WHERE seconds IS NOT NULL")
    connection.close()
    result = run("store", "check")
    assert result.exit_code == 1 and "does not follow from the rest" in result.output


def test_gc_shows_first_and_removes_when_asked(store: Path) -> None:
    assert "can still be used" in run("store", "gc").output
    filled(store, measured(torch="1.0"), measured(torch="1.0"), measured(source="new"))
    output = run("store", "gc", "--days", "0").output
    assert "4 measurements would go; nothing was removed" in output
    assert "torch 1.0" in output and "its source has changed since" in output
    assert len(records(store)) == 7
    assert "4 measurements removed" in run("store", "gc", "--days", "0", "--remove").output
    assert sorted(r.measurement.candidate + " " + r.measurement.source_hash for r in records(store)) == [
        "looped t1 abc", "looped t1 new", "persistent t1 abc"
    ]  # fmt: skip
