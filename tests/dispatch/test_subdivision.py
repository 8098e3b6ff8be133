"""Regimes in which the best candidate changes are subdivided into sub-buckets that decide for themselves; the others are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from polytile import options
from polytile.counters import counters
from polytile.dispatch import planfile
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.subdivision import Evidence, Expectation
from polytile.runtime.python_dispatcher import PythonDispatcher
from tests.dispatch.helpers import SPEC, Fake, Speed, arguments, new_process

WHOLE = "M=91..128%16 N=46..64%16"


@pytest.fixture(params=["c", "python"], autouse=True)
def either_dispatcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr("polytile.dispatch.multikernel.new_dispatcher", PythonDispatcher)


def tiled(width: int, per_tile: float) -> Speed:
    """Seconds of a kernel that works on whole tiles of `width` rows."""
    return lambda sizes: -(-sizes["M"] // width) * width * per_tile


def ragged() -> list[Fake]:
    """Tiles of 48 rows, better at 96 rows, and of 64, better at 128; what they predict is too much for both."""
    return [Fake(f"by {width}", tiled(width, 1e-6), tiled(width, 3e-6)) for width in (48, 64)]


def called(kernel: MultiKernel, sizes: Sequence[int]) -> list[str]:
    """What runs at each number of rows, in this order."""
    found = []
    for m in sizes:
        args = arguments(m)
        kernel(*args)
        decision = kernel.decision_at(*args)
        assert decision is not None and (args[1] == args[0] * 2).all()
        found.append(decision.candidate)
    return found


@pytest.mark.parametrize("order", [(96, 128), (128, 96)])
def test_a_regime_in_which_the_winner_changes_is_subdivided(order: tuple[int, ...]) -> None:
    kernel = MultiKernel(SPEC, ragged())
    assert dict(zip(order, called(kernel, order), strict=True)) == {96: "by 48", 128: "by 64"}
    assert {str(d.regime) for d in kernel.decisions} == {"M=91..96%16 N=61..64%16", "M=121..128%16 N=61..64%16"}
    assert {str(d.part_of or "") for d in kernel.decisions} == {WHOLE}
    assert counters["candidates_benchmarked"] == 4
    misses = counters["dispatch_misses"]
    called(kernel, order)
    assert counters["dispatch_misses"] == misses and counters["candidates_benchmarked"] == 4


def test_what_is_other_code_at_other_sizes_decides_for_its_sub_bucket_alone() -> None:
    proposal = Fake("proposal", lambda sizes: 1e-6 if sizes["M"] == 96 else 9e-6, steady=False)
    kernel = MultiKernel(SPEC, [proposal, Fake("other", 2e-6)])
    assert called(kernel, (96, 112, 128, 96)) == ["proposal", "other", "other", "proposal"]
    assert {str(d.part_of or "") for d in kernel.decisions} == {WHOLE}


def test_what_was_the_fastest_is_pinned_to_the_sizes_it_was_timed_at_and_what_is_forced_is_not() -> None:
    """What a regime keeps of a candidate may be a form of it that is careful at other sizes."""
    kept: list[Mapping[str, int]] = []

    class Careful(Fake):
        def pinned_to(self, sizes: Mapping[str, int]) -> Fake:
            kept.append(dict(sizes))
            return self

    candidates = [Careful("careful", 1e-6, steady=False), Fake("other", 2e-6)]
    called(MultiKernel(SPEC, candidates), (96, 96))
    assert kept == [{"M": 96, "N": 64}]
    with options.override(force="careful"):
        called(MultiKernel(SPEC, candidates), (112,))
    assert len(kept) == 1


def test_a_regime_with_one_winner_stays_whole() -> None:
    kernel = MultiKernel(SPEC, [Fake("a", tiled(16, 1e-6), tiled(16, 1e-6)), Fake("b", tiled(16, 2e-6), tiled(16, 1e-6))])
    assert called(kernel, (96, 112, 128)) == ["a", "a", "a"]
    assert [str(d.regime) for d in kernel.decisions] == [WHOLE] and counters["dispatch_misses"] == 1


def test_an_expected_gain_within_the_margin_subdivides_nothing() -> None:
    one = Fake("a", 1.00e-4, lambda sizes: 1e-4 * (1.04 if sizes["M"] == 128 else 1))
    kernel = MultiKernel(SPEC, [one, Fake("b", 1.03e-4, 1e-4)])
    assert called(kernel, (96, 128)) == ["a", "a"] and len(kernel.decisions) == 1


def test_a_neighbour_that_decides_otherwise_subdivides_a_regime_decided_before() -> None:
    """Predictions tell the two apart nowhere; what is measured at 144 rows says more about 128 than what is at 96."""
    kernel = MultiKernel(SPEC, [Fake("few", lambda s: 1e-5 if s["M"] <= 100 else 4e-5), Fake("many", 2e-5)])
    assert called(kernel, (96, 128, 144, 128)) == ["few", "few", "many", "many"]
    assert {str(d.regime.facts[0]) for d in kernel.decisions} == {"M=91..96%16", "M=121..128%16", "M=129..181%16"}


def test_the_sub_buckets_of_a_regime_keep_what_ran_in_all_of_it(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, [Fake("few", lambda s: 1e-5 if s["M"] <= 100 else 4e-5), Fake("many", 2e-5)])
    called(kernel, (96, 144))
    timed = len(fake_clock)
    assert called(kernel, (96,)) == ["few"] and len(fake_clock) == timed


def test_a_later_process_subdivides_alike_and_measures_nothing() -> None:
    called(MultiKernel(SPEC, ragged()), (96, 128))
    new_process()
    counters.reset()
    assert called(MultiKernel(SPEC, ragged()), (128, 96)) == ["by 64", "by 48"]
    assert counters["candidates_benchmarked"] == 0


def test_a_neighbour_in_the_store_vouches_only_where_it_is_expected_to_hold() -> None:
    called(MultiKernel(SPEC, ragged()), (96,))
    new_process()
    counters.reset()
    kernel = MultiKernel(SPEC, ragged())
    assert called(kernel, (128,)) == ["by 64"] and counters["candidates_benchmarked"] == 2
    (decision,) = kernel.decisions
    assert decision.notes == ("by 48, measured nearby at M=96, N=64, is expected to be slower here",)


def test_forgetting_makes_regimes_whole_again() -> None:
    kernel = MultiKernel(SPEC, ragged())
    called(kernel, (96, 128))
    kernel.forget()
    assert kernel.decisions == () and called(kernel, (96,)) == ["by 48"]


def test_a_plan_pins_the_sub_buckets_of_a_regime(tmp_path: Path) -> None:
    kernel = MultiKernel(SPEC, ragged())
    chosen = called(kernel, (96, 128, 600))
    planfile.Plan(tuple(planfile.pinned_by(kernel)), planfile.here()).write(tmp_path / "plan")
    new_process()
    counters.reset()
    with options.override(plan=str(tmp_path / "plan"), plan_missing="error", persist=False):
        pinned = MultiKernel(SPEC, ragged(), {"plan": str(tmp_path / "plan"), "plan_missing": "error"})
        assert called(pinned, (96, 128, 600)) == chosen
        assert [d.link for d in pinned.decisions] == ["plan"] * 3
    assert counters["candidates_benchmarked"] == 0


def test_hinted_sizes_of_one_regime_each_get_their_own() -> None:
    kernel = MultiKernel(SPEC, ragged())
    hints: list[Mapping[str, int]] = [{"M": 96, "N": 64}, {"M": 128, "N": 64}]
    assert [decision.candidate for decision in kernel.warm(hints)] == ["by 48", "by 64"]
    assert kernel.choose({"M": 128, "N": 64}).candidate == "by 64"


# What is expected.


def expectation(**predicted: Speed) -> Expectation:
    made = {name: Fake(name, predicted=speed) for name, speed in predicted.items()}
    return Expectation(made, {"M": 1, "N": 64}, frozenset({"M"}))


def test_a_measured_time_is_scaled_by_the_candidates_own_prediction() -> None:
    linear = expectation(a=lambda sizes: 1e-9 * sizes["M"])
    known = Evidence({"M": 100}, {"a": 5e-5})
    assert linear.seconds("a", {"M": 200}, known) == pytest.approx(1e-4)


def test_the_nearest_measurement_of_both_counts() -> None:
    flat = expectation(a=lambda sizes: 1.0, b=lambda sizes: 1.0)
    near, far = Evidence({"M": 100}, {"a": 1.0, "b": 2.0}), Evidence({"M": 400}, {"a": 2.0, "b": 1.0})
    only_a = Evidence({"M": 350}, {"a": 1.0})
    assert flat.holds("a", {"M": 150}, [far, near]) and not flat.holds("a", {"M": 300}, [near, far, only_a])


def test_a_candidate_that_is_gone_beats_nobody() -> None:
    assert expectation(a=lambda sizes: 1.0).holds("a", {"M": 9}, [Evidence({"M": 9}, {"a": 2.0, "gone": 1.0})])
