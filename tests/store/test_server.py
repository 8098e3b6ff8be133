"""A store on a PostgreSQL server: many writers, deaths on either side, and servers that are not what they should be."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import postgres
from polytile import options, store
from polytile.errors import OptionError, StoreError
from polytile.problem import Measurement
from polytile.store import Store
from polytile.store.place import Place, Server, place_of
from polytile.store.reading import records
from tests.store.helpers import ENVIRONMENT, NO_DRIVER, number, own_server, writer
from tests.waiting import PATIENCE

Make = Callable[..., Measurement]
NOBODY_THERE = Server("postgresql://polytile@127.0.0.1:1/none")


def test_killed_writers_lose_at_most_what_they_were_writing(database: Server) -> None:
    for again in range(3):
        writers = [writer(database, again * 10 + worker, 50_000) for worker in range(3)]
        for process in writers:
            assert process.stdout is not None and process.stdout.readline()
        time.sleep(0.05 * again)
        for process in writers:
            os.kill(process.pid, signal.SIGKILL)
        for worker, process in enumerate(writers):
            assert process.stdout is not None
            said = [0, *map(int, process.stdout.read().split())]
            process.wait()
            first = (again * 10 + worker) * 100_000
            kept = {number(m) - first for m in Store(database).measurements() if 0 <= number(m) - first < 100_000}
            assert kept in (set(range(said[-1] + 1)), set(range(said[-1] + 2)))


def test_a_row_that_is_numbered_early_and_written_late_is_not_missed(
    database: Server, measurement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that went on from the highest number it saw would never see the lower one that is committed later."""
    import psycopg

    from polytile.store import postgres as kind

    monkeypatch.setattr(kind, "SESSION", (*kind.SESSION, f"SET lock_timeout = '{PATIENCE:.0f}s'"))
    Store(database).append(measurement(1))
    reader, beside = Store(database), Store(database)
    for one in (reader, beside):
        assert one.exact(measurement(1).problem, ENVIRONMENT)
    with psycopg.connect(database.url) as slow:
        slow.execute("SET search_path TO polytile")
        slow.execute(f"SELECT pg_advisory_xact_lock_shared({kind.LOCK})")
        slow.execute(
            "INSERT INTO measurements (uid, taken_at, problem, environment, candidate, config, source_hash, outcome, samples,"
            " detail, condition) SELECT 'slow', taken_at, problem, environment, 'slow', config, source_hash, outcome, samples,"
            " detail, condition FROM measurements"
        )
        beside.append(measurement(1, "quick"))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            found = pool.submit(reader.refresh)
            with pytest.raises(concurrent.futures.TimeoutError):
                found.result(0.3)  # it waits for the writer that is under way
            slow.commit()
            assert found.result(PATIENCE) == 2
    assert [s.who[0] for s in reader.exact(measurement(1).problem, ENVIRONMENT)] == ["looped t1", "slow", "quick"]


