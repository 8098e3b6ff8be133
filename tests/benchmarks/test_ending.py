"""The committed first calls with few workers."""

from __future__ import annotations

import json

import pytest

from benchmarks import record
from benchmarks.gpu import ending


def test_its_table_has_a_line_for_each_product(capsys: pytest.CaptureFixture[str]) -> None:
    path = record.RESULTS / f"{ending.SUITE}.json"
    both = {"seconds": 2.0, "compiled": 9}
    cell = {"function": "linear", "shape": [64, 4096, 4096], "ended": both, "whole": both, "us": {"ended": 9.0, "whole": 9.0}}
    result = {"device": "H200", "workers": 2, "cells": [cell]}
    if path.exists():
        result = json.loads(path.read_text())["results"]
    ending.report(result)
    printed = capsys.readouterr().out
    assert printed.count(" 64×4096×4096 ") == sum(cell["shape"][0] == 64 for cell in result["cells"])
