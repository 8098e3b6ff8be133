"""What was found goes to the store that the spec names, each measurement once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polytile import options, store
from polytile.campaigns import results, run, trace
from polytile.campaigns.board import Board, Result, Status
from polytile.campaigns.spec import Model, Spec
from polytile.problem import Measurement, Outcome
from polytile.store import Store, identity, jsonl
from polytile.store.place import Server
from polytile.store.reading import records
from polytile.tuning.environment import environment
from tests.campaigns.test_board import filled, unit
from tests.store.helpers import make, own_server


def nothing(*seen: Any) -> Any:
    raise AssertionError(seen)


def found(folder: Path, numbers: Sequence[int]) -> str:
    own = Store(folder / "own.sqlite3")
    own.append(*map(make, numbers))
    own.close()
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


def test_a_result_that_comes_while_others_are_filed_is_in_the_store_when_the_campaign_ends(tmp_path: Path) -> None:
    board = filled(tmp_path / "campaign", unit(1), unit(2))
    board.finish(unit(1).id, Result("a", 1.0, found(tmp_path, [1])))
    spec, late = Spec(store=str(tmp_path / "other.sqlite3")), [unit(2).id]

    def watch(status: Status, result: Result | None) -> None:
        if result is not None and late:
            board.finish(late.pop(), Result("b", 1.0, found(tmp_path, [2])))

    ended = run.measure(spec, Board(board.root), "folder", 0, nothing, watch)
    assert ended.status.left == 0
    assert len(records(tmp_path / "other.sqlite3")) == 2


def test_a_campaign_whose_time_is_over_says_so(tmp_path: Path) -> None:
    board = filled(tmp_path / "campaign", unit(1), unit(2))
    board.finish(unit(1).id, Result("a", 2.0, found(tmp_path, [1])))
    ended = run.measure(Spec(seconds=1.0), board, "folder", 0, nothing, lambda *seen: None)
    assert "spent" in ended.why
    assert board.take("b") is None
    run.measure(Spec(seconds=1.0, store=str(tmp_path / "other.sqlite3")), board, "folder", 0, nothing, lambda *seen: None)
    assert len(records(tmp_path / "other.sqlite3")) == 1


def test_a_record_of_some_candidates_decides_for_its_sizes_alone(tmp_path: Path) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1)

    place = str(tmp_path / "store.sqlite3")
    with trace.tracing(place, "thorough"):
        model = Model("f", [{"s0": 24, "s1": 900}])
        traced = trace.trace(Spec(models=(model,)), lambda *about: (shifted, [(torch.randn(5, 30),)]), nothing_told)
        ((kernel, wanted),) = traced.kernels.items()
        (sizes,) = wanted.values()
        ints = tuple(sizes[name] for name in kernel.spec.size_names)
        slow, fast = kernel.candidates[-1], kernel.candidates[-2]
        with options.override(store=place):
            for candidate, seconds in ((slow, 2e-3), (fast, 1e-5)):
                problem, facts = kernel.spec.problem(ints, ()), environment(kernel.spec.target)
                store.current().append(
                    Measurement(
                        problem, candidate.name, candidate.config, identity(candidate)[-1], Outcome.OK, (seconds,) * 3,
                        environment=facts,
                    )
                )  # fmt: skip
        pinned = results.settle(traced)
        (choice,) = results.choices(traced)
    assert (choice.candidate, choice.measured) == (fast.name, 2)
    assert fast.name in {each.candidate for each in pinned}


def test_a_plan_pins_the_kernels_that_a_chosen_candidate_runs(tmp_path: Path) -> None:
    """The library's product leaves its epilogue to a kernel of its own, which a process that follows the plan needs decided."""

    def activated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b) * 2

    place = str(tmp_path / "store.sqlite3")
    with trace.tracing(place, "thorough"):
        model = Model("f", [{"s0": 24, "s1": 32, "s2": 40}])
        args = torch.randn(5, 30), torch.randn(30, 17)
        traced = trace.trace(Spec(models=(model,)), lambda *about: (activated, [args]), nothing_told)
        ((kernel, wanted),) = traced.kernels.items()
        (sizes,) = wanted.values()
        problem = kernel.spec.problem(tuple(sizes[name] for name in kernel.spec.size_names), ())
        with options.override(store=place):
            for candidate in kernel.candidates:
                seconds = 1e-6 if candidate.name == "aten" else 2e-3
                store.current().append(
                    Measurement(
                        problem, candidate.name, candidate.config, identity(candidate)[-1], Outcome.OK, (seconds,) * 3,
                        environment=environment(kernel.spec.target),
                    )
                )  # fmt: skip
        pinned = results.settle(traced)
        lines = results.choices(traced)
    assert "aten" in {each.candidate for each in pinned}
    (inner,) = traced.inner
    assert inner.spec.name in {line.kernel for line in lines}
    assert {each.digest for each in pinned} == {kernel.spec.kernel, inner.spec.kernel}


def nothing_told(text: str) -> None:
    """Takes what a command would show."""
