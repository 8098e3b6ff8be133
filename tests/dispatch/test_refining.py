"""Sizes that come often in a regime that others have decided are measured themselves, and what is better there is kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from polytile import options
from polytile.counters import counters
from polytile.dispatch import planfile, refining
from polytile.dispatch.links import measured
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.request import Answer
from polytile.errors import OptionError
from polytile.runtime.python_dispatcher import PythonDispatcher
from polytile.tuning import budget
from tests.dispatch.helpers import SPEC, Fake, Speed, arguments, new_process

WHOLE = "M=91..128%16 N=46..64%16"
SECONDS = 1.0
"""What a call takes by the fake clock: measuring two candidates pays after 669 such calls, so at the third look."""

ENOUGH = 3 * refining.LEAST_CALLS


@pytest.fixture(params=["c", "python"], autouse=True)
def either_dispatcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr("polytile.dispatch.multikernel.new_dispatcher", PythonDispatcher)


@pytest.fixture(autouse=True)
def time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as the calls would take by the fake clock, and more."""
    monkeypatch.setattr(refining, "clock", itertools.count(step=10**6).__next__)


def only_at(rows: int, there: float, elsewhere: float) -> Speed:
    return lambda sizes: there if sizes["M"] == rows else elsewhere


def two(gain: float = 0.2, **changes: bool) -> list[Fake]:
    """"usual" is the faster one but for 112 rows, which no prediction says."""
    usual = Fake("usual", SECONDS, SECONDS, **changes)
    return [usual, Fake("rare", only_at(112, (1 - gain) * SECONDS, 1.1 * SECONDS), 1.1 * SECONDS)]


def call(kernel: MultiKernel, rows: int, times: int = 1) -> str:
    """Makes so many calls; returns what runs there afterwards."""
    args = arguments(rows)
    for _ in range(times):
        kernel(*args)
    decision = kernel.decision_at(*args)
    assert decision is not None and torch.equal(args[1], 2 * args[0])
    return decision.candidate


def test_sizes_that_come_often_are_measured_once_and_get_their_own_candidate(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, two())
    assert call(kernel, 96) == "usual"
    timed = len(fake_clock)
    assert call(kernel, 112, ENOUGH - 1) == "usual" and len(fake_clock) == timed
    assert call(kernel, 112) == "rare" and len(fake_clock) > timed
    first, second = kernel.decisions
    assert tuple(map(str, (first.regime, second.regime, second.part_of))) == (WHOLE, "M=112 N=64", WHOLE)
    assert second.provenance == "measured now, as these sizes come often" and second.link == "measured"
    assert counters["sizes_refined"] == 1 and counters["candidates_benchmarked"] == 4
    calls = len(kernel.candidates[1].calls)  # type: ignore[attr-defined]
    assert call(kernel, 112, 9) == "rare" and len(kernel.candidates[1].calls) == calls + 9  # type: ignore[attr-defined]
    assert call(kernel, 96) == call(kernel, 128) == "usual", "the regime stays whole"
    assert counters["dispatch_misses"] == 1


class Built(Fake):
    """Builds something for each size, as cuDNN does for attention."""

    per_size = True


def test_what_is_built_for_each_size_runs_at_exact_sizes_alone(fake_clock: list[str]) -> None:
    """The regime gets the best of the others, so that sizes that come once do not wait for anything to be built."""
    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS), Built("built", SECONDS / 2, 9 * SECONDS, "sdpa")])
    assert call(kernel, 96) == "built"
    timed = len(fake_clock)
    assert [call(kernel, rows) for rows in (112, 128)] == ["usual", "usual"] and len(fake_clock) == timed
    assert call(kernel, 112, ENOUGH) == "built", "sizes that come often have it built for them"
    assert call(kernel, 128) == "usual"


