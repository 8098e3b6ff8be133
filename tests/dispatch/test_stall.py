"""With the option stall="never" a call waits for nothing: what is at hand serves, and the background decides."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import polytile
from polytile.counters import counters
from polytile.dispatch import learning
from polytile.dispatch.learning import Compile, Load, Measure, Predict
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import background
from polytile.runtime.background import Disturbance
from tests.dispatch.helpers import Fake, arguments, double, new_process, spec
from tests.waiting import until

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    background.drop()
    assert background.wait(PATIENCE)


@dataclass
class Compiling(Fake):
    """A candidate that takes until it `is_made` to compile."""

    made: threading.Event | None = None

    def ready(self) -> bool:
        return self.made is None or self.made.is_set()

    def entry(self) -> Any:
        assert self.made is None or self.made.wait(PATIENCE)
        return super().entry()


def never(*candidates: Fake, **options: Any) -> MultiKernel:
    return MultiKernel(spec(), candidates, {"stall": "never", "isolation": "never", **options})


def call(kernel: MultiKernel, rows: int = 32) -> None:
    x, y, m, n = arguments(rows)
    kernel(x, y, m, n)
    assert torch.equal(y, 2 * x)


def threads_that_ran(candidate: Fake) -> set[str]:
    """Has a candidate note the threads that run it from now on."""
    names: set[str] = set()

    def noted(*args: Any) -> None:
        names.add(threading.current_thread().name)
        double(*args)

    candidate.call = noted
    return names


def test_a_first_call_is_served_at_once_and_the_background_decides(fake_clock: list[str]) -> None:
    slow, fast = Fake("slow", 3e-5, 1e-4), Fake("fast", 1e-5, 1.1e-4)
    kernel = never(slow, fast)
    mine = threading.current_thread().name
    threads = threads_that_ran(fast)
    call(kernel)
    assert slow.calls and mine not in threads, "the best predicted has served"
    assert background.wait(PATIENCE)
    assert kernel.decisions[0].candidate == "fast" and kernel.decisions[0].link == "measured"
    assert set(fake_clock) == {"slow", "fast"}
    call(kernel)
    assert mine in threads and counters["dispatch_misses"] == 1


def test_the_librarys_kernel_serves_until_the_best_predicted_is_compiled(fake_clock: list[str]) -> None:
    made = threading.Event()
    fast, library = Compiling("fast", 1e-5, 1e-5, made=made), Fake("library", 2e-5, 2e-5, origin="library")
    kernel = never(fast, library)
    for _ in range(3):
        call(kernel)
    assert len(library.calls) == 3 and not fast.calls and not kernel.decisions
    made.set()
    assert background.wait(PATIENCE)
    call(kernel)
    assert kernel.decisions[0].candidate == "fast" and fast.calls


def test_a_regime_whose_kernel_is_there_does_not_wait_for_the_rest_after_a_compiler(
    monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]
) -> None:
    made, alive = threading.Event(), background.background
    monkeypatch.setattr(alive, "last_call", math.inf)  # calls go on
    monkeypatch.setattr(alive, "_compile_rest_until", math.inf)
    library = Fake("library", 2e-5, 2e-5, origin="library")
    lacking, there = never(Compiling("fast", 1e-5, 1e-5, made=made), library, tune="off"), never(Fake("own"), library, tune="off")
    with alive.held():
        call(lacking)
        call(there)
    until(lambda: there.decisions, "the decision for the kernel that is there")
    until(lambda: [type(job) for job in background.pending()] == [Compile], "what is to be compiled")
    assert not lacking.decisions
    made.set()
    assert background.wait(PATIENCE)
    assert lacking.decisions[0].candidate == "fast"


def test_where_nothing_may_be_measured_the_best_predicted_is_the_last_word(fake_clock: list[str]) -> None:
    kernel = never(Fake("first", 3e-5, 1e-5), Fake("second", 1e-5, 1.1e-5), tune="off")
    call(kernel)
    assert background.wait(PATIENCE)
    assert (kernel.decisions[0].candidate, kernel.decisions[0].link) == ("first", "prior") and not fake_clock


def test_what_is_on_record_is_decided_without_measuring(fake_clock: list[str]) -> None:
    def two() -> tuple[Fake, Fake]:
        return Fake("first", 3e-5, 1e-5), Fake("second", 1e-5, 1.1e-5)

    call(MultiKernel(spec(), two(), {"isolation": "never"}))
    new_process()
    fake_clock.clear()
    kernel = never(*two())
    call(kernel)
    assert background.wait(PATIENCE)
    assert (kernel.decisions[0].candidate, kernel.decisions[0].link) == ("second", "exact") and not fake_clock


def test_a_candidate_that_fails_in_the_background_never_serves() -> None:
    def wrong(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * 3)

    right, broken = Fake("right", 3e-5, 1e-5), Fake("broken", 1e-5, 1.1e-5, call=wrong)
    kernel = never(right, broken)
    call(kernel)
    assert background.wait(PATIENCE)
    call(kernel)
    assert kernel.decisions[0].candidate == "right" and "broken" in kernel.faulty


def test_the_programs_random_numbers_are_its_own() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    kernel = never(Fake("first"), Fake("second"))
    x, y = torch.ones(32, 64), torch.zeros(32, 64)
    kernel(x, y, 32, 64)
    assert background.wait(PATIENCE) and kernel.decisions
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(torch.rand(4), expected)


def test_a_kernel_for_which_no_arguments_can_be_made_up_decides_in_its_first_call(fake_clock: list[str]) -> None:
    kernel = MultiKernel(
        spec(make_args=None), [Fake("slow", 3e-5), Fake("fast", 1e-5)], {"stall": "never", "isolation": "never"}
    )
    call(kernel)
    assert kernel.decisions[0].candidate == "fast"


def test_hinted_sizes_are_decided_at_once(fake_clock: list[str]) -> None:
    kernel = never(Fake("first", 3e-5, 1e-5), Fake("second", 1e-5, 1.1e-5))
    (decision,) = kernel.warm([{"M": 32, "N": 64}])
    assert (decision.candidate, decision.link) == ("second", "measured")


def test_the_kernel_in_which_calls_spend_most_time_is_decided_first() -> None:
    order: list[str] = []
    kernels = {}
    for name, seconds in (("short", 1e-6), ("long", 1e-3), ("middling", 1e-4)):
        library = Fake("library", seconds, seconds, origin="library")
        kernels[name] = never(Fake("own", seconds, seconds / 2), library, tune="off")
    with background.background.held():
        for kernel in kernels.values():
            call(kernel)
        jobs = [job for job in background.pending() if isinstance(job, Predict)]
        by_kernel = {id(kernel): name for name, kernel in kernels.items()}
        order = [by_kernel[id(job.owner())] for job in sorted(jobs, key=lambda job: job.urgency(), reverse=True)]
    assert order == ["long", "middling", "short"]


def test_a_form_to_be_loaded_has_no_sizes_and_an_urgency_all_the_same() -> None:
    kernel = never(Fake("own"), Fake("library", origin="library"))
    assert kernel.learning is not None
    job = Load(kernel.learning, weakref.ref(kernel), 0, (), (), frozenset(), kernel.candidates[0])
    assert job.urgency() >= (1.0, 0.0)


def test_measuring_on_a_cpu_takes_what_the_thread_computes_however_long_other_programs_have_the_cores() -> None:
    kernel = never(Fake("own"), Fake("library", origin="library"))
    assert kernel.learning is not None
    job = Measure(kernel.learning, weakref.ref(kernel), 0, (), (), frozenset())
    assert job.disturbs is Disturbance.COMPILES


@pytest.mark.parametrize("beside", [True, False], ids=["a GPU's compilers", "a CPU's"])
def test_what_is_measured_next_is_compiled_meanwhile_where_that_disturbs_nobody(
    beside: bool, fake_clock: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_compiles_beside", lambda target: beside)
    made, forms = threading.Event(), []
    kernels = []
    for name in ("one", "two"):
        forms.append(Compiling(f"compiled {name}", 1e-5, 1.1e-5, made=made))
        kernels.append(never(Fake(f"ready {name}", 2e-5, 1e-5), forms[-1]))
    with background.background.held():  # both regimes wait to be measured before one is
        for kernel in kernels:
            call(kernel)
    until(lambda: any(form.prepared for form in forms), "one is measured")
    if beside:
        until(lambda: all(form.prepared for form in forms), "the other is compiled")
    else:
        time.sleep(0.05)
        assert not all(form.prepared for form in forms)
    made.set()
    assert polytile.wait(PATIENCE)
    assert [kernel.decisions[0].candidate for kernel in kernels] == ["compiled one", "compiled two"]
