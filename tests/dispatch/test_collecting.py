"""Recording without choosing: every candidate is measured into a store of its own, and nothing is chosen otherwise for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polytile import options, store
from polytile.dispatch import collecting
from polytile.dispatch.multikernel import MultiKernel
from polytile.learn.examples import examples
from polytile.runtime import background
from polytile.store.reading import records
from tests.dispatch.helpers import SPEC, Fake, arguments, spec


def candidates() -> tuple[Fake, ...]:
    """The prior prefers a; c cannot run at small sizes; what is predicted to take a hundred times as long is not measured."""
    return (
        Fake("a", 3e-5, 1e-5, parts={"memory_s": 4e-6, "work.points": 2048.0}), Fake("b", 2e-5, 2e-5),
        Fake("c", 1e-5, 3e-5, can=lambda sizes: sizes["M"] > 64), Fake("hopeless", 1.0, 1e-3),
    )  # fmt: skip


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "collected.sqlite3"


def measured_at(path: Path, m: int) -> list[str]:
    return sorted(r.measurement.candidate for r in records(path) if dict(r.measurement.problem.sizes)["M"] == m)


def test_every_candidate_that_can_run_is_measured_and_none_is_chosen_for_it(into: Path) -> None:
    kernel = MultiKernel(SPEC, candidates(), {"tune": "off", "collect": str(into)})
    kernel(*arguments(32))
    kernel(*arguments(320))
    assert measured_at(into, 32) == ["a", "b"] and measured_at(into, 320) == ["a", "b", "c"]
    assert {(decision.candidate, decision.link) for decision in kernel.decisions} == {("a", "prior")}
    assert not store.current().measurements(), "what programs choose by is not touched"


def test_what_was_collected_is_not_measured_again(into: Path, fake_clock: list[str]) -> None:
    for _ in range(2):
        MultiKernel(SPEC, candidates(), {"tune": "off", "collect": str(into)})(*arguments(32))
        timed, fake_clock[:] = list(fake_clock), []
        collecting._store.cache_clear()  # as another process reads it
    assert not timed and measured_at(into, 32) == ["a", "b"]


def test_where_no_call_waits_the_background_collects(into: Path) -> None:
    stalling = {"stall": "never", "isolation": "never", "tune": "off", "collect": str(into)}
    kernel = MultiKernel(spec(), candidates(), stalling)
    kernel(*arguments(32))
    assert background.wait(60.0)
    assert measured_at(into, 32) == ["a", "b"]
    assert {(decision.candidate, decision.link) for decision in kernel.decisions} == {("a", "prior")}


def test_predictions_leave_their_terms(into: Path) -> None:
    MultiKernel(SPEC, candidates(), {"tune": "off", "collect": str(into)})(*arguments(32))
    (example,) = examples(records(into)).examples
    terms = {offer.name: dict(offer.terms) for offer in example.offers}
    assert terms == {"a": {"memory_s": 4e-6, "work.points": 2048.0}, "b": {}}
    seconds = dict(zip(terms, example.seconds, strict=True))
    assert seconds == pytest.approx({"a": 3e-5, "b": 2e-5})


def test_candidates_of_later_problems_are_made_while_one_is_measured(into: Path, fake_clock: list[str]) -> None:
    made = candidates()
    kernel = MultiKernel(SPEC, made, {"tune": "off", "collect": str(into)})
    with collecting.ahead(1):
        kernel(*arguments(32))
        assert not fake_clock and made[1].prepared
        kernel(*arguments(320))
        assert measured_at(into, 32) and not measured_at(into, 320)
    assert measured_at(into, 320) == ["a", "b", "c"]


def test_under_deterministic_algorithms_nothing_is_timed(into: Path, fake_clock: list[str]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with options.override(collect=str(into)):
            MultiKernel(SPEC, candidates())(*arguments(32))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not fake_clock and not into.exists()