def test_what_is_as_good_there_stays(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, two(gain=0.015))
    call(kernel, 96)
    assert call(kernel, 112, ENOUGH) == "usual" and counters["sizes_refined"] == 1
    timed = len(fake_clock)
    call(kernel, 112, 2 * ENOUGH)
    assert len(fake_clock) == timed and [str(decision.regime) for decision in kernel.decisions] == [WHOLE]


def test_sizes_that_decided_their_regime_are_not_measured_again(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 112)
    timed = len(fake_clock)
    call(kernel, 112, 3 * ENOUGH)
    assert len(fake_clock) == timed and counters["sizes_refined"] == 0


def test_it_takes_the_share_of_time_that_the_option_says(fake_clock: list[str]) -> None:
    with options.override(refine=0.003):
        kernel = MultiKernel(SPEC, two())
        call(kernel, 96)
        assert call(kernel, 112, 6600) == "usual"
        assert call(kernel, 112, 500) == "rare"


def test_calls_that_had_no_time_to_take_so_long_are_not_believed(
    monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]
) -> None:
    monkeypatch.setattr(refining, "clock", lambda: 0.0)
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    timed = len(fake_clock)
    assert call(kernel, 112, 2 * ENOUGH) == "usual" and len(fake_clock) == timed
    monkeypatch.setattr(refining, "clock", lambda: 2000.0)
    assert call(kernel, 112, ENOUGH) == "rare"


@pytest.mark.parametrize("how", [{"refine": 0}, {"tune": "off"}, {"tune": "all"}, {"force": "usual"}])
def test_options_that_say_no(how: Mapping[str, object], fake_clock: list[str]) -> None:
    call(MultiKernel(SPEC, two()), 96)
    kernel = MultiKernel(SPEC, two(), how)
    call(kernel, 96)
    timed = len(fake_clock)
    assert call(kernel, 112, 2 * ENOUGH) == "usual" and len(fake_clock) == timed


@pytest.mark.parametrize("what", ["time", "memory"])
def test_where_there_is_no_time_or_memory_for_measuring_the_call_goes_on(
    what: str, monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]
) -> None:
    def full(*_: object, **__: object) -> Answer:
        raise torch.OutOfMemoryError

    kernel = MultiKernel(SPEC, two())
    kernel.budget = budget.Budget(1000.0, "the program")
    call(kernel, 96)
    if what == "time":
        kernel.budget.charge(1000.0)
    else:
        monkeypatch.setattr(measured, "trial", full)
    timed = len(fake_clock)
    assert call(kernel, 112, 2 * ENOUGH) == "usual" and len(fake_clock) == timed


def test_an_option_that_says_no_later_is_heard(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    timed = len(fake_clock)
    with options.override(refine=0):
        assert call(kernel, 112, 2 * ENOUGH) == "usual" and len(fake_clock) == timed


def test_calls_of_a_decision_that_failed_count_for_nothing() -> None:
    """On record "usual" is the faster one; it raises in its first run, and what is left has not been measured beside anything."""
    call(MultiKernel(SPEC, two()), 96)
    new_process()

    def raises(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        raise RuntimeError("no such instruction")

    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS, call=raises), two()[1]])
    assert call(kernel, 96) == "rare" and kernel.decisions[0].link == "only"
    assert call(kernel, 112, 2 * ENOUGH) == "rare"


