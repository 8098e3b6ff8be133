"""Writes what a benchmark found to benchmarks/results/SUITE.json, with the environment it ran in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from polytile import files

RESULTS = Path(__file__).resolve().parent / "results"


def write(suite: str, results: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Writes {"suite", "environment", "results"} atomically and returns the file. A later run replaces it."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{suite}.json"
    content = json.dumps({"suite": suite, "environment": environment(), "results": results}, indent=1, sort_keys=False)
    files.write_text(target, content + "\n")
    return target


def read(suite: str | Path, directory: Path = RESULTS) -> Any:
    """The results of a suite, or those in a file of any place."""
    file = suite if isinstance(suite, Path) else directory / f"{suite}.json"
    return json.loads(file.read_text(encoding="utf-8"))["results"]


def add(suite: str, part: str, found: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Writes `found` into {part: ...} of the suite's results, in place of entries of the same names; the others stay. The
    environment is that of this run. For suites that are run in parts."""
    results = read(suite, directory) if (directory / f"{suite}.json").exists() else {}
    return write(suite, {**results, part: results.get(part, {}) | found}, directory)


__all__ = ["RESULTS", "add", "read", "write"]
