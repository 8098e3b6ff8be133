"""Where nothing is decided, the table runs what is loaded, valid and predicted to be fastest, and no call decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from polytile import counters
from polytile.dispatch.keys import Condition, PowerBelow16
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import ResourcesExceeded
from polytile.facts import PowerOfTwo, Wide
from polytile.runtime import background, regime
from polytile.runtime.formula import any_above, power_below_16
from polytile.schedule.facts import Facts
from tests.dispatch.helpers import Fake, double, spec
from tests.dispatch.test_stall import PATIENCE, call, never


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    background.drop()
    assert background.wait(PATIENCE)


@pytest.fixture
def no_call_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that enters Python for a decision on this thread fails."""
    mine, real = threading.current_thread(), MultiKernel.choose_entry

    def choose_entry(kernel: MultiKernel, args: tuple[Any, ...]) -> Any:
        assert threading.current_thread() is not mine, "a call decides"
        return real(kernel, args)

    monkeypatch.setattr(MultiKernel, "choose_entry", choose_entry)


def library(predicted: float = 2e-5) -> Fake:
    return Fake("library", 2e-5, predicted, origin="library")


def ran(candidates: tuple[Fake, ...], kernel: MultiKernel, rows: int) -> str:
    """The candidate that runs a call, while the background does nothing."""
    before = {c.name: len(c.calls) for c in candidates}
    with background.background.held():
        call(kernel, rows)
    (name,) = [c.name for c in candidates if len(c.calls) > before[c.name]]
    return name


def growing(seconds: float, power: float) -> Callable[[Any], float]:
    return lambda sizes: seconds * sizes["M"] ** power


def test_calls_at_new_sizes_decide_nothing_and_the_background_decides_all(no_call_decides: None) -> None:
    fast, slow = Fake("fast", 1e-5), library()
    kernel = never(fast, slow, tune="off")
    for rows in (8, 40, 57, 200, 1000, 3000):
        call(kernel, rows)
    assert background.wait(PATIENCE)
    assert [d.candidate for d in kernel.decisions] == ["fast"] * 6 and counters["dispatch_misses"] == 6
    assert ran((fast, slow), kernel, 3000) == "fast"


def test_the_best_predicted_serves_around_what_has_come(no_call_decides: None) -> None:
    """Half an octave further on another candidate is predicted to be faster."""
    small, large = Fake("small", predicted=growing(1e-6, 1.0)), Fake("large", predicted=growing(3e-5, 0.0))
    candidates = (small, large, library(predicted=1.0))
    kernel = never(*candidates, tune="off")
    for rows in (20, 60):
        call(kernel, rows)
        assert background.wait(PATIENCE)
    assert [d.candidate for d in kernel.decisions] == ["small", "large"]
    assert [ran(candidates, kernel, rows) for rows in (14, 24, 42, 100)] == ["small", "small", "large", "large"]


def test_what_a_decision_preferred_serves_around_it_though_another_is_predicted_to_be_faster(no_call_decides: None) -> None:
    """Decisions go by models and measurements as well."""
    chosen, other = Fake("chosen", predicted=2e-5), library(predicted=1e-5)
    kernel = never(chosen, other, tune="off", force="double=chosen")
    call(kernel, 40)
    assert background.wait(PATIENCE)
    assert [ran((chosen, other), kernel, rows) for rows in (30, 56, 80)] == ["chosen"] * 3


def test_of_nearly_equal_predictions_the_librarys_is_not_believed(no_call_decides: None) -> None:
    kernels: list[str] = []
    for advantage in (1.1, 2.0):
        own, other = Fake("own", predicted=growing(1e-6, 1.0)), library(predicted=growing(1e-6 / advantage, 1.0))
        kernel = never(own, other, tune="off")
        kernel.add_fallback(own)
        kernel.fill_open_regimes((40, 64), 1)
        kernels.append(ran((own, other), kernel, 40))
    assert kernels == ["own", "library"]


