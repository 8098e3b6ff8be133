"""What was found goes to the store that the spec names, each measurement once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polytile.campaigns import run
from polytile.campaigns.board import Board, Result
from polytile.campaigns.spec import Spec
from polytile.store import Store, jsonl
from polytile.store.place import Server
from polytile.store.reading import records
from tests.campaigns.test_board import filled, unit
from tests.store.helpers import make, own_server


def nothing(*seen: Any) -> Any:
    raise AssertionError(seen)


def found(folder: Path, numbers: Sequence[int]) -> str:
    store = Store(folder / "own.sqlite3")
    store.append(*map(make, numbers))
    store.close()
    return jsonl.header() + "".join(map(jsonl.line, records(folder / "own.sqlite3")))


def test_measurements_reach_a_server_once(tmp_path: Path) -> None:
    board = filled(tmp_path / "campaign", unit(1), unit(2))
    board.finish(unit(1).id, Result("a", 2.0, found(tmp_path, [1, 2])))
    board.finish(unit(2).id, Result("a", 1.0, error="it raised"))
    with own_server() as server:
        for _ in range(2):
            ended = run.measure(Spec(store=server.url), Board(board.root), "local", 0, nothing, lambda *seen: None)
        assert len(records(Server(server.url))) == 2
    assert (ended.status.left, len(ended.status.failed), ended.status.seconds) == (0, 1, 3.0)


def test_a_campaign_whose_time_is_over_says_so(tmp_path: Path) -> None:
    board = filled(tmp_path / "campaign", unit(1), unit(2))
    board.finish(unit(1).id, Result("a", 2.0, found(tmp_path, [1])))
    ended = run.measure(Spec(seconds=1.0), board, "folder", 0, nothing, lambda *seen: None)
    assert "spent" in ended.why
    assert board.take("b") is None
    run.measure(Spec(seconds=1.0, store=str(tmp_path / "other.sqlite3")), board, "folder", 0, nothing, lambda *seen: None)
    assert len(records(tmp_path / "other.sqlite3")) == 1
