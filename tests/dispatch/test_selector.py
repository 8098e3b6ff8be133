"""The chain: who answers, in which order, and what a decision says about where it came from."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile import counters, options, store
from polytile.dispatch import planfile, trace
from polytile.dispatch.decision import Decision, Standing
from polytile.dispatch.links import model
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import OptionError
from polytile.facts import Layout
from polytile.learn.offer import Offer
from polytile.problem import Config, Problem
from polytile.tuning import measure
from tests.dispatch.helpers import SPEC, Fake, arguments, new_process, spec


def decided(*candidates: Fake, m: int = 32, n: int = 64, **changes: Any) -> Decision:
    kernel = MultiKernel(spec(**changes), candidates)
    kernel(*arguments(m, n))
    return kernel.decisions[0]


def pair() -> tuple[Fake, Fake]:
    return Fake("a", 2e-5, 1e-5), Fake("b", 1e-5, 1.5e-5)


def test_an_unknown_problem_is_measured_and_the_times_are_told() -> None:
    decision = decided(*pair())
    assert (decision.candidate, decision.link, decision.provenance) == ("b", "measured", "measured now")
    assert [standing.candidate for standing in decision.runners_up] == ["a"]
    assert decision.runners_up[0].seconds == pytest.approx(2e-5)
    assert str(decision).startswith("double [M=32, N=64] -> b: measured now; others: a 20 µs")


def test_a_later_process_finds_the_measurement_and_times_nothing(fake_clock: list[str]) -> None:
    decided(*pair())
    timed = len(fake_clock)
    new_process()
    decision = decided(*pair())
    assert (decision.candidate, decision.link) == ("b", "exact")
    assert len(fake_clock) == timed and counters["store_hits"] == 1 and counters["candidates_benchmarked"] == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel": "another"},
        {"device": "cpu-other"},
        {"layouts": (Layout("x column-major"),)},
    ],
)
def test_what_can_change_the_winner_is_part_of_the_key(changed: dict[str, Any]) -> None:
    decided(*pair())
    assert decided(*pair(), **changed).link == "measured"


def test_the_number_of_threads_is_part_of_the_key() -> None:
    decided(*pair())
    with options.override(threads=7):
        assert decided(*pair()).link == "measured"


def test_a_candidate_whose_source_changed_is_measured_again() -> None:
    a, b = pair()
    decided(a, b)
    assert decided(a, Fake("b", 1e-5, 1.5e-5, source_hash="edited")).link == "measured"
    assert decided(a, Fake("b", 1e-5, 1.5e-5, config=Config.of({"M": 4096}))).link == "measured"


class Unread(Fake):
    """A candidate whose source nobody may ask for."""

    def __getattribute__(self, name: str) -> Any:
        assert name != "source_hash", "its source is generated for nothing"
        return super().__getattribute__(name)

    def __post_init__(self) -> None: ...


def test_no_source_is_generated_where_nothing_is_on_record() -> None:
    with options.override(tune="off"):
        assert decided(Unread("a", predicted=2e-5), Unread("b")).link == "prior"
    decided(*pair(), m=600)
    new_process()
    with options.override(tune="off"):
        assert decided(Unread("c", predicted=2e-5), Unread("d"), m=611).link == "prior"


def test_measurements_that_lack_a_candidate_of_the_shortlist_do_not_decide() -> None:
    a, b = pair()
    decided(a, b)
    assert decided(a, b, Fake("c", 1e-6, 0.8e-5)).candidate == "c"


def test_what_another_process_measured_meanwhile_is_used() -> None:
    kernel = MultiKernel(SPEC, pair())
    kernel(*arguments(512))  # the index is in memory now
    other = store.Store(store.current().place)
    for measurement in store.current().measurements():
        sizes = (("M", 32), ("N", 64))
        problem = dataclasses.replace(measurement.problem, sizes=sizes, device="cpu-test")
        other.append(type(measurement)(problem, *list(vars(measurement).values())[1:]))
    other.close()
    kernel(*arguments(32))
    assert kernel.decisions[1].link == "measured" and kernel.decisions[1].provenance.startswith("measured before")
    assert counters["candidates_benchmarked"] == 2


def test_thorough_measuring_takes_a_doubtful_record_again_and_a_clear_one_as_it_is() -> None:
    chance = random.Random(0)
    close = Fake("a", lambda _: 1.02e-5 * (1 + chance.random() / 5)), Fake("b", lambda _: 1e-5 * (1 + chance.random() / 5))
    clear = Fake("a", 2e-5), Fake("b", 1e-5)
    decided(*clear)
    with options.override(tune="thorough"):
        assert decided(*clear).link == "exact"
        assert decided(*clear, m=601).link == "measured"
        assert decided(*clear, m=611).link == "measured", "neighbours are no answer"
    for times in (1, 2, 3):
        with options.override(tune="thorough"):
            assert decided(*close, m=71).link == "measured"
        assert len([m for m in store.current().measurements() if dict(m.problem.sizes)["M"] == 71]) == 2 * times
    with options.override(tune="thorough"):
        assert decided(*close, m=71).link == "exact", "three times is enough"


def test_a_size_of_the_same_regime_needs_no_new_measurement() -> None:
    decided(*pair(), m=600, n=64)
    new_process()
    decision = decided(*pair(), m=611, n=64)
    assert (decision.candidate, decision.link) == ("b", "nearby")
    assert decision.provenance == "measured before, nearby at M=600, N=64"
    assert counters["store_hits"] == 1


def test_a_size_between_two_measured_ones_that_agree_needs_no_new_measurement() -> None:
    for m in (720, 1000):
        decided(*pair(), m=m + 1)
    decision = decided(*pair(), m=760 + 1)
    assert (decision.candidate, decision.link) == ("b", "nearby")


def test_neighbours_that_disagree_do_not_decide() -> None:
    a, b = Fake("a", lambda s: 1e-5 if s["M"] < 700 else 3e-5), Fake("b", 2e-5)
    assert decided(a, b, m=601).candidate == "a"
    assert decided(a, b, m=701).candidate == "a"
    kernel = MultiKernel(SPEC, (a, b))
    kernel(*arguments(650 + 1))
    (decision,) = kernel.decisions
    assert decision.link in ("nearby", "measured")


@pytest.mark.parametrize(("first", "second"), [(1001, 2001), (7, 5), (8, 9), (1008, 1009)])
def test_far_sizes_small_sizes_and_other_divisibility_are_no_neighbours(first: int, second: int) -> None:
    decided(*pair(), m=first)
    assert decided(*pair(), m=second).link == "measured"


def test_sizes_whose_value_matters_are_no_neighbours() -> None:
    decided(*pair(), m=601, n=100, size_codes=(1, 2))
    assert decided(*pair(), m=611, n=101, size_codes=(1, 2)).link == "measured"
    assert decided(*pair(), m=611, n=100, size_codes=(1, 2)).link == "nearby"


def test_sizes_that_do_not_matter_share_a_measurement() -> None:
    decided(*pair(), m=32, n=100, size_codes=(1, 0))
    assert decided(*pair(), m=32, n=999, size_codes=(1, 0)).link == "exact"


def test_with_tuning_off_the_prediction_decides_and_nothing_is_timed(fake_clock: list[str]) -> None:
    with options.override(tune="off"):
        decision = decided(*pair())
    assert (decision.candidate, decision.link) == ("a", "prior") and not fake_clock
    assert decision.provenance == "predicted 10 µs"


def test_deterministic_algorithms_make_the_choice_deterministic(fake_clock: list[str]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert (decided(*pair()).candidate, decided(*pair()).link) == ("a", "prior")
        assert not fake_clock
        torch.use_deterministic_algorithms(False)
        assert decided(*pair(), m=601).link == "measured"
        torch.use_deterministic_algorithms(True)
        assert decided(*pair(), m=601).link == "exact"
        assert decided(*pair(), m=611).link == "prior"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("force", ["b", "double=b", "other=c,doub*=b", "zzz,b"])
def test_a_candidate_can_be_forced_by_option_and_environment(force: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Fake("a", 1e-9), Fake("b", 1.0), Fake("c", 1e-9)
    with options.override(force=force):
        assert decided(*slow).candidate == "b"
    monkeypatch.setenv("POLYTILE_FORCE", force)
    decision = decided(*slow)
    assert (decision.candidate, decision.link) == ("b", "forced")


def test_forcing_a_kernel_to_a_candidate_it_does_not_have_is_an_error() -> None:
    with options.override(force="double=zzz"):
        with pytest.raises(OptionError, match=r"'zzz' of kernel 'double', which has none .* 'a', 'b'"):
            decided(*pair())
    with options.override(force="zzz"):
        assert decided(*pair()).candidate == "b"


def test_a_forced_candidate_that_cannot_run_here_is_passed_over_and_it_is_said() -> None:
    with options.override(force="double=a"):
        decision = decided(Fake("a", can=lambda sizes: False), Fake("b"), Fake("c", 1e-6))
    assert decision.candidate == "c" and decision.notes == ("'a' is forced but cannot run here",)


@pytest.mark.parametrize("winner", ["a", "b", "c"])
def test_each_sub_kernel_can_be_forced_by_replacing_the_clock(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [*pair(), Fake("c")]
    decided(*candidates)  # what is on record does not matter then
    before = len(store.current().measurements())
    monkeypatch.setattr(measure, "time_burst", lambda contender, repeats: float(contender.name != winner))
    decision = decided(*candidates)
    assert (decision.candidate, decision.link) == (winner, "forced")
    assert len(store.current().measurements()) == before


def test_hints_are_tuned_ahead_at_their_own_sizes(fake_clock: list[str]) -> None:
    seen: list[tuple[int, ...]] = []

    def watching(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        seen.append((*x.shape, m, n))
        y.copy_(x * 2)

    small = Fake("small", lambda s: 1e-6 * s["M"], config=Config.of({"M": 64}), call=watching)
    large = Fake("large", 1e-4, config=Config.of({"M": 4096}), call=watching)
    kernel = MultiKernel(SPEC, (small, large))
    decisions = kernel.warm([{"M": 64, "N": 16}, {"M": 1024, "N": 16}])
    assert [decision.candidate for decision in decisions] == ["small", "large"]
    assert set(seen) == {(64, 16, 64, 16), (1024, 16, 1024, 16)}
    timed = len(fake_clock)
    kernel(*arguments(64, 16))
    kernel(*arguments(1024, 16))
    assert len(fake_clock) == timed and counters["dispatch_misses"] == 0
    assert kernel.warm([{"M": 64, "N": 16}]) == decisions[:1]


def test_candidates_for_all_hints_start_compiling_before_the_first_is_waited_for() -> None:
    order: list[str] = []

    class Slow(Fake):
        def prepare(self) -> None:
            order.append(f"prepare {self.name}")

        def entry(self) -> Any:
            order.append(f"entry {self.name}")
            return super().entry()

    small = Slow("small", can=lambda sizes: sizes["M"] <= 64)
    large = Slow("large", can=lambda sizes: sizes["M"] > 64)
    MultiKernel(SPEC, (small, large, Fake("any"))).warm([{"M": 64, "N": 16}, {"M": 4096, "N": 16}])
    assert set(order[:2]) == {"prepare small", "prepare large"}


def test_equal_configs_for_different_hints_are_measured_apart() -> None:
    first = Fake("mm for 64", 2e-5, config=Config.of({"M": 64}, block=64), source_hash="same")
    second = Fake("mm for 4096", 1e-5, config=Config.of({"M": 4096}, block=64), source_hash="same")
    assert decided(first, second).candidate == "mm for 4096"
    assert len({m.config for m in store.current().measurements()}) == 2


def test_what_would_be_chosen_can_be_asked_without_arguments() -> None:
    kernel = MultiKernel(SPEC, pair())
    asked = kernel.choose({"M": 32, "N": 64})
    assert (asked.candidate, asked.link) == ("a", "prior")
    assert not kernel.decisions
    kernel(*arguments(32))
    assert kernel.choose({"M": 32, "N": 64}).candidate == "b"
    assert kernel.decision_at(32, 64) == kernel.decisions[0]
    assert kernel.decision_at(4096, 64) is None


def test_a_model_is_asked_before_anything_is_timed_and_may_be_unsure(fake_clock: list[str]) -> None:
    class Learned:
        name = "a test's model"

        def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
            return "a" if dict(problem.sizes)["M"] < 100 else None

    learned = Learned()
    model.register(learned)
    try:
        decision = decided(*pair(), m=32)
        assert (decision.candidate, decision.provenance) == ("a", "predicted by a test's model") and not fake_clock
        assert decided(*pair(), m=320).link == "measured"
    finally:
        model.unregister(learned)


def test_what_is_no_model_is_refused_with_what_it_lacks() -> None:
    class Nameless:
        def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
            return None

    with pytest.raises(OptionError, match="Nameless is a class: register Nameless"):
        model.register(Nameless)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="has a `name`, which is a text, and a method"):
        model.register(Nameless())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not registered; those that are: none"):
        model.unregister(Nameless())  # type: ignore[arg-type]


def test_times_of_a_decision_are_read_without_exponents() -> None:
    assert [str(Standing("a", seconds)) for seconds in (4.6912e-6, 9.9994e-3, 1.967e-2)] == [
        "a 4.691 µs", "a 9999 µs", "a 19 670 µs"
    ]  # fmt: skip


def test_a_plan_pins_decisions(tmp_path: Path, fake_clock: list[str]) -> None:
    path = str(tmp_path / "program.plan")
    kernel = MultiKernel(SPEC, pair())
    for m in (32, 601):
        kernel(*arguments(m))
    planfile.Plan(tuple(planfile.pinned_by(kernel)), planfile.here()).write(path)
    new_process()
    timed = len(fake_clock)
    with options.override(plan=path, persist=False):
        decision = decided(Fake("a", 1e-9), Fake("b", 1.0), m=611)
        assert (decision.candidate, decision.link, decision.provenance) == ("b", "plan", f"pinned by {path}")
        assert len(fake_clock) == timed
        assert decided(*pair(), m=5000).notes == ("not in the plan",)
        assert decided(Fake("a"), Fake("c"), m=32).notes == ("the plan's 'b' cannot run here",)
        edited = decided(Fake("a"), Fake("b", source_hash="edited"), m=32)
        assert edited.candidate == "b" and "its source has changed" in edited.provenance


def test_a_missing_or_foreign_plan_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with options.override(plan=str(tmp_path / "none")):
        with pytest.raises(OptionError, match="does not exist; write a plan there first"):
            decided(*pair())
    (tmp_path / "foreign").write_text(json.dumps({"format": "something else"}))
    with options.override(plan=str(tmp_path / "foreign")):
        with pytest.raises(OptionError, match="no plan file"):
            decided(*pair())


def test_every_decision_is_a_row_of_the_metrics_table(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    with options.override(metrics=str(path)):
        decided(*pair(), m=32)
        decided(*pair(), m=601)
        decided(*pair(), m=32)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["size_hints"] for row in rows] == ["M=32;N=64", "M=601;N=64", "M=32;N=64"]
    first = rows[0]
    assert first["multikernel"] == "double" and first["reduction_hint"] == "inner" and first["operators"] == "aten.mul"
    assert first["kernels"] == "a;b" and first["pick"] == "b"
    assert [float(time) for time in first["latencies_us"].split(";")] == pytest.approx([20.0, 10.0])
    assert len(first["source_paths"].split(";")) == 2
    assert [row["link"] for row in rows] == ["measured", "measured", "exact"]


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def test_processes_that_write_metrics_at_once_write_one_header_and_whole_rows(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(200):
            trace._append(str(tmp_path / "m.csv"), ["double", "x" * 500, *map(str, range(9))])

    children = [in_child(write) for _ in range(3)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][0] == "multikernel" and len(rows) == 601
    assert all(row[:2] == ["double", "x" * 500] and len(row) == 11 for row in rows[1:])


def test_debug_prints_a_line_for_each_decision(capfd: pytest.CaptureFixture[str]) -> None:
    with options.override(debug=1):
        decided(*pair())
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "polytile: double [M=32, N=64] -> b: measured now; others: a 20 µs"


def test_with_persist_off_each_process_measures_for_itself(no_persist: None) -> None:
    assert decided(*pair()).link == "measured"
    assert decided(*pair()).link == "exact"
    new_process()
    assert decided(*pair()).link == "measured"


def test_when_measuring_fails_altogether_the_library_is_used() -> None:
    kernel = MultiKernel(SPEC, [Fake("a"), Fake("aten", 1e-5, 9.0, "library")])
    with options.override(shortlist=1):
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate in ("a", "aten")


def test_every_decision_is_listed() -> None:
    kernel = MultiKernel(SPEC, pair())
    kernel(*arguments(32))
    kernel(*arguments(601))
    assert [str(decision).split(":")[0] for decision in kernel.decisions] == [
        "double [M=32, N=64] -> b",
        "double [M=601, N=64] -> b",
    ]