def test_a_miss_finds_what_serves_its_cell_before_anything_is_decided(no_call_decides: None) -> None:
    own, other = Fake("own", predicted=1e-6, can=lambda sizes: sizes["M"] > 0, hard_limits=True), library(predicted=1e-5)
    kernel = never(own, other, tune="off")
    kernel.add_fallback(own)
    with background.background.held():
        call(kernel, 3000)
        assert not own.calls
        background.background.hear()
    assert not kernel.decisions and ran((own, other), kernel, 3000) == "own"


def test_far_from_all_that_has_come_the_last_decision_serves(no_call_decides: None) -> None:
    other, fast = Fake("other", predicted=1.0), Fake("fast", predicted=1e-5)
    candidates = (other, fast, library(predicted=1e-9))
    kernel = never(*candidates, tune="off", force="double=fast")
    call(kernel, 8)
    assert background.wait(PATIENCE)
    assert ran(candidates, kernel, 5000) == "fast"


def test_what_an_exact_integer_allows_serves_wherever_it_has_that_value(no_call_decides: None) -> None:
    """As a kernel that reads a packed weight does wherever the weight is packed."""
    packed = Fake("packed", predicted=1e-6, can=lambda sizes: sizes["N"] == 64, hard_limits=True)
    candidates = (packed, library())
    kernel = MultiKernel(
        spec(size_codes=(regime.BUCKET, regime.EXACT)), candidates, {"stall": "never", "isolation": "never", "tune": "off"}
    )
    call(kernel, 40)
    assert background.wait(PATIENCE) and kernel.decisions[0].candidate == "packed"
    assert ran(candidates, kernel, 90000) == "packed"
    before = len(packed.calls)
    with background.background.held():
        kernel(torch.randn(90000, 32), torch.zeros(90000, 32), 90000, 32)
    assert len(packed.calls) == before
    background.drop()


def test_cells_that_calls_have_met_are_remembered(no_call_decides: None) -> None:
    """Also of a kernel that serves several shapes in turns."""
    own, other = Fake("own", predicted=1e-6, can=lambda sizes: sizes["M"] > 0, hard_limits=True), library()
    kernel = never(own, other, tune="off")
    kernel.add_fallback(own)
    for length in range(4, 20):
        for width in range(4, 20):
            kernel.fill_open_regimes((1 << length, 1 << width), 1)
    assert ran((own, other), kernel, 16) == "own"
    background.drop()


def test_cells_of_long_ago_are_forgotten() -> None:
    small, large = Fake("small", predicted=growing(1e-6, 1.0)), Fake("large", predicted=growing(3e-5, 0.0))
    candidates = (small, large, library(predicted=1.0))
    kernel = never(*candidates, tune="off")
    for rows in (60, 20):
        call(kernel, rows)
        assert background.wait(PATIENCE)
    for length in range(12, 23):
        for width in range(6, 15):
            kernel.fill_open_regimes((1 << length, 1 << width))
    assert ran(candidates, kernel, 70) == "small", "as was decided last"


