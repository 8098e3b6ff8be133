"""Lookups lie off the path of calls: a warm program opens its store once, reads it once, and then leaves it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from polytile.store.place import Place, Server

PROGRAM = Path(__file__).with_name("warm_program.py")


def run(place: Place, cache: Path) -> dict[str, Any]:
    """What a process of warm_program.py reports."""
    named = {"POLYTILE_STORE": place.url if isinstance(place, Server) else str(place), "POLYTILE_CACHE_DIR": str(cache)}
    environment = {**os.environ, **named, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_warm_program_opens_the_store_once_and_calls_do_not_touch_it(place: Place, empty_cache: Path) -> None:
    cold = run(place, empty_cache)
    assert cold["benchmarked"] > 0 and cold["inserts"] > 0
    warm = run(place, empty_cache)
    assert warm["benchmarked"] == warm["inserts"] == 0 and warm["store_hits"] >= 6
    assert warm["opened"] == 1 and warm["read"] == 1
    assert cold["later"] == warm["later"] == 0
    assert not (empty_cache / "store.sqlite3").exists()
    if not isinstance(place, Server):
        assert "psycopg" not in warm["modules"], "a file needs no database library"
    assert "sqlalchemy" not in warm["modules"]