@pytest.mark.parametrize("what", ["deterministic", "recording"])
def test_not_while_nothing_may_be_timed(what: str, monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    timed = len(fake_clock)
    with monkeypatch.context() as patch:
        if what == "recording":
            patch.setattr("polytile.dispatch.request._recording", lambda request: True)
        else:
            patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        assert call(kernel, 112, ENOUGH) == "usual" and len(fake_clock) == timed
    assert call(kernel, 112, ENOUGH) == "rare", "the next look may"


@pytest.mark.parametrize("order", [(96, 112), (112, 96)])
def test_a_later_process_knows_it_at_once_and_measures_nothing(order: tuple[int, ...]) -> None:
    """Whichever comes first decides the regime; the other gets an entry of its own."""
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    new_process()
    counters.reset()
    later = MultiKernel(SPEC, two())
    assert {rows: call(later, rows) for rows in order} == {96: "usual", 112: "rare"}
    assert {str(decision.regime) for decision in later.decisions} == {WHOLE, f"M={order[1]} N=64"}
    for rows in order:
        call(later, rows, 2 * ENOUGH)
    assert counters["candidates_benchmarked"] == counters["sizes_refined"] == 0


def test_a_later_process_does_not_ask_again_what_came_to_nothing() -> None:
    kernel = MultiKernel(SPEC, two(gain=0))
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    new_process()
    counters.reset()
    later = MultiKernel(SPEC, two(gain=0))
    call(later, 96)
    assert call(later, 112, ENOUGH) == "usual" and counters["candidates_benchmarked"] == 0


def test_a_later_process_without_it_goes_by_the_regime() -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    new_process()
    later = MultiKernel(SPEC, two(), {"refine": 0})
    call(later, 96)
    assert call(later, 112) == "usual"


def test_a_plan_pins_it(tmp_path: Path) -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    planfile.Plan(tuple(planfile.pinned_by(kernel)), planfile.here()).write(tmp_path / "plan")
    new_process()
    counters.reset()
    for order in ((96, 112, 128), (112, 128, 96)):
        with options.override(persist=False):
            pinned = MultiKernel(SPEC, two(), {"plan": str(tmp_path / "plan"), "plan_missing": "error"})
            found = {rows: call(pinned, rows) for rows in order}
        assert found == {96: "usual", 112: "rare", 128: "usual"}
        assert [decision.link for decision in pinned.decisions] == ["plan"] * 2
    assert counters["candidates_benchmarked"] == 0


def test_a_plan_that_does_not_say_at_which_sizes_is_refused(tmp_path: Path) -> None:
    kernel, path = MultiKernel(SPEC, two()), tmp_path / "plan"
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    pinned = [replace(entry, sizes=()) if entry.of_exact_sizes else entry for entry in planfile.pinned_by(kernel)]
    planfile.Plan(tuple(pinned), planfile.here()).write(path)
    new_process()
    with pytest.raises(OptionError, match="pins kernel .* at sizes without .*save_plan"):
        call(MultiKernel(SPEC, two(), {"plan": str(path)}), 96)


def test_sizes_come_often_among_others() -> None:
    """Every third call; those between are at seventeen other sizes."""
    rare = Fake("rare", only_at(1024, 0.8 * SECONDS, 1.1 * SECONDS), 1.1 * SECONDS)
    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS), rare])
    kernel(*arguments(736, 9))
    hot, *others = [arguments(rows, 9) for rows in (1024, *range(752, 1024, 16))]
    for number in range(5 * ENOUGH):
        kernel(*(hot if number % 3 == 0 else others[number % len(others)]))
    assert [str(decision.regime) for decision in kernel.decisions][1:] == ["M=1024 N=9"] and counters["sizes_refined"] == 1


def test_no_more_sizes_are_counted_than_there_is_room_for() -> None:
    arrived = refining.Arrivals(SECONDS, 1e9, set())
    for number in range(1000):
        arrived.count_call(frozenset({("M", number)}))
        arrived.count_call(frozenset({("M", -1)}))
        assert len(arrived.calls) <= refining.MOST_SIZES
    assert arrived.calls[frozenset({("M", -1)})] > 400 * arrived.interval


def test_short_kernels_are_looked_at_rarely() -> None:
    price = 2 * refining.SECONDS_EACH
    assert refining.Arrivals(1e-6, price, set()).interval > 1e5
    assert refining.Arrivals(1e-2, price, set()).interval == refining.LEAST_CALLS


