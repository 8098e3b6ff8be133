"""With the option agree="ranks" the ranks of a job run the same kernels, whatever each would find out alone, and none waits for
ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile import options
from polytile.compiler import races
from polytile.dispatch import agreement
from polytile.dispatch.agreement import Job
from polytile.dispatch.links import measured
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import background
from tests.dispatch.helpers import Fake, arguments, double, spec
from tests.waiting import PATIENCE, until

distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")


class Ranks:
    """Two ranks in this process, each with measurements of its own; a thread is the rank that it says it is."""

    def __init__(self, folder: Path, store: Any) -> None:
        self.jobs = [Job(store, rank) for rank in range(2)]
        self.folder = folder
        self.names: list[str] = []
        self._here = threading.local()

    def job(self) -> Job:
        return self.jobs[getattr(self._here, "rank", 0)]

    def become(self, rank: int) -> None:
        self._here.rank = rank

    def kernel(self, rank: int, *candidates: Fake, **options: Any) -> MultiKernel:
        given = {"agree": "ranks", "isolation": "never", "stall": "tune", "store": str(self.folder / f"{rank}.sqlite3")}
        return MultiKernel(spec(), candidates, {**given, **options})

    def call(self, rank: int, kernel: MultiKernel, rows: int = 32) -> str:
        """What rank `rank` runs at so many rows."""
        self.become(rank)
        x, y, m, n = arguments(rows)
        kernel(x, y, m, n)
        assert torch.equal(y, 2 * x)
        decision = kernel.decision_at(m, n)
        return "" if decision is None else decision.candidate


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    made = Ranks(tmp_path, distributed.HashStore())
    monkeypatch.setattr(agreement, "job", made.job)
    real = agreement.name_of

    def noted(request: Any) -> str:
        made.names.append(real(request))
        return made.names[-1]

    monkeypatch.setattr(agreement, "name_of", noted)
    return made


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    background.drop()
    assert background.wait(PATIENCE)


def first_is_faster() -> tuple[Fake, Fake]:
    return Fake("first", 1e-5), Fake("second", 3e-5)


def second_is_faster() -> tuple[Fake, Fake]:
    return Fake("first", 3e-5), Fake("second", 1e-5)


def test_the_rank_that_decides_first_decides_for_all(ranks: Ranks, fake_clock: list[str]) -> None:
    one, other = ranks.kernel(0, *first_is_faster()), ranks.kernel(1, *second_is_faster())
    assert ranks.call(1, other) == "second"
    fake_clock.clear()
    assert ranks.call(0, one) == "second" and not fake_clock, "it measures nothing itself"
    assert (one.decisions[0].link, "by rank 1 for all" in one.decisions[0].provenance) == ("measured", True)
    assert one.decisions[0].seconds == other.decisions[0].seconds


def test_without_measuring_they_follow_one_prediction(ranks: Ranks, fake_clock: list[str]) -> None:
    one = ranks.kernel(0, Fake("first", predicted=1e-5), Fake("second", predicted=2e-5), stall="compile")
    other = ranks.kernel(1, Fake("first", predicted=2e-5), Fake("second", predicted=1e-5), stall="compile")
    assert ranks.call(0, one) == ranks.call(1, other) == "first" and not fake_clock


def test_ranks_that_meet_different_regimes_do_not_wait_for_each_other(ranks: Ranks, fake_clock: list[str]) -> None:
    one, other = ranks.kernel(0, *first_is_faster()), ranks.kernel(1, *second_is_faster())
    assert (ranks.call(0, one, 32), ranks.call(1, other, 5000)) == ("first", "second")
    assert (ranks.call(0, one, 5000), ranks.call(1, other, 32)) == ("second", "first")


def test_one_rank_measures_and_the_others_wait_for_it(ranks: Ranks, fake_clock: list[str]) -> None:
    measuring, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        measuring.set()
        assert go_on.wait(PATIENCE)
        double(*args)

    one = ranks.kernel(0, Fake("first", 1e-5, call=slow), Fake("second", 3e-5))
    mine, theirs = second_is_faster()
    other = ranks.kernel(1, mine, theirs)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(ranks.call(0, one)))]
    threads[0].start()
    assert measuring.wait(PATIENCE)
    asked = len(ranks.names)
    threads.append(threading.Thread(target=lambda: found.append(ranks.call(1, other))))
    threads[1].start()
    until(lambda: len(ranks.names) > asked, "the other rank asks")
    assert not theirs.calls and not mine.calls
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == ["first", "first"] and not theirs.calls


def test_a_rank_that_ends_while_it_measures_keeps_the_others_only_so_long(
    ranks: Ranks, fake_clock: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gone, other = ranks.kernel(0, *first_is_faster()), ranks.kernel(1, *second_is_faster(), agree_seconds=0.05)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(measured, "tuner", interrupted)
        ranks.call(0, gone)
    with caplog.at_level(logging.WARNING, "polytile"):
        assert ranks.call(1, other) == "first" and not fake_clock
    assert "no rank decided within 0.05 s" in caplog.text and other.decisions[0].link == "prior"
    assert ranks.call(0, gone) == "first", "one that comes back follows what was decided meanwhile"
    assert "no rank decided" in gone.decisions[0].provenance


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


class Broken:
    """A store whose host is gone."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection reset by peer\nhow it came to that")