def test_a_stopped_writer_is_waited_for_and_then_passed_over(
    database: Server, measurement: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from polytile.store import postgres as kind

    monkeypatch.setattr(kind, "SESSION", (*kind.SESSION, "SET lock_timeout = '200ms'"))
    Store(database).append(measurement(1))
    with psycopg.connect(database.url) as stopped:
        stopped.execute(f"SELECT pg_advisory_xact_lock_shared({kind.LOCK})")
        reader = Store(database)
        assert not reader.exact(measurement(1).problem, ENVIRONMENT) and "locked by another process" in caplog.text
        reader.append(measurement(2))
    assert reader.refresh() == 1 and len(Store(database).measurements()) == 2


# The server dies.


@pytest.fixture
def mortal() -> Iterator[postgres.Server]:
    """A server that the test may kill."""
    with own_server() as server:
        yield server


def test_a_server_that_goes_away_costs_one_warning_and_gets_what_it_missed(
    mortal: postgres.Server, tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("polytile.store.store.AWAY_SECONDS", 10 * PATIENCE)
    place, beside = Server(mortal.url), tmp_path / "store.sqlite3"
    kept = Store(place, beside)
    kept.append(measurement(1))
    mortal.stop(signal.SIGQUIT)
    for m in (2, 3, 4):
        kept.append(measurement(m))
        assert kept.exact(measurement(m).problem, ENVIRONMENT)
    assert kept.exact(measurement(1).problem, ENVIRONMENT) and kept.persistent
    assert len(caplog.records) == 1 and "goes on with the file" in caplog.text and "store merge" in caplog.text
    assert [number(record.measurement) for record in records(beside)] == [2, 3, 4], "a kill now would lose nothing"
    mortal.start()
    kept.append(measurement(5))
    assert len(Store(place).measurements()) == 1, "it is not asked again at once"
    monkeypatch.setattr(kept, "_away_until", 0.0)
    kept.append(measurement(6))
    assert [number(m) for m in Store(place).measurements()] == [1, 2, 3, 4, 5, 6]
    assert "answers again" in caplog.text and kept.refresh() == 0
    uids = {record.uid for record in records(place)}
    assert {record.uid for record in records(beside)} < uids, "merging the file adds nothing twice"


def test_a_lost_connection_to_a_living_server_is_made_again_unnoticed(
    database: Server, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    kept = Store(database)
    kept.append(measurement(1))
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'polytile'")
    kept.append(measurement(2))
    assert kept.refresh() == 0 and len(Store(database).measurements()) == 2 and not caplog.records


def test_a_server_that_was_never_there_costs_one_warning(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("psycopg", reason=NO_DRIVER)
    beside = tmp_path / "store.sqlite3"
    Store(beside).append(measurement(1))
    kept = Store(NOBODY_THERE, beside)
    assert kept.exact(measurement(1).problem, ENVIRONMENT), "what the file beside knows is found"
    kept.append(measurement(2))
    assert kept.exact(measurement(2).problem, ENVIRONMENT) and not kept.refresh()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    kept.close()
    assert len(records(beside)) == 2


def test_without_psycopg_the_file_is_used_and_the_message_says_what_to_install(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    kept = Store(NOBODY_THERE, tmp_path / "s")
    kept.append(measurement(1))
    assert kept.persistent and len(records(tmp_path / "s")) == 1
    assert len(caplog.records) == 1 and "pip install 'polytile[server]'" in caplog.text
    with pytest.raises(StoreError, match="pip install"):
        records(NOBODY_THERE)


# Databases that are not what they should be.


def _prepared(place: Server, *statements: str) -> None:
    import psycopg

    with psycopg.connect(place.url) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "statements, reason",
    [
        (("CREATE SCHEMA polytile", "CREATE TABLE polytile.measurements (x INT)"), "tables that are not polytile's"),
        (("CREATE SCHEMA polytile", "CREATE TABLE polytile.store AS SELECT 99 AS version"), "newer polytile"),
    ],
)
def test_a_database_of_something_else_is_left_alone(
    database: Server, tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture,
    statements: tuple[str, ...], reason: str,
) -> None:  # fmt: skip
    _prepared(database, *statements)
    kept = Store(database, tmp_path / "s")
    kept.append(measurement(1))
    assert kept.exact(measurement(1).problem, ENVIRONMENT) and kept.persistent
    assert len(caplog.records) == 1 and reason in caplog.text and len(records(tmp_path / "s")) == 1
    with pytest.raises(StoreError, match=reason):
        records(database)


def test_a_user_who_may_only_read_finds_everything_and_keeps_what_is_measured_in_the_file(
    database: Server, tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    Store(database).append(measurement(1))
    _prepared(
        database, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT USAGE ON SCHEMA polytile TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA polytile TO reader",
    )  # fmt: skip
    kept = Store(Server(database.url.replace("user=polytile", "user=reader")), tmp_path / "s")
    assert kept.exact(measurement(1).problem, ENVIRONMENT)
    kept.append(measurement(2))
    kept.append(measurement(3))
    assert "permission denied" in caplog.text and len(caplog.records) == 1
    assert kept.exact(measurement(1).problem, ENVIRONMENT) and len(records(tmp_path / "s")) == 2


def test_what_to_do_is_said_for_what_the_server_answers(database: Server, measurement: Make) -> None:
    Store(database).append(measurement(1))
    _prepared(database, "DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN")
    for server, advice in (
        (Server(database.url.replace("user=polytile", "user=stranger")), "GRANT USAGE ON SCHEMA polytile and SELECT"),
        (Server(database.url.replace("user=polytile", "user=nobody_known")), "check the user in the URL"),
        (Server(database.url.replace("/store_", "/nothing_")), "create the database, or name another"),
        (NOBODY_THERE, "is the server there?"),
    ):
        with pytest.raises(StoreError) as refused:
            records(server)
        assert advice in str(refused.value)
        assert ("is the server there" in str(refused.value)) == (server is NOBODY_THERE)


def test_a_missing_database_and_an_empty_one_are_told_apart(database: Server) -> None:
    with pytest.raises(StoreError, match="there is no measurement store in postgresql://.*run a compiled program"):
        records(database)
    with pytest.raises(StoreError, match='database "nothing" does not exist'):
        records(
            Server(database.url.replace("/store_", "/nothing?x=").split("?x=")[0] + "?" + database.url.split("?")[1])
        )


# Naming one.


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://ann:secret@host:5432/db", "postgresql://ann:***@host:5432/db"),
        ("postgres://host/db?user=ann&password=secret&sslmode=require", "postgres://host/db?user=ann&password=***&sslmode=require"),
        ("postgresql://ann@host/db", "postgresql://ann@host/db"),
    ],
)  # fmt: skip
def test_messages_do_not_show_passwords(url: str, shown: str) -> None:
    place = place_of(url)
    assert str(place) == shown and "secret" not in f"{place!r}" and isinstance(place, Server) and place.url == url


def test_the_option_names_the_store(
    database: Server, tmp_path: Path, empty_cache: Path, measurement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[tuple[str, Place]] = [
        ("", empty_cache / "store.sqlite3"),
        (str(tmp_path / "x.sqlite3"), tmp_path / "x.sqlite3"),
        (str(tmp_path), tmp_path / "store.sqlite3"),
        (database.url, database),
        (database.url.replace("postgresql://", "postgresql+psycopg://"), database),
    ]
    for value, place in named:
        monkeypatch.setenv("POLYTILE_STORE", value)
        assert store.current().place == place
    store.current().append(measurement(1))
    assert len(records(database)) == 1 and not (empty_cache / "store.sqlite3").exists()
    with options.override(store="mysql://host/db"), pytest.raises(OptionError, match="mysql:// is neither"):
        store.current()
    store.forget()