def test_what_does_harm_where_it_is_not_valid_serves_only_where_it_is_known_to_be(no_call_decides: None) -> None:
    def short(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        assert m <= 64, "cut off"
        double(x, y, m, n)

    persistent = Fake("persistent", predicted=1e-6, call=short, can=lambda sizes: sizes["M"] <= 64, hard_limits=True)
    candidates = (persistent, library())
    kernel = never(*candidates, tune="off")
    call(kernel, 40)
    assert background.wait(PATIENCE) and kernel.decisions[0].candidate == "persistent"
    assert [ran(candidates, kernel, rows) for rows in (30, 50, 70, 9000)] == ["persistent", "persistent", "library", "library"]


def test_limits_that_depend_on_what_cells_do_not_tell_are_known_nowhere(no_call_decides: None) -> None:
    odd = Fake("odd", predicted=1e-6, can=lambda sizes: sizes["N"] > 0, hard_limits=True)
    candidates = (odd, library())
    kernel = MultiKernel(
        spec(size_codes=(regime.BUCKET, regime.IGNORE)), candidates, {"stall": "never", "isolation": "never", "tune": "off"}
    )
    call(kernel, 40)
    assert background.wait(PATIENCE) and kernel.decisions[0].candidate == "odd"
    assert ran(candidates, kernel, 50) == "library"


def test_what_is_found_to_be_wrong_serves_nowhere_any_more(fake_clock: list[str]) -> None:
    def wrong(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        double(x, y, m, n)
        if threading.current_thread() is not threading.main_thread():
            y.add_(1)

    broken = Fake("broken", predicted=1e-6, call=wrong)
    candidates = (broken, library())
    kernel = never(*candidates, tune="off")
    call(kernel, 40)
    assert background.wait(PATIENCE) and kernel.decisions[0].candidate == "broken"
    kernel.options = {**kernel.options, "tune": "auto"}
    call(kernel, 200)
    assert background.wait(PATIENCE) and "broken" in kernel.faulty
    assert [ran(candidates, kernel, rows) for rows in (40, 50, 200, 5000)] == ["library"] * 4


def test_a_first_run_that_fails_is_no_matter_of_the_callers(no_call_decides: None) -> None:
    def refuses(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        raise RuntimeError("not here")

    candidates = Fake("refusing", predicted=1e-6, call=refuses), library()
    kernel = never(*candidates, tune="off")
    call(kernel, 40)
    assert background.wait(PATIENCE) and kernel.decisions[0].candidate == "refusing"
    with background.background.held():
        call(kernel, 40)
    assert len(candidates[1].calls) == 2 and not kernel.decisions
    assert background.wait(PATIENCE)
    call(kernel, 40)
    assert [d.candidate for d in kernel.decisions] == ["library"]


def test_threads_meet_new_regimes_side_by_side(no_call_decides: None) -> None:
    kernel = never(Fake("fast", 1e-5), library(), tune="off")
    failures: list[BaseException] = []

    def serve(first: int) -> None:
        try:
            for rows in range(first, first + 200, 7):
                call(kernel, rows)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(first,)) for first in (9, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert background.wait(PATIENCE) and not failures
    assert all(d.candidate == "fast" for d in kernel.decisions)


def test_a_form_serves_where_all_that_it_takes_for_granted_is_so() -> None:
    """Forms of a candidate made for other regimes, in calls that nothing is decided for."""

    class Form(Fake):
        given = Facts(wide=True)

        @property
        def facts(self) -> Facts:
            return self.given

    wide = Condition(Wide(), any_above([], 1, {}))
    power = Condition(PowerBelow16("N"), power_below_16(1, 8))
    one = spec(size_codes=(1, 1), tensor_codes=(2, 2), conditions=(wide, power))
    assert PowerOfTwo("N") not in {c.asked for c in one.conditions}
    cases: dict[Facts, list[bool]] = {
        Facts(): [True, True, True, True],
        Facts(divisible=frozenset({"M"})): [False, True, False, True],
        Facts(aligned=frozenset({"x"})): [True, True, False, True],
        Facts(powers=(("N", 4),)): [False, True, True, False],
        Facts(exact=(("M", 48),)): [False, True, False, True],
        Facts(least=(("M", 40),)): [False, True, True, True],
    }
    x = torch.randn(40000)
    calls = [(x, 33, 66), (x, 48, 64), (x[1:], 40, 68), (x, 48, 33)]
    for facts, expected in cases.items():
        form, other = Form("form", predicted=1e-9), library()
        form.given = facts
        kernel = MultiKernel(one, [form, other], {"stall": "never", "isolation": "never"})
        kernel.add_fallback(form)
        with background.background.held():
            for data, m, n in calls:
                kernel(data[: m * n].view(m, n), torch.zeros(m, n), m, n)
        background.drop()
        assert [(m, n) in form.calls for _, m, n in calls] == expected, facts


def test_a_form_that_cannot_be_loaded_serves_nowhere() -> None:
    """What it spills is known once it is compiled."""

    class Spills(Fake):
        def entry(self) -> Any:
            raise ResourcesExceeded("It spills 88 bytes.")

    other = library()
    kernel = MultiKernel(spec(), [Spills("spills", predicted=1e-9), other], {"stall": "never", "isolation": "never"})
    kernel.add_fallback(kernel.candidates[0])
    with background.background.held():
        call(kernel, 33)
    background.drop()
    assert len(other.calls) == 1