class Silent:
    """A store that never answers."""

    def check(self, keys: list[str]) -> bool:
        return threading.Event().wait(PATIENCE)


@pytest.mark.parametrize(("store", "why"), [(Broken(), "Connection reset by peer"), (Silent(), "it did not answer in time")])
def test_without_the_jobs_store_the_prediction_decides(
    store: Any, why: str, ranks: Ranks, fake_clock: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ranks.jobs[0] = Job(store, 0)
    kernel = ranks.kernel(0, *second_is_faster(), agree_seconds=0.05)
    with caplog.at_level(logging.WARNING, "polytile"):
        assert (ranks.call(0, kernel, 32), ranks.call(0, kernel, 5000)) == ("first", "first")
    assert caplog.text.count(f"({why})") == 1 and not fake_clock
    assert {decision.link for decision in kernel.decisions} == {"prior"}


def test_in_the_background_one_rank_measures_and_the_others_follow(ranks: Ranks, fake_clock: list[str]) -> None:
    one, other = ranks.kernel(0, *first_is_faster(), stall="never"), ranks.kernel(1, *second_is_faster(), stall="never")
    for kernel in (one, other):  # the background thread is rank 0 to all
        ranks.call(0, kernel)
        assert background.wait(PATIENCE)
        assert kernel.decisions[0].link == "measured" and kernel.decisions[0].candidate == "first"
    assert fake_clock.count("second") == fake_clock.count("first"), "by one rank alone"
    assert not other.learning.trials  # type: ignore[union-attr]  # it has one


def test_in_the_background_nobody_waits_for_a_rank_that_has_ended(ranks: Ranks) -> None:
    kernel = ranks.kernel(0, *second_is_faster(), stall="never", agree_seconds=0.2)
    ranks.call(0, kernel)
    assert background.wait(PATIENCE) and kernel.decisions[0].link == "measured"
    lease = ranks.names[-1]
    fresh = Job(distributed.HashStore(), 0)
    Job(fresh._store, 1).holds_lease(lease)
    ranks.jobs[0] = fresh
    other = ranks.kernel(1, *second_is_faster(), stall="never", agree_seconds=0.2)
    ranks.call(0, other)
    assert background.wait(PATIENCE)
    assert other.decisions[0].link == "prior" and "no rank decided within 0.2 s" in other.decisions[0].provenance


def test_a_candidate_that_fails_on_one_rank_is_replaced_there_and_reported(
    ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Fake("first", 1e-5, failure=RuntimeError("no compiler"))
    one, other = ranks.kernel(0, *first_is_faster()), ranks.kernel(1, broken, Fake("second", 3e-5))
    assert ranks.call(0, one) == "first"
    with caplog.at_level(logging.WARNING, "polytile"):
        assert ranks.call(1, other) == "second"


def test_times_of_one_rank_subdivide_no_regime(ranks: Ranks, fake_clock: list[str]) -> None:
    def kernel(rank: int) -> MultiKernel:
        small = Fake("small", lambda sizes: 1e-8 * sizes["M"], lambda sizes: 1e-8 * sizes["M"])
        return ranks.kernel(rank, small, Fake("large", 6e-6, 6e-6))

    one, other = kernel(0), kernel(1)
    for rows in (513, 700, 540, 680):
        assert ranks.call(0, one, rows) == ranks.call(1, other, rows)
    assert all(decision.part_of is None for decision in (*one.decisions, *other.decisions))


def test_ranks_that_agree_race_no_calls_against_eager() -> None:
    with options.override(race_eager=True, stall="tune"):
        assert races.allowed()
        with options.override(agree="ranks"):
            assert not races.allowed()


def test_a_process_without_a_job_chooses_as_ever(
    monkeypatch: pytest.MonkeyPatch, fake_clock: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    kernel = MultiKernel(spec(), second_is_faster(), {"agree": "ranks", "isolation": "never", "stall": "tune"})
    agreement._tell_of_no_group.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level(logging.WARNING, "polytile"):
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "second"
    assert "init_process_group" in caplog.text
