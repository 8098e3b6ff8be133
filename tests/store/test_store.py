"""What goes into the store comes out again: exactly, for relatives, and whole."""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile import options, store
from polytile.problem import Measurement, Outcome
from polytile.store import Store, identity, summarise
from polytile.store.sqlite import SqliteFile
from polytile.store.summary import QUANTILE, quantile

Make = Callable[..., Measurement]


def test_every_field_of_a_measurement_comes_back_from_the_file(tmp_path: Path, measurement: Make) -> None:
    whole = dataclasses.replace(measurement(), detail='with "quotes" and\nlines', condition="cold cache")
    failed = measurement(outcome=Outcome.CRASHED)
    Store(tmp_path / "s").append(whole, failed)
    assert Store(tmp_path / "s").measurements() == [whole, failed]


def test_exact_lookup_finds_this_problem_and_environment_alone(tmp_path: Path, measurement: Make) -> None:
    Store(tmp_path / "s").append(measurement(64), measurement(64, "aten"), measurement(65))
    found = Store(tmp_path / "s").exact(measurement(64).problem, measurement().environment)
    assert [summary.who[0] for summary in found] == ["looped t1", "aten"]
    assert found[0].seconds == pytest.approx(1e-5, rel=0.01)
    assert not Store(tmp_path / "s").exact(measurement(64).problem, (("torch", "2.12.0"),))
    other_device = dataclasses.replace(measurement(64).problem, device="cpu-y")
    assert not Store(tmp_path / "s").exact(other_device, measurement().environment)


def test_summaries_name_the_candidate_by_name_config_with_hint_and_source(tmp_path: Path, measurement: Make) -> None:
    for_other_hint = dataclasses.replace(measurement(), config=type(measurement().config).of({"M": 4096}, threads=1))
    assert identity_of(measurement()) != identity_of(for_other_hint)
    Store(tmp_path / "s").append(measurement(), for_other_hint)
    found = Store(tmp_path / "s").exact(measurement().problem, measurement().environment)
    assert [summary.who for summary in found] == [identity_of(measurement()), identity_of(for_other_hint)]


def identity_of(measurement: Measurement) -> tuple[str, str, str]:
    class Candidate:
        name, config, source_hash = measurement.candidate, measurement.config, measurement.source_hash

    return identity(Candidate())


def test_nearby_lookup_gives_the_same_kernel_at_other_sizes(tmp_path: Path, measurement: Make) -> None:
    kept = Store(tmp_path / "s")
    kept.append(measurement(64), measurement(128), measurement(128, "aten"))
    stranger = dataclasses.replace(measurement(64).problem, kernel="k1")
    kept.append(dataclasses.replace(measurement(), problem=stranger))
    ((sizes, summaries),) = Store(tmp_path / "s").nearby(measurement(64).problem, measurement().environment)
    assert sizes == {"M": 128, "N": 512}
    assert len(summaries) == 2


def test_all_lookups_of_a_program_read_the_file_once(
    tmp_path: Path, measurement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "s").append(*(measurement(m) for m in range(10, 60)))
    reads: list[object] = []
    read = SqliteFile.summaries
    monkeypatch.setattr(SqliteFile, "summaries", lambda self, *args: (reads.append(args), read(self, *args))[1])
    kept = Store(tmp_path / "s")
    for m in range(80):
        assert bool(kept.exact(measurement(m).problem, measurement().environment)) == (10 <= m < 60)
        kept.nearby(measurement(m).problem, measurement().environment)
    assert len(reads) == 1


def test_lookups_see_own_measurements_at_once_and_those_of_others_after_a_refresh(
    tmp_path: Path, measurement: Make
) -> None:
    mine, other = Store(tmp_path / "s"), Store(tmp_path / "s")
    assert not mine.exact(measurement().problem, measurement().environment)
    other.append(measurement())
    assert not mine.exact(measurement().problem, measurement().environment)
    mine.append(measurement())
    assert len(mine.exact(measurement().problem, measurement().environment)) == 1
    assert mine.refresh() == 1
    assert mine.refresh() == 0
    assert len(mine.exact(measurement().problem, measurement().environment)) == 2


def test_measurements_are_never_overwritten_and_no_decision_is_stored(tmp_path: Path, measurement: Make) -> None:
    Store(tmp_path / "s").append(measurement(64, "slow", 2e-5), measurement(64, "fast", 1e-5))
    Store(tmp_path / "s").append(measurement(64, "slow", 1e-6))
    with sqlite3.connect(tmp_path / "s") as connection:
        with pytest.raises(sqlite3.IntegrityError, match="never overwritten"):
            connection.execute("UPDATE measurements SET seconds = 0")
        assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (3,)
        assert connection.execute("SELECT candidate FROM decisions").fetchall() == [("slow",)]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert {name for (name,) in tables} == {"problems", "environments", "devices", "measurements"}


def test_with_persist_off_nothing_is_written(empty_cache: Path, measurement: Make) -> None:
    with options.override(persist=False):
        kept = store.current()
        kept.append(measurement())
        assert store.current() is kept
        assert kept.exact(measurement().problem, measurement().environment)
        assert kept.measurements() == [measurement()]
        assert not kept.persistent
    assert not list(empty_cache.iterdir())
    store.forget()


def test_the_current_store_is_in_the_cache_directory(empty_cache: Path, measurement: Make) -> None:
    store.current().append(measurement())
    assert (empty_cache / "store.sqlite3").exists()
    store.forget()
    assert store.current().exact(measurement().problem, measurement().environment)
    store.forget()


def test_threads_append_and_look_up_at_the_same_time(tmp_path: Path, measurement: Make) -> None:
    kept = Store(tmp_path / "s")

    def work(worker: int) -> None:
        for m in range(50):
            kept.append(measurement(1000 * worker + m))
            assert kept.exact(measurement(1000 * worker + m).problem, measurement().environment)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Store(tmp_path / "s").measurements()) == 200


def test_reading_a_store_imports_neither_torch_nor_sqlalchemy(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, tests.store.alone, polytile.store as store\n"
        "store.Store(pathlib.Path(sys.argv[1])).measurements()\n"
        "print([name for name in ('torch', 'sqlalchemy') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")], env=with_sources(), capture_output=True, text=True
    )
    assert ran.stdout.strip() == "[]", ran.stderr


def with_sources() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_the_summary_is_a_low_quantile_that_a_busy_neighbour_does_not_move() -> None:
    quiet = [10.0 + 0.01 * step for step in range(20)]
    busy = quiet[:10] + [sample * 1.35 for sample in quiet[10:]]
    assert quantile(busy, QUANTILE) == pytest.approx(quantile(quiet, QUANTILE), rel=0.01)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([5.0], QUANTILE) == 5.0
    assert math.isnan(quantile([], QUANTILE))
    assert summarise(quiet)[1] < 0.01 < summarise(busy)[1]
    assert summarise([5.0]) == (5.0, math.inf)
