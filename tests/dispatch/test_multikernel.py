"""A MultiKernel sends every regime of sizes to its own candidate, and survives candidates that fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sympy
import torch

from polytile import counters, options, store
from polytile.candidates.entries import PythonEntry
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import alive, define
from polytile.dispatch.scratch import Scratch, merge_scratch
from polytile.dispatch.spec import ArgInfo
from polytile.errors import CompileFailed, CompilerMissing, InvalidInput, NoCandidate, ResourcesExceeded
from polytile.problem import Outcome
from tests.dispatch.helpers import SPEC, Fake, arguments, double, new_process, spec
from tests.waiting import PATIENCE


def small_and_large() -> tuple[Fake, Fake]:
    small = Fake("small", lambda sizes: 1e-6 * sizes["M"])
    large = Fake("large", lambda sizes: 1e-4 + 1e-8 * sizes["M"])
    return small, large


def test_each_regime_goes_to_its_own_winner() -> None:
    kernel = MultiKernel(SPEC, small_and_large())
    for m in (32, 4096, 33, 4097, 32):
        args = arguments(m, 8)
        kernel(*args)
        assert torch.equal(args[1], args[0] * 2)
    picks = {dict(decision.sizes)["M"]: decision.candidate for decision in kernel.decisions}
    assert picks[32] == "small" and picks[4096] == "large"


def test_after_the_first_call_calls_go_straight_to_the_winner(fake_clock: list[str]) -> None:
    small, large = small_and_large()
    kernel = MultiKernel(SPEC, (small, large))
    kernel(*arguments(32))
    assert counters["dispatch_misses"] == 1 and counters["candidates_benchmarked"] == 2
    timed, tried = len(fake_clock), len(large.calls)
    for _ in range(5):
        kernel(*arguments(32))
    assert len(fake_clock) == timed and len(large.calls) == tried
    assert counters["dispatch_misses"] == 1 and counters["candidates_benchmarked"] == 2


def test_tuning_changes_no_result() -> None:
    """In-place updates happen once, however often the candidates were tried."""

    def accumulate(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.add_(x)

    in_place = spec(args=(ArgInfo("x", torch.float32), ArgInfo("y", torch.float32, "inout")), reference=accumulate)
    kernel = MultiKernel(in_place, [Fake("a", call=accumulate), Fake("b", call=accumulate)])
    x, y, m, n = arguments(32)
    state = torch.get_rng_state()
    kernel(x, y, m, n)
    assert torch.equal(y, x)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_buffer_may_be_passed_twice() -> None:
    def momentum(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * 0.5)

    kernel = MultiKernel(spec(reference=momentum), [Fake("a", call=momentum), Fake("b", call=momentum)])
    running = torch.randn(16, 16)
    expected = running * 0.5
    kernel(running, running, 16, 16)
    assert torch.equal(running, expected)


@pytest.mark.parametrize("winner", ["whole", "by rows", "in parts"])
def test_candidates_with_different_scratch_buffers_share_one_argument_list(winner: str) -> None:
    def reference(x: torch.Tensor, y: torch.Tensor, parts: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * 2)

    def by_rows(x: torch.Tensor, y: torch.Tensor, parts: torch.Tensor, m: int, n: int) -> None:
        for row in range(m):
            y[row] = parts[:n].copy_(x[row]).mul_(2)

    def in_parts(x: torch.Tensor, y: torch.Tensor, parts: torch.Tensor, m: int, n: int) -> None:
        y.copy_(parts[: m * n].view(m, n).copy_(x).mul_(2))

    m, n = sympy.symbols("M N", integer=True, positive=True)
    asked: dict[str, list[Scratch]] = {
        "whole": [], "by rows": [Scratch("parts", torch.float32, n)], "in parts": [Scratch("parts", torch.float32, m * n)],
    }  # fmt: skip
    merged = merge_scratch(asked.values())
    infos = (*SPEC.args, *(ArgInfo(scratch.name, scratch.dtype, "scratch") for scratch in merged))
    calls = {"whole": reference, "by rows": by_rows, "in parts": in_parts}
    candidates = [Fake(name, 1e-6 if name == winner else 1e-4, call=call) for name, call in calls.items()]
    kernel = MultiKernel(spec(args=infos, reference=reference), candidates)
    x, y, *sizes = arguments(16, 8)
    elements = [sympy.sympify(scratch.elements).subs({m: 16, n: 8}) for scratch in merged]
    assert elements == [128]
    kernel(x, y, *(torch.empty(int(count)) for count in elements), *sizes)
    assert torch.equal(y, x * 2) and [decision.candidate for decision in kernel.decisions] == [winner]
    assert not kernel.faulty


def test_only_the_shortlist_is_compiled() -> None:
    candidates = [Fake(f"c{i}", predicted=1 + 0.01 * i) for i in range(10)]
    with options.override(shortlist=3):
        MultiKernel(SPEC, candidates)(*arguments(32))
    assert [candidate.name for candidate in candidates if candidate.prepared or candidate.entries] == ["c0", "c1", "c2"]


def test_the_library_kernel_is_always_on_the_shortlist() -> None:
    candidates = [*(Fake(f"c{i}", predicted=1 + 0.01 * i) for i in range(5)), Fake("aten", 1e-6, 1.5, "library")]
    with options.override(shortlist=2):
        kernel = MultiKernel(SPEC, candidates)
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "aten"
    assert [candidate.name for candidate in candidates if candidate.entries] == ["c0", "aten"]


def test_near_ties_go_to_the_first_in_canonical_order() -> None:
    kernel = MultiKernel(SPEC, [Fake("first", 1.01e-5), Fake("second", 1.0e-5), Fake("third", 2e-5)])
    kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "first"


@pytest.mark.parametrize(
    ("broken", "outcome"),
    [
        (Fake("broken", 1e-9, failure=CompileFailed("error: expected ';'")), Outcome.COMPILE_ERROR),
        (Fake("broken", 1e-9, failure=ResourcesExceeded("its threads spill 8 bytes each")), Outcome.RESOURCES),
        (Fake("broken", 1e-9, call=lambda x, y, m, n: y.copy_(x * 3)), Outcome.WRONG),
        (Fake("broken", 1e-9, call=lambda x, y, m, n: y[1:].copy_(x[1:] * 2)), Outcome.WRONG),
        (Fake("broken", 1e-9, call=lambda x, y, m, n: torch.empty(3) @ x), Outcome.RAISED),
    ],
    ids=["does not compile", "spills", "wrong", "leaves elements unwritten", "raises"],
)
def test_a_candidate_that_fails_is_recorded_and_skipped(broken: Fake, outcome: Outcome) -> None:
    kernel = MultiKernel(SPEC, [broken, Fake("good")])
    args = arguments(32)
    kernel(*args)
    assert torch.equal(args[1], args[0] * 2)
    assert kernel.decisions[0].candidate == "good"
    (record,) = [m for m in store.current().measurements() if m.candidate == "broken"]
    assert record.outcome is outcome and record.detail


def test_where_no_result_agrees_with_the_reference_eagers_own_runs(caplog: pytest.LogCaptureFixture) -> None:
    def off_at_32(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(x * (2.5 if m == 32 else 2))

    kernel = MultiKernel(SPEC, [Fake("made", 1e-9, call=off_at_32), Fake("aten", 1e-3, call=off_at_32, origin="library")])
    args = arguments(32)
    kernel(*args)
    assert torch.equal(args[1], args[0] * 2.5) and kernel.decisions[0].candidate == "aten"
    assert "no candidate agrees with the reference; 'aten' runs it, as in eager" in caplog.text
    kernel(*(later := arguments(4096)))
    assert torch.equal(later[1], later[0] * 2) and kernel.decisions[1].candidate == "aten"
    assert set(kernel.faulty) == {"made", "aten"}
    kernel.forget()
    assert not kernel.faulty
    new_process()
    again = MultiKernel(SPEC, [Fake("made", 1e-9, call=off_at_32), Fake("aten", 1e-3, call=off_at_32, origin="library")])
    again(*args)
    assert again.decisions[0].candidate == "aten"


@pytest.mark.parametrize("tune", ["auto", "off"])
def test_what_exceeds_the_resources_of_one_regime_is_asked_for_in_the_next(tune: str) -> None:
    spills = Fake("spills", 1e-9, 1e-9, failure=ResourcesExceeded("its threads spill 8 bytes each"))
    with options.override(tune=tune):
        kernel = MultiKernel(SPEC, [spills, Fake("good")])
        kernel(*arguments(32))
        spills.failure = None
        kernel(*arguments(512))
    assert [decision.candidate for decision in kernel.decisions] == ["good", "spills"] and not kernel.faulty


def test_a_wrong_result_is_told_and_the_candidate_takes_no_further_part(caplog: pytest.LogCaptureFixture) -> None:
    wrong_at_32 = Fake("odd", 1e-9, call=lambda x, y, m, n: y.copy_(x * (3 if m == 32 else 2)))
    kernel = MultiKernel(SPEC, [wrong_at_32, Fake("good")])
    kernel(*arguments(32))
    kernel(*arguments(512))
    assert {decision.candidate for decision in kernel.decisions} == {"good"}
    assert "'odd' of kernel 'double' gives a wrong result" in caplog.text


def test_a_failure_on_record_is_not_tried_again() -> None:
    failing = Fake("failing", 1e-9, failure=CompileFailed("no"))
    MultiKernel(SPEC, [failing, Fake("good")])(*arguments(32))
    new_process()
    again = Fake("failing", 1e-9, failure=AssertionError("tried again"))
    kernel = MultiKernel(SPEC, [again, Fake("good")])
    kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "good" and kernel.decisions[0].link == "exact"


def test_when_nothing_can_run_the_error_names_kernel_sizes_and_reasons() -> None:
    kernel = MultiKernel(
        SPEC,
        [
            Fake("a", failure=CompileFailed("expected ';'")),
            Fake("b", failure=CompilerMissing("no g++ on PATH")),
            Fake("c", can=lambda sizes: sizes["M"] % 16 == 0),
        ],
    )
    with pytest.raises(NoCandidate, match=r"'double' has no candidate .* M=33, N=64 .*expected ';'.*no g\+\+.*'c'"):
        kernel(*arguments(33))


def test_an_untried_python_candidate_that_raises_is_replaced_in_the_same_call() -> None:
    def half_done(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.add_(1.0)
        raise RuntimeError("not implemented for such strides")

    def add(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.add_(x)

    in_place = spec(args=(ArgInfo("x", torch.float32), ArgInfo("y", torch.float32, "inout")), reference=add)
    kernel = MultiKernel(in_place, [Fake("bad", predicted=1e-9, call=half_done), Fake("good", call=add)])
    args = arguments(32)
    with options.override(tune="off"):
        kernel(*args)
    assert torch.equal(args[1], args[0])
    assert kernel.decisions[0].candidate == "good"


def test_an_index_error_is_the_callers_and_costs_no_candidate() -> None:
    def embed(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        y.copy_(torch.arange(10.0)[x.long()])

    kernel = MultiKernel(spec(reference=embed), [Fake("a", call=embed), Fake("b", call=embed)])
    with pytest.raises(IndexError):
        kernel(torch.full((4, 4), 10.0), torch.zeros(4, 4), 4, 4)
    assert not kernel.decisions and not store.current().measurements()
    args = torch.full((4, 4), 9.0), torch.zeros(4, 4), 4, 4
    kernel(*args)
    assert bool((args[1] == 9.0).all())


def test_a_single_candidate_is_used_without_complaint_or_timing(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, [Fake("sort")])
    kernel(*arguments(32))
    assert kernel.decisions[0].link == "only" and not fake_clock

    def fails(*_: Any) -> None:
        raise RuntimeError("the matrix is singular")

    with pytest.raises(RuntimeError, match="singular"):
        MultiKernel(SPEC, [Fake("inverse", call=fails)])(*arguments(32))


def test_sizes_zero_and_one_are_right() -> None:
    kernel = MultiKernel(SPEC, [Fake("a"), Fake("b")])
    for m, n in ((0, 5), (1, 1), (3, 0)):
        args = arguments(m, n)
        kernel(*args)
        assert torch.equal(args[1], args[0] * 2)


def test_a_candidate_with_hard_limits_must_be_valid_all_over_the_regime() -> None:
    """A persistent reduction up to 1000 must not meet the 1024 that shares a regime with 992."""
    persistent = Fake("persistent", 1e-9, 1e-9, can=lambda sizes: sizes["N"] <= 1000)
    kernel = MultiKernel(SPEC, [persistent, Fake("looped")])
    kernel(*arguments(2, 992))
    assert kernel.decisions[0].candidate == "persistent"  # a preference: it runs beyond, only not as well
    persistent.hard_limits = True
    kernel = MultiKernel(SPEC, [persistent, Fake("looped")])
    kernel(*arguments(2, 992))
    kernel(*arguments(2, 720))
    assert [decision.candidate for decision in kernel.decisions] == ["looped", "persistent"]


def test_call_sites_with_the_same_sub_kernels_share_one_definition() -> None:
    a, b, c = Fake("a"), Fake("b"), Fake("c")
    first = define(SPEC, [a, b])
    assert define(spec(name="double_1", source_ops=("aten.add",)), [a, b]) is first
    assert define(SPEC, [a, c]) is not first
    assert define(SPEC, [a]) is not first
    with options.override(tune="off"):
        assert define(SPEC, [a, b]) is not first
    assert define(spec(kernel="other"), [a, b]) is not first
    assert first in alive()


def test_candidates_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="'double' needs candidates with different names; it was given 'a', 'a'"):
        MultiKernel(SPEC, [Fake("a"), Fake("a")])


def test_options_of_the_compile_are_in_force_whenever_it_chooses(fake_clock: list[str]) -> None:
    kernel = MultiKernel(SPEC, [Fake("a"), Fake("b")], {"tune": "off"})
    kernel(*arguments(32))
    assert kernel.decisions[0].link == "prior" and not fake_clock


def test_two_threads_calling_at_once_tune_once(fake_clock: list[str]) -> None:
    small, large = small_and_large()
    kernel = MultiKernel(SPEC, (small, large))
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for m in (32, 4096, 33):
            args = arguments(m, 8 + number % 2)
            kernel(*args)
            if not torch.equal(args[1], args[0] * 2):
                wrong.append((number, m))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counters["dispatch_misses"] == len(kernel.decisions)


def test_a_candidate_may_call_another_multikernel() -> None:
    inner = MultiKernel(spec(name="inner"), [Fake("a"), Fake("b")])
    outer = MultiKernel(SPEC, [Fake("through inner", 1e-6, call=inner), Fake("direct")])
    args = arguments(32)
    outer(*args)
    assert outer.decisions[0].candidate == "through inner" and len(inner.decisions) == 1
    assert torch.equal(args[1], args[0] * 2)


def test_threads_that_reach_an_inner_multikernel_from_two_sides_do_not_block_each_other() -> None:
    inner = MultiKernel(spec(name="inner"), [Fake("a"), Fake("b")])
    outer = MultiKernel(SPEC, [Fake("through inner", call=inner), Fake("direct")])
    threads = [
        threading.Thread(target=lambda call=call, n=n: call(*arguments(32, n)), daemon=True)
        for n in range(9, 40, 3)
        for call in (inner, outer)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def test_a_candidate_that_calls_its_own_multikernel_does_not_recurse_without_end() -> None:
    kernel: MultiKernel

    def again(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        if threading.current_thread().name != "nested":
            threading.current_thread().name = "nested"
            kernel(x, y, m, n)
        double(x, y, m, n)

    name = threading.current_thread().name
    try:
        kernel = MultiKernel(SPEC, [Fake("a", call=again, predicted=2e-5), Fake("b")])
        args = arguments(32)
        kernel(*args)
        assert torch.equal(args[1], args[0] * 2)
    finally:
        threading.current_thread().name = name


def test_checked_inputs_name_the_argument_and_the_kernel() -> None:
    kernel = MultiKernel(SPEC, [Fake("a")], {"check_inputs": True})
    x, y, m, n = arguments(4, 4)
    y.fill_(float("nan"))  # an output may hold anything before
    kernel.dispatch(x, y, m, n)
    x[1, 2], x[3, 3] = float("nan"), -float("inf")
    with pytest.raises(
        InvalidInput, match=r"'x' of kernel 'double' holds 1 NaN and 1 infinite .* the first at \[1, 2\]"
    ):
        kernel.dispatch(x, y, m, n)


def test_each_distinct_input_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = spec(args=(*(ArgInfo(f"x{i}", torch.float32) for i in range(3)), ArgInfo("i", torch.int64), SPEC.args[1]))
    looked_at: list[int] = []
    real = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda tensor: (looked_at.append(1), real(tensor))[1])
    kernel = MultiKernel(many, [Fake("a", call=lambda *_: None)], {"check_inputs": True})
    x, y, m, n = arguments(4, 4)
    kernel(x, x, x.t(), torch.zeros(3, dtype=torch.int64), y, m, n)
    assert len(looked_at) == 2


def test_failed_run_time_checks_are_explained() -> None:
    kernel = MultiKernel(spec(checks=("index out of range in dimension 0",)), [Fake("a")])
    with pytest.raises(IndexError, match="kernel 'double': index out of range in dimension 0"):
        kernel._on_error(1)


def test_forgetting_makes_the_next_call_choose_anew() -> None:
    kernel = MultiKernel(SPEC, [Fake("a"), Fake("b", 1e-6)])
    kernel(*arguments(32))
    kernel.forget()
    assert not kernel.decisions and not kernel.dispatcher.table()
    kernel(*arguments(32))
    assert kernel.decisions[0].link == "exact"


def test_the_winner_stands_in_the_table_itself_after_its_first_run() -> None:
    kernel = MultiKernel(SPEC, [Fake("a"), Fake("b")], {"tune": "off"})
    kernel(*arguments(32))
    (entry,) = kernel.dispatcher.table().values()
    assert isinstance(entry, PythonEntry) and type(entry.call).__name__ == "Call"
