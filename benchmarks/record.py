"""Writes what a benchmark found to benchmarks/results/SUITE.json, with the environment it ran in."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

RESULTS = Path(__file__).resolve().parent / "results"


def write(suite: str, results: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Writes {"suite", "environment", "results"} atomically and returns the file. A later run replaces it."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{suite}.json"
    content = json.dumps({"suite": suite, "environment": environment(), "results": results}, indent=1, sort_keys=False)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{suite}-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content + "\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def add(suite: str, part: str, found: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Writes `found` into {part: ...} of the suite's results, in place of entries of the same names; the others stay. The
    environment is that of this run. For suites that are run in parts."""
    file = directory / f"{suite}.json"
    results = json.loads(file.read_text())["results"] if file.exists() else {}
    return write(suite, {**results, part: results.get(part, {}) | found}, directory)


__all__ = ["RESULTS", "add", "write"]
