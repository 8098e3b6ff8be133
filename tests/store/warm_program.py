"""A program of two kernels that reports, as JSON, what it asked its store."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import polytile
from polytile import counters
from polytile.store import postgres, sqlite

SIZES = ((3, 40), (64, 512), (33, 129))
said: list[str] = []
"""What the store is asked; "open" for each connection."""


def listen() -> None:
    connect_file, connect_server, execute = sqlite._connect, postgres._connect, postgres._Marks.execute

    def file(name: str, uri: bool = False) -> Any:
        connection = connect_file(name, uri)
        said.append("open")
        connection.set_trace_callback(said.append)
        return connection

    def server(place: Any) -> Any:
        said.append("open")
        return connect_server(place)

    def asked(self: Any, statement: str, *values: Any) -> Any:
        said.append(statement)
        return execute(self, statement, *values)

    sqlite._connect, postgres._connect = file, server
    postgres._Marks.execute = asked  # type: ignore[method-assign]


def two_kernels(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x, -1), x @ x.T


def main() -> None:
    listen()
    program = polytile.compile(two_kernels)
    for m, n in SIZES:
        program(torch.ones(m, n))
    before = len(said)
    for m, n in SIZES * 3:
        program(torch.ones(m, n))
    report = {
        "benchmarked": counters["candidates_benchmarked"],
        "store_hits": counters["store_hits"],
        "opened": said.count("open"),
        "read": sum("FROM measurements m" in statement for statement in said[:before]),
        "inserts": sum("INSERT INTO measurements" in statement for statement in said),
        "later": len(said) - before,
        "modules": [name for name in ("psycopg", "sqlalchemy") if name in sys.modules],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
