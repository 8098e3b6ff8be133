"""`polytile replay`: the selector judged on measurements, in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import filled, measured, named, run

MATRIX = Path(__file__).parent.parent / "tuning" / "matrix.jsonl"


def cells(output: str, kernel: str) -> list[str]:
    """The row of a kernel in the first table."""
    row = next(line for line in output.splitlines() if line.startswith(f"| {kernel}"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_each_kernel_has_a_row_and_all_of_them_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_TUNE", "all")
    result = run("replay", MATRIX)
    assert result.exit_code == 0, result.output
    assert cells(result.output, "loop_228d962c")[1:5] == ["8", "6", "43", "43"]
    assert cells(result.output, "mm_eddeaeb3")[1:5] == ["6", "11", "64", "64"]
    assert cells(result.output, "all")[3:5] == ["107", "107"] and float(cells(result.output, "all")[5]) <= 1.02
    assert "5 of 48 pairs of problem and candidate were not measured and count as unable to run" in result.output


def test_the_options_in_force_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_TUNE", "off")
    output = run("replay", MATRIX, "--kernel", "mm").output
    assert cells(output, "mm")[3] == "0" and "6 prior" in output and "loop" not in output


def test_choices_are_listed_when_asked_for() -> None:
    output = run("replay", MATRIX, "--kernel", "loop", "--choices", "--shuffle", "1").output
    assert "n0=300 n1=1024" in output and "persistent t1" in output


def test_a_store_is_replayed_like_a_file(empty_cache: Path) -> None:
    filled(empty_cache / "store.sqlite3", measured(), measured(candidate="looped t2", seconds=2e-5))
    output = run("replay", empty_cache).output
    assert cells(output, "loop")[1:3] == ["1", "2"]


def test_kernels_go_by_the_names_that_the_store_gives_them(empty_cache: Path) -> None:
    store = filled(empty_cache / "store.sqlite3", measured(), measured(candidate="looped t2", seconds=2e-5))
    named(store, "softmax_228d962c")
    assert cells(run("replay", empty_cache, "--kernel", "softmax", "--choices").output, "softmax_228d962c")[1:3] == ["1", "2"]


def test_nothing_to_choose_between_is_one_sentence(empty_cache: Path) -> None:
    filled(empty_cache / "store.sqlite3", measured())
    result = run("replay", empty_cache)
    assert result.exit_code == 2 and "no two candidates to choose between; measure with POLYTILE_TUNE=all" in result.output
    assert "called 'relu'" in run("replay", MATRIX, "--kernel", "relu").output
    assert run("replay", empty_cache / "none").exit_code == 2
