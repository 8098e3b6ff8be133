"""Measurements to put into stores, and places for stores: files, and databases of a PostgreSQL server of this run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import postgres
from polytile.problem import Measurement
from polytile.store.place import Place, Server, place_of
from tests.store.helpers import make, own_server

_numbers = itertools.count(1)


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    return make


@pytest.fixture(scope="session")
def running() -> Iterator[postgres.Server]:
    """A PostgreSQL server, one for each process of the run."""
    with own_server() as server:
        yield server


@pytest.fixture
def databases(running: postgres.Server) -> Iterator[Callable[[], Server]]:
    """Makes empty databases; after the test they are emptied for the next one, as making one takes 0.2 s."""
    given: list[Server] = []

    def database() -> Server:
        given.append(_free.pop() if _free else _new_database(running))
        return given[-1]

    yield database
    for place in given:
        _empty(place)
    _free.extend(given)


_free: list[Server] = []


def _new_database(server: postgres.Server) -> Server:
    import psycopg

    name = f"store_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return Server(server.url.replace("/postgres?", f"/{name}?"))


def _empty(place: Server) -> None:
    import psycopg

    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA IF EXISTS polytile CASCADE")


@pytest.fixture
def database(databases: Callable[[], Server]) -> Server:
    return databases()


@pytest.fixture(params=["file", "server"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """Makes places without a store, all of one kind."""
    if request.param == "file":
        return lambda: place_of(tmp_path / f"{next(_numbers)}.sqlite3")
    made: Callable[[], Server] = request.getfixturevalue("databases")
    return made


@pytest.fixture
def place(places: Callable[[], Place]) -> Place:
    return places()
