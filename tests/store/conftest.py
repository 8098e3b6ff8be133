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


def new_database(server: postgres.Server) -> Server:
    """An empty database."""
    import psycopg

    name = f"store_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return Server(server.url.replace("/postgres?", f"/{name}?"))


@pytest.fixture
def database(running: postgres.Server) -> Server:
    return new_database(running)


@pytest.fixture(params=["file", "server"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """Makes places without a store, all of one kind."""
    if request.param == "file":
        return lambda: place_of(tmp_path / f"{next(_numbers)}.sqlite3")
    server = request.getfixturevalue("running")
    return lambda: new_database(server)


@pytest.fixture
def place(places: Callable[[], Place]) -> Place:
    return places()
