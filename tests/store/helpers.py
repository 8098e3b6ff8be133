"""Measurements to put into stores, and processes that do so."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import postgres
from polytile.facts import Threads
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store.place import Place, Server

NO_DRIVER = "psycopg, which speaks to PostgreSQL, is not installed; make setup installs it"

ENVIRONMENT = (("compiler", "g++ 12"), ("torch", "2.13.0"))

WRITER = """
import logging, sys, pathlib
sys.path[:0] = {path!r}
import tests.store.alone
from polytile.store import Store, sqlite
from polytile.store.place import place_of
from tests.store.helpers import make
from tests.waiting import PATIENCE
sqlite.BUSY_SECONDS = PATIENCE  # on a busy machine a turn may come late
logging.basicConfig(format="%(message)s")
worker, count = int(sys.argv[2]), int(sys.argv[3])
store = Store(place_of(sys.argv[1]))
for number in range(count):
    store.append(make(worker * 100_000 + number))
    if count > 1000:
        print(number, flush=True)
"""


def make(
    m: int = 64, candidate: str = "looped t1", seconds: float = 1e-5, outcome: Outcome = Outcome.OK
) -> Measurement:
    problem = Problem("loop", "k0", (("M", m), ("N", 512)), ("float32", "float32"), (Threads(2),), "cpu-x")
    samples = tuple(seconds * (1 + step / 1000) for step in range(10)) if outcome is Outcome.OK else ()
    return Measurement(
        problem, candidate, Config.of({"M": 64}, threads=1), "abc", outcome, samples, 1e-7, 0.3, environment=ENVIRONMENT
    )


def writer(place: Place, worker: int, count: int) -> subprocess.Popen[str]:
    """A process that appends measurements number worker * 100 000 and up, one by one; with more than 1000 it prints the
    number of each that is written."""
    code = WRITER.format(path=sys.path)
    name = place.url if isinstance(place, Server) else str(place)
    command = [sys.executable, "-c", code, name, str(worker), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def own_server() -> Iterator[postgres.Server]:
    """A running PostgreSQL server. The test is skipped, and says why, where there is none."""
    pytest.importorskip("psycopg", reason=NO_DRIVER)
    try:
        postgres.programs()
    except postgres.NoServer as error:
        pytest.skip(str(error))
    with postgres.server() as server:
        yield server


def number(measurement: Measurement) -> int:
    """The M of a measurement of `make`, which the tests count by."""
    return dict(measurement.problem.sizes)["M"]


KERNEL_TUNERS: dict[str, Any] = {
    "results": [
        {
            "timestamp": "2023-12-05 14:03:21.123456+00:00",
            "configuration": {"block_size_x": 64, "use_padding": True, "method": "linear"},
            "times": {"compilation": 812.5, "benchmark": 70.0, "framework": 1.5, "search_algorithm": 0.1,
                      "validation": 0.0, "runtimes": [1.25, 1.5, 1.0]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 1.25, "unit": "ms"}],
            "objectives": ["time"],
        },
        {
            "configuration": {"block_size_x": 2048, "use_padding": False, "method": "linear"},
            "times": {"compilation_time": 3.0, "runtimes": []},
            "invalidity": "compile",
            "correctness": 1,
        },
        {"configuration": {"block_size_x": 1, "tile": [1, 2]}, "times": {"runtimes": [9.0]}, "invalidity": "correct",
         "correctness": 0},
    ],
    "schema_version": "1.0.0",
}  # fmt: skip
"""As Kernel Tuner's store_output_file writes them (its names of times differ from the schema's), and other writers."""
