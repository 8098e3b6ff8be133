"""Measurements carried from store to store: as JSON lines, by merging, and as Kernel Tuner's T4 results."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytile.errors import StoreError
from polytile.facts import OF_PROBLEMS, read
from polytile.problem import Config, Measurement, Outcome, Problem, Resources
from polytile.store import Store, jsonl, kernel_tuner, transfer
from polytile.store.place import place_of
from polytile.store.reading import Record, records
from tests.store.helpers import KERNEL_TUNERS

Make = Callable[..., Measurement]

TEXT = st.text(max_size=8)
SIZES = st.dictionaries(TEXT, st.integers(-(2**40), 2**40), max_size=3).map(lambda sizes: tuple(sizes.items()))
SCALARS = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), TEXT, st.booleans())
SECONDS = st.floats(0, 1e3)
FACTS = st.dictionaries(TEXT, TEXT, max_size=3).map(lambda facts: tuple(sorted(facts.items())))
WRITTEN = st.sampled_from(["k", "n1%16", "x@64", "wide", "threads=2"])
LAYOUTS = (TEXT | WRITTEN).map(lambda text: read(text, OF_PROBLEMS))
MEASUREMENTS = st.builds(
    Measurement,
    st.builds(Problem, TEXT, TEXT, SIZES, st.tuples(TEXT), st.tuples(LAYOUTS, LAYOUTS), TEXT),
    TEXT,
    st.builds(Config, st.dictionaries(TEXT, SCALARS, max_size=3).map(lambda d: tuple(sorted(d.items()))), SIZES),
    TEXT,
    st.sampled_from(Outcome),
    st.lists(SECONDS, max_size=4).map(tuple),
    st.none() | st.floats(allow_nan=False),
    st.none() | SECONDS,
    TEXT,
    TEXT,
    FACTS,
    TEXT,
    st.none() | SECONDS,
    st.builds(Resources, *[st.none() | st.integers(0, 2**31)] * 3),
    st.dictionaries(TEXT, SCALARS, max_size=3).map(lambda state: tuple(sorted(state.items()))),
    FACTS,
)


def filled(path: Path, *measurements: Measurement) -> Path:
    store = Store(path)
    store.append(*measurements)
    store.close()
    return path


def uids(path: Path) -> set[str]:
    return {record.uid for record in records(path)}


@pytest.fixture
def store(tmp_path: Path, measurement: Make) -> Path:
    failed = measurement(3, outcome=Outcome.WRONG)
    return filled(tmp_path / "a", measurement(1), measurement(2), dataclasses.replace(failed, max_error=math.inf))


# JSON lines.


@given(MEASUREMENTS)
def test_every_measurement_survives_a_line_and_a_t4_result_whole(measurement: Measurement) -> None:
    record = Record("uid", 12.5, measurement)
    (of_line,) = jsonl.parse(jsonl.line(record).encode(), "file").records
    (of_result,) = kernel_tuner.parse(json.loads(kernel_tuner.text([record])), "file").records
    for again in (of_line, of_result):
        assert again == record and repr(again) == repr(record)
        assert again.measurement.problem.key == measurement.problem.key
        assert again.measurement.machine == measurement.machine


def test_an_export_imported_elsewhere_is_the_same_set(tmp_path: Path, store: Path) -> None:
    done = transfer.export_lines(store, tmp_path / "lines")
    assert (done.new, done.known, done.damaged, done.partial) == (3, 0, (), "")
    done = transfer.import_file(tmp_path / "lines", tmp_path / "b")
    assert (done.new, done.known) == (3, 0)
    assert records(tmp_path / "b") == records(store)


def test_exporting_and_importing_again_changes_nothing(tmp_path: Path, store: Path) -> None:
    lines = tmp_path / "lines"
    for new in (3, 0):
        assert transfer.export_lines(store, lines).new == new
    text = lines.read_bytes()
    for new in (3, 0):
        assert transfer.import_file(lines, tmp_path / "b").new == new
    assert transfer.export_lines(tmp_path / "b", lines).new == 0 and lines.read_bytes() == text


def test_an_export_only_adds_to_what_stands_in_the_file(tmp_path: Path, store: Path, measurement: Make) -> None:
    lines = tmp_path / "lines"
    transfer.export_lines(store, lines)
    before = lines.read_bytes()
    filled(store, measurement(4))
    assert str(transfer.export_lines(store, lines)) == "1 new, 3 known"
    assert lines.read_bytes().startswith(before) and lines.read_bytes().count(b"\n") == 5


def test_concatenated_files_are_a_file(tmp_path: Path, store: Path, measurement: Make) -> None:
    transfer.export_lines(store, tmp_path / "1")
    transfer.export_lines(filled(tmp_path / "b", measurement(9)), tmp_path / "2")
    (tmp_path / "both").write_bytes(b"\n".join(((tmp_path / "1").read_bytes(), (tmp_path / "2").read_bytes())))
    transfer.import_file(tmp_path / "both", tmp_path / "c")
    assert uids(tmp_path / "c") == uids(store) | uids(tmp_path / "b")


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_a_partial_last_line_is_left_out_and_told(tmp_path: Path, store: Path, cut: int) -> None:
    lines = tmp_path / "lines"
    transfer.export_lines(store, lines)
    whole = lines.read_bytes()
    lines.write_bytes(whole[:-cut])
    done = transfer.import_file(lines, tmp_path / "b")
    finished = cut == 1  # only the line's end is missing
    assert done.new == (3 if finished else 2) and not done.damaged
    assert bool(done.partial) != finished and (finished or "last line, number 4, was never finished" in done.partial)
    done = transfer.export_lines(store, lines)  # the next export mends it
    assert done.new == (0 if finished else 1) and bool(done.partial) != finished
    assert transfer.import_file(lines, tmp_path / "c").new == 3
    assert uids(tmp_path / "c") == uids(store)


def test_a_damaged_line_costs_that_line(tmp_path: Path, store: Path) -> None:
    lines = tmp_path / "lines"
    transfer.export_lines(store, lines)
    rows = lines.read_text().splitlines(keepends=True)
    rows[1] = rows[1].replace('"taken_at"', '"taken"')
    rows[2] = rows[2][:50] + "\n"
    lines.write_text("".join(rows))
    done = transfer.import_file(lines, tmp_path / "b")
    assert done.new == 1 and not done.partial
    assert "line 2 cannot be read (it has no 'taken_at')" in done.damaged[0] and "line 3" in done.damaged[1]


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"a,b,c\n1,2,3\n", "does not hold exported measurements"),
        (b'{"format": "something else", "version": 1}\n', "does not hold exported measurements but 'something else'"),
        (b'{"format": "polytile measurements", "version": 2}\n', "in version 2, and this polytile reads version 1"),
        (b'{"uid": "partial', "does not hold exported measurements"),
    ],
)
def test_a_foreign_file_is_an_error_and_no_store_is_made(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "lines").write_bytes(content)
    with pytest.raises(StoreError, match=problem):
        transfer.import_file(tmp_path / "lines", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_two_exporters_of_one_file_write_every_measurement_once(tmp_path: Path, measurement: Make) -> None:
    store = filled(tmp_path / "a", *[measurement(m) for m in range(300)])
    code = (
        f"import sys, pathlib; sys.path[:0] = {sys.path!r}; import tests.store.alone; from polytile.store import transfer\n"
        "transfer.export_lines(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(store), str(tmp_path / "lines")]
    exporters = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in exporters] == [0, 0, 0]
    assert (tmp_path / "lines").read_text().count("\n") == 301
    assert transfer.import_file(tmp_path / "lines", tmp_path / "b").new == 300


# Merging.


def test_merging_in_either_direction_gives_the_same_set(tmp_path: Path, measurement: Make) -> None:
    a = filled(tmp_path / "a", measurement(1), measurement(2))
    b = filled(tmp_path / "b", measurement(2), measurement(3))
    assert transfer.merge(a, tmp_path / "both").new == 2 and transfer.merge(b, tmp_path / "both").new == 2
    assert transfer.merge(a, b).new == 2 and transfer.merge(b, a).new == 2
    assert records(a) == records(b) == records(tmp_path / "both")
    assert str(transfer.merge(a, b)) == "0 new, 4 known"


def test_a_running_program_sees_what_is_merged_into_its_store(tmp_path: Path, measurement: Make) -> None:
    other = filled(tmp_path / "b", measurement(2))
    running = Store(tmp_path / "a")
    running.append(measurement(1))
    wanted = measurement(2)
    assert not running.exact(wanted.problem, wanted.environment)
    transfer.merge(other, tmp_path / "a")
    assert running.refresh() == 1 and len(running.exact(wanted.problem, wanted.environment)) == 1


def test_a_store_is_read_while_another_process_has_it_open(tmp_path: Path, measurement: Make) -> None:
    writer = Store(tmp_path / "a")
    writer.append(measurement(1))  # still in the write-ahead log
    assert len(records(tmp_path / "a")) == 1


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"?" * 5000, b"x"])
def test_what_is_no_store_is_neither_read_nor_written_nor_moved(tmp_path: Path, store: Path, content: bytes) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(content)
    for source, target in ((foreign, store), (store, foreign)):
        with pytest.raises(StoreError, match="foreign"):
            transfer.merge(source, target)
    assert foreign.read_bytes() == content and not list(tmp_path.glob("*.bad"))
    assert len(records(store)) == 3


def test_a_missing_store_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no measurement store .*none; run a compiled program"):
        records(tmp_path / "none")


def test_a_cache_directory_stands_for_the_store_in_it(tmp_path: Path) -> None:
    assert place_of(tmp_path) == tmp_path / "store.sqlite3"
    assert place_of(tmp_path / "x.sqlite3") == tmp_path / "x.sqlite3"


# T4.


@given(MEASUREMENTS)
def test_every_measurement_is_a_result_as_the_schema_asks(measurement: Measurement) -> None:
    content = json.loads(kernel_tuner.text([Record("uid", 12.5, measurement)]), parse_constant=pytest.fail)
    assert content["schema_version"] == "1.0.0"
    (result,) = content["results"]
    assert {"configuration", "times", "invalidity", "correctness"} <= result.keys()
    assert isinstance(result["configuration"], dict) and isinstance(result["timestamp"], str)
    assert result["invalidity"] in ("timeout", "compile", "runtime", "correctness", "constraints", "correct")
    assert result["correctness"] in (0, 1) and isinstance(result["objectives"], list)
    assert isinstance(result["times"]["runtimes"], list)
    assert isinstance(result["times"].get("compilation_time", 0.0), (int, float))
    for item in result["measurements"]:
        assert isinstance(item["name"], str) and isinstance(item["unit"], str)
        assert isinstance(item["value"], (int, float, str, list))


def test_t4_has_times_in_milliseconds_and_sizes_as_parameters(measurement: Make) -> None:
    result = kernel_tuner.result(Record("uid", 0.0, measurement(64, seconds=2e-3)))
    assert result["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert result["configuration"]["size.M"] == 64 and result["configuration"]["config.threads"] == 1
    assert result["times"]["runtimes"][0] == pytest.approx(2.0)
    assert {m["name"]: m["unit"] for m in result["measurements"]} == {"time": "ms", "noise": "", "max_error": ""}
    wrong = kernel_tuner.result(Record("uid", 0.0, measurement(outcome=Outcome.WRONG)))
    assert (wrong["invalidity"], wrong["correctness"]) == ("correctness", 0)


def test_a_store_survives_t4_whole(tmp_path: Path, store: Path) -> None:
    (tmp_path / "results.json").write_text(kernel_tuner.text(records(store)))
    for new in (3, 0):
        assert transfer.import_file(tmp_path / "results.json", tmp_path / "b").new == new
    assert records(tmp_path / "b") == records(store)
    assert kernel_tuner.text(records(tmp_path / "b")) == kernel_tuner.text(records(store))


def test_another_tuners_results_are_measurements_for_replays(tmp_path: Path) -> None:
    file = tmp_path / "convolution.json"
    file.write_text(json.dumps(KERNEL_TUNERS))
    for new in (3, 0):
        assert transfer.import_file(file, tmp_path / "s").new == new
    found = {record.measurement.outcome: record.measurement for record in records(tmp_path / "s")}
    fast, failed, wrong = (found[outcome] for outcome in (Outcome.OK, Outcome.COMPILE_ERROR, Outcome.WRONG))
    assert fast.samples == (1.25e-3, 1.5e-3, 1e-3) and fast.compile_seconds == 0.8125
    assert fast.problem.family == "t4" and fast.problem.kernel == "convolution" and fast.config["block_size_x"] == 64
    assert failed.compile_seconds == 3e-3 and not wrong.samples and wrong.config["tile"] == "[1, 2]"
    again = json.loads(kernel_tuner.text(records(tmp_path / "s")))["results"]
    assert sorted(result["invalidity"] for result in again) == ["compile", "correct", "correctness"]


def test_a_damaged_result_costs_that_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"results": [*KERNEL_TUNERS["results"], {"configuration": {}}, 7]}))
    done = transfer.import_file(file, tmp_path / "s")
    assert done.new == 3 and len(done.damaged) == 2
    assert "result 4 cannot be read (it has no 'times')" in done.damaged[0]
    file.write_text(json.dumps({"results": [7]}))
    with pytest.raises(StoreError, match="does not hold T4 results"):
        transfer.import_file(file, tmp_path / "none")
    assert not (tmp_path / "none").exists()