@dataclass
class Compiling(Fake):
    is_made: bool = False

    def ready(self) -> bool:
        return self.is_made


def test_nothing_is_compiled_for_it(fake_clock: list[str]) -> None:
    slow = Compiling("rare", only_at(112, 0.8 * SECONDS, 1.1 * SECONDS), only_at(112, SECONDS, 2 * SECONDS))
    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS), Fake("second", 1.05 * SECONDS, SECONDS), slow])
    call(kernel, 96)
    assert set(fake_clock) == {"usual", "second"}, "predicted to lose there"
    assert call(kernel, 112, 2 * ENOUGH) == "usual" and "rare" not in fake_clock and not slow.entries
    assert counters["sizes_refined"] == 1


def test_what_runs_other_code_at_other_sizes_is_chosen_again_for_its_own() -> None:
    """Of 1120 rows, in the same sub-bucket as 1040, nothing was known but that its careful form would do."""
    proposal, other = Fake("proposal", SECONDS, SECONDS, steady=False), Fake("other", 1.1 * SECONDS, 1.1 * SECONDS)
    kernel = MultiKernel(SPEC, [proposal, other])
    assert call(kernel, 1040) == call(kernel, 1120) == "proposal"
    (decision,) = kernel.decisions
    assert decision.part_of
    call(kernel, 1120, ENOUGH)
    assert {str(d.regime.facts[0]) for d in kernel.decisions} == {"M=1025..1152%16", "M=1120"}


def test_a_candidate_that_is_wrong_there_is_dropped_for_the_regime_too() -> None:
    def wrong_at_112(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * (3 if m == 112 and spoiled else 2))

    spoiled: list[bool] = []
    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS, call=wrong_at_112), Fake("other", 1.1 * SECONDS, 1.1 * SECONDS)])
    call(kernel, 96)
    args = arguments(112)
    for _ in range(ENOUGH - 1):
        kernel(*args)
    spoiled.append(True)
    kernel(*args)
    assert torch.equal(args[1], 2 * args[0]), "the call that found it out is right already"
    assert "usual" in kernel.faulty and call(kernel, 96) == "other"


def test_forgetting_puts_sizes_back() -> None:
    kernel = MultiKernel(SPEC, two())
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    kernel.forget()
    assert kernel.decisions == () and call(kernel, 112) == "rare" and len(kernel.decisions) == 1


def test_what_is_known_of_exact_sizes_says_nothing_of_the_regimes_around() -> None:
    """By 20 % at 112 rows: were it evidence, the regimes next to it would be subdivided."""
    kernel = MultiKernel(SPEC, two(gain=0.5))
    call(kernel, 96)
    call(kernel, 112, ENOUGH)
    assert call(kernel, 144) == "usual"
    assert [str(d.part_of or "") for d in kernel.decisions] == ["", WHOLE, ""]


@pytest.mark.parametrize("others", [0, 1])
def test_where_all_are_wrong_the_librarys_goes_on_as_in_a_first_call(others: int) -> None:
    """One of them the next call finds out."""

    def wrong_at_112(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * (3 if m == 112 and spoiled else 2))

    spoiled: list[bool] = []
    slow = [Fake("slow", 1.9 * SECONDS, 1.9 * SECONDS, call=wrong_at_112)] * others
    library = Fake("aten", 1.1 * SECONDS, 1.1 * SECONDS, origin="library", call=wrong_at_112)
    kernel = MultiKernel(SPEC, [Fake("usual", SECONDS, SECONDS, call=wrong_at_112), *slow, library])
    assert call(kernel, 96) == "usual"
    args = arguments(112)
    for _ in range(ENOUGH - 1):
        kernel(*args)
    spoiled.append(True)
    for _ in range(2 * ENOUGH):
        kernel(*args)
    assert {"usual", "aten"} <= kernel.faulty.keys()
    spoiled.clear()
    assert call(kernel, 96) == call(kernel, 112) == "aten"
