"""Lookups lie off the path of calls: a warm program opens its store once, reads it once, and then leaves it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile import store
from polytile.counters import counters
from polytile.store import postgres, sqlite
from polytile.store.place import Place, Server

SIZES = ((3, 40), (64, 512), (33, 129))


def two_kernels(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x, -1), x @ x.T


def calls(program: Any) -> None:
    for m, n in SIZES:
        program(torch.ones(m, n))


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What stores are asked from now on; "open" for each connection."""
    said: list[str] = []
    connect_file, connect_server = sqlite._connect, postgres._connect
    execute = postgres._Marks.execute

    def file(name: str, uri: bool = False) -> Any:
        connection = connect_file(name, uri)
        said.append("open")
        connection.set_trace_callback(said.append)
        return connection

    def server(place: Server) -> Any:
        said.append("open")
        return connect_server(place)

    def asked(self: Any, statement: str, *values: Any) -> Any:
        said.append(statement)
        return execute(self, statement, *values)

    monkeypatch.setattr(sqlite, "_connect", file)
    monkeypatch.setattr(postgres, "_connect", server)
    monkeypatch.setattr(postgres._Marks, "execute", asked)
    yield said
    store.forget()


def test_a_warm_program_opens_the_store_once_and_calls_do_not_touch_it(
    place: Place, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    monkeypatch.setenv("POLYTILE_STORE", place.url if isinstance(place, Server) else str(place))
    calls(polytile.compile(two_kernels))
    assert counters["candidates_benchmarked"] > 0
    store.forget()
    torch._dynamo.reset()
    counters.reset()
    statements.clear()
    program = polytile.compile(two_kernels)
    calls(program)
    assert counters["candidates_benchmarked"] == 0 and counters["store_hits"] >= 2 * len(SIZES)
    assert statements.count("open") == 1
    assert sum("FROM measurements m" in said for said in statements) == 1
    assert not any("INSERT" in said for said in statements)
    before = len(statements)
    for _ in range(3):
        calls(program)
    assert len(statements) == before
    assert store.current().place == place and not (empty_cache / "store.sqlite3").exists()
