"""Result files that are written in parts."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import record


def test_a_part_replaces_its_own_entries_and_leaves_the_others(tmp_path: Path) -> None:
    record.add("suite", "cells", {"a": 1, "b": 2}, tmp_path)
    record.add("suite", "cells", {"b": 3, "c": 4}, tmp_path)
    file = record.add("suite", "more", {"d": 5}, tmp_path)
    assert json.loads(file.read_text())["results"] == {"cells": {"a": 1, "b": 3, "c": 4}, "more": {"d": 5}}
