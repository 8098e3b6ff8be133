"""Sizes of quantised products that nobody measured: how they are drawn, and what is said of them."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import record
from benchmarks.gpu import unseen_products
from benchmarks.gpu.unseen_products import COUNT, KINDS, LARGEST, STEP, SUITE

ROW = {
    "function": "int8", "dtype": "int8", "shape": [1, 64, 64], "three": ["b", "c"],
    "us": {"a": 2.0, "b": 3.0, "c": 2.5, "d": 9.0}, "predicted_us": {"a": 5.0, "b": 1.0, "c": 2.0, "d": 8.0},
    "origin": {"a": "cutlass", "b": "triton", "c": "triton", "d": "library"},
}  # fmt: skip


def test_sizes_are_the_same_in_every_run_and_differ_between_kinds() -> None:
    drawn = {kind: unseen_products.shapes(kind) for kind in KINDS}
    assert drawn == {kind: unseen_products.shapes(kind) for kind in KINDS}
    assert all(len(set(shapes)) == COUNT for shapes in drawn.values()) and len(set(map(tuple, drawn.values()))) == len(KINDS)
    assert all(math.prod(s) <= LARGEST and s[1] % STEP == s[2] % STEP == 0 for shapes in drawn.values() for s in shapes)
    first = unseen_products.turns()[: 2 * len(KINDS)]
    assert [kind for kind, _ in first] == [*KINDS, *KINDS]


def test_what_the_prior_chooses_is_compared_with_the_best_of_all() -> None:
    assert unseen_products.regrets(ROW) == (1.5, 1.25)
    assert unseen_products.wins([ROW]) == {"cutlass": 1}


def test_tables_name_sizes_and_winners(capsys: pytest.CaptureFixture[str]) -> None:
    unseen_products.report({"device": "a GPU", "cells": [ROW]})
    printed = capsys.readouterr().out
    assert f"1 of {COUNT}" in printed and "geomean 1.500" in printed and "geomean 1.250" in printed and "1 of 1" in printed


def test_the_committed_sizes_are_those_that_are_drawn() -> None:
    file = record.RESULTS / f"{SUITE}.json"
    if not file.exists():
        pytest.skip("nothing is committed yet")
    rows = json.loads(file.read_text())["results"]["cells"]
    assert {(row["function"], tuple(row["shape"])) for row in rows} <= set(unseen_products.turns())
    assert all(set(row["three"]) <= set(row["us"]) == set(row["origin"]) for row in rows)
