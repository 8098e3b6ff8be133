"""Wrong kernels as they really come about, each in C++: the gate lets none of them through, nor any right one fail."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from polytile.problem import Outcome, Problem
from polytile.tuning import gate
from polytile.tuning.isolation import attempts
from polytile.tuning.task import Task
from polytile.tuning.tune import tune
from tests.tuning.planted import FEW, Native

HEAD = """
extern "C" long polytile_kernel(void* const* p, const long* sizes, long threads) {
    const float* x = (const float*)p[0]; float* y = (float*)p[1]; const long m = sizes[0], k = sizes[1];
"""
TOTALS = "for (long i = 0; i < m; ++i) { double sum = 0; for (long j = 0; j < k; ++j) sum += x[i * k + j]; y[i] = sum; }"
WRONG_TAIL = """
for (long i = 0; i < m; ++i) {          // the mask of the last block lets one element too few through
    float sum = 0;
    for (long block = 0; block < k; block += 16)
        for (long lane = 0; lane < 16; ++lane) if (block + lane < k - 1 || k % 16 == 0) sum += x[i * k + block + lane];
    y[i] = sum;
}
"""
RACE = """
for (long i = 0; i < m; ++i) y[i] = 0;
#pragma omp parallel num_threads(threads)
for (long i = 0; i < m; ++i) {          // threads add their parts to what was there when they began
    const float before = y[i];
    float part = 0;
    #pragma omp for schedule(static)
    for (long j = 0; j < k; ++j) part += x[i * k + j];
    y[i] = before + part;
}
"""
NO_FLUSH = """
for (long i = 0; i < m; ++i) {          // partial sums of 256 go to the total whenever 16 of them are complete
    float total = 0, part = 0; long parts = 0;
    for (long j = 0; j < k; ++j) {
        part += x[i * k + j];
        if ((j + 1) % 256 == 0 && ++parts % 16 == 0) { total += part; part = 0; }
    }
    y[i] = k <= 4096 ? total + part : total;
}
"""
SMALL_ACCUMULATOR = """
for (long i = 0; i < m; ++i) {          // sums in half precision
    _Float16 sum = 0;
    for (long j = 0; j < k; ++j) sum += (_Float16)x[i * k + j];
    y[i] = (float)sum;
}
"""
STALE = """
static float kept[65536];               // a workspace that is clean the first time only
for (long i = 0; i < m; ++i) { for (long j = 0; j < k; ++j) kept[i] += x[i * k + j]; y[i] = kept[i]; }
"""


def totals(x: torch.Tensor, y: torch.Tensor, m: int, k: int) -> None:
    y.copy_(x.sum(1))


def outcome(body: str, m: int, k: int, threads: int = 1, isolated: bool = True) -> tuple[Outcome | None, str]:
    x, y = torch.rand(m, k), torch.zeros(m)
    candidate = Native("planted", body, head=HEAD, threads=threads)
    problem = Problem("loop", "totals", (("m", m), ("k", k)), ("float32",))
    asked = Task(
        problem, (candidate,), (x, y, m, k), ("x", "y"), ("in", "out"), totals, reduction=k, limits=FEW,
        isolated=frozenset({"planted"} if isolated else ()),
    )  # fmt: skip
    (attempt,) = tune(dataclasses.replace(asked))
    return attempt.measurement and attempt.measurement.outcome, attempt.detail


@pytest.fixture(autouse=True)
def however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates run again, whatever else the machine does meanwhile."""
    monkeypatch.setattr(gate, "AGAIN_SECONDS", math.inf)
    monkeypatch.setattr(attempts, "AGAIN_SECONDS", math.inf)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_right_kernel_passes(isolated: bool) -> None:
    assert outcome(TOTALS, 7, 10_000, isolated=isolated) == (Outcome.OK, "")


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    ("body", "m", "k", "threads"),
    [(WRONG_TAIL, 7, 1003, 1), (RACE, 3, 1_000_000, 2), (NO_FLUSH, 7, 8292, 1), (STALE, 5, 100, 1)],
    ids=["wrong tail mask", "race", "accumulator not flushed at large K", "workspace not cleared"],
)
def test_a_wrong_kernel_is_rejected_with_the_error_found(body: str, m: int, k: int, threads: int, isolated: bool) -> None:
    found, detail = outcome(body, m, k, threads, isolated)
    assert found is Outcome.WRONG and "'y' is off by" in detail


def test_what_is_right_at_small_sizes_passes_there_so_the_gate_must_see_the_largest() -> None:
    assert outcome(NO_FLUSH, 7, 1003)[0] is Outcome.OK
    assert outcome(WRONG_TAIL, 7, 1024)[0] is Outcome.OK


def test_the_error_is_recorded() -> None:
    x, y = torch.rand(7, 1003), torch.zeros(7)
    problem = Problem("loop", "totals", (("m", 7), ("k", 1003)), ("float32",))
    candidate = Native("planted", WRONG_TAIL, head=HEAD)
    (attempt,) = tune(
        Task(problem, (candidate,), (x, y, 7, 1003), ("x", "y"), ("in", "out"), totals, reduction=1003, limits=FEW)
    )
    assert attempt.measurement is not None and not attempt.measurement.samples
    assert attempt.measurement.max_error is not None and 1e-4 < attempt.measurement.max_error < 1.0
