"""Two revisions beside each other: ratios, what is measured again, what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contestants import ROOT
from benchmarks.gpu import revisions
from benchmarks.gpu.revisions import Pair, Row, Side, again, choice, compare, ratio, ratio_of, report, summary


def pair(older: float, newer: float, eager: float = 10.0) -> Pair:
    return {"older": {"polytile": older, "eager": eager}, "newer": {"polytile": newer, "eager": 10.0}}


def row(name: str, *pairs: Pair) -> Row:
    chosen = {"older": [f"{name}_12c61dec at {{'n0': 4}}: plain warps=8 x=4 (measured)"] * 2, "newer": []}
    return {"function": name, "dtype": "bf16", "shape": [4, 8], "pairs": list(pairs), "chosen": chosen}


def test_a_ratio_is_above_one_where_the_newer_revision_is_faster_beside_its_own_eager() -> None:
    assert ratio(pair(4.0, 2.0)) == 2.0
    assert ratio(pair(4.0, 2.0, eager=20.0)) == 1.0
    assert ratio_of(row("a", pair(4.0, 4.0), pair(4.0, 2.0), pair(4.0, 5.0))) == 1.0


def test_slow_cells_are_measured_again_and_the_slowest_first() -> None:
    rows = [row("a", pair(9.9, 10.0)), row("b", pair(9.8, 10.0)), row("c", pair(9.0, 10.0)), row("d")]
    assert [each["function"] for each in again(rows)] == ["c", "b"]


def test_a_summary_has_the_first_ratios_and_those_that_count() -> None:
    rows = [row("a", pair(10.0, 10.0)), row("b", pair(4.0, 8.0), pair(9.6, 10.0), pair(9.6, 10.0)), row("c")]
    assert summary(rows) == (2, 1, pytest.approx(0.5**0.5), pytest.approx(0.96**0.5), pytest.approx(0.96), 1)
    assert summary([row("c")]) == (0, 0, None, None, None, 0)


def test_choices_are_named_in_todays_words_once() -> None:
    assert choice(row("a")["chosen"]["older"]) == "pointwise warps=8 x=4"
    assert choice([]) == "as in a regime met before"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Who is asked to measure which function, where processes are replaced by one that says: "slow" is slow at first."""
    said: list[tuple[str, str]] = []

    class Told:
        ended = False

        def __init__(self, root: Path, kind: str) -> None:
            self.who = "newer" if root == ROOT else "older"

        def __enter__(self) -> Told:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def ask(self, method: str, *values: Any) -> Any:
            if method == "cells":
                return [{"function": name, "dtype": "bf16", "shape": [4, 8]} for name in ("even", "slow", "wrong")]
            if method == "measure":
                name = values[0]["function"]
                first = (self.who, name) not in said
                said.append((self.who, name))
                if name == "wrong":
                    raise RuntimeError("no such function")
                late = name == "slow" and self.who == "newer" and first
                return {"us": {"eager": 9.0, "polytile": 2.0 if late else 1.0}, "chosen": [self.who]}
            return None

    monkeypatch.setattr(revisions, "Side", Told)
    yield said


def test_sides_take_turns_and_what_was_slow_is_measured_until_it_is_not(
    asked: Sequence[tuple[str, str]], tmp_path: Path
) -> None:
    *_, (rows, missing) = compare(tmp_path, "loops", ["bf16"], 512, 60)
    assert [len(each["pairs"]) for each in rows] == [1, 3, 0] and missing == 0
    assert [ratio_of(each) for each in rows[:2]] == [1.0, 1.0]
    assert "no such function" in rows[2]["error"]
    order = [who for who, name in asked if name == "slow"]
    assert order == ["newer", "older", "older", "newer", "newer", "older"]


def test_a_report_names_the_slow_cells_and_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    broken = {**row("c"), "error": "ended with status 3"}
    run = {"older": "a1", "newer": "b2", "date": "2026-11-29", "device": "H200", "missing": 2}
    report({"loops": {**run, "cells": [row("b", pair(9, 10)), broken]}})
    told = capsys.readouterr().out
    assert "2 cells were not reached" in told and "c bf16 4×8: ended with status 3" in told
    assert [cell.strip() for cell in told.split("b bf16 4×8")[1].split("|")[1:4]] == ["0.900", "9.00", "10.00"]


def test_a_side_answers_for_the_tree_it_is_given() -> None:
    with Side(ROOT, "products") as side:
        cells = side.ask("cells", ["bf16"], 4096)
        assert {"part": "llm", "function": "linear", "dtype": "bf16", "shape": [4096, 4096, 14336]} in cells
        assert not side.ended
        with pytest.raises(RuntimeError, match="KeyError"):
            side.ask("measure", {"part": "none", "function": "none", "dtype": "bf16", "shape": [1, 1, 1]})
