"""Threads: fewer than asked, nested regions, several Python threads in one kernel, sources that never change."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from polytile.candidates.entries import NativeEntry
from polytile.ir import expr
from polytile.runtime.compile import compile_cpp
from polytile.runtime.launcher import time_burst
from tests.codegen.helpers import F32, P0, R0, S0, S1, Case, load, loop, op, random, store

ROW = P0 * S1 + R0

NEST = """
extern "C" void GOMP_parallel(void (*fn)(void*), void* data, unsigned threads, unsigned flags);
extern "C" int omp_get_thread_num();
typedef long (*Kernel)(void* const*, const long*, long);
struct Call { Kernel kernel; void* const* ptrs; const long* sizes; };
static void inside(void* data) {
  const Call* call = (const Call*)data;
  call->kernel(call->ptrs + 2 * omp_get_thread_num(), call->sizes, 4);
}
// Runs a kernel of two tensors, asked for 4 threads, from each thread of a region of 2: inside it gets one.
extern "C" long nested(void* const* ptrs, const long* sizes, long threads) {
  Call call = {(Kernel)sizes[0], ptrs, sizes + 1};
  GOMP_parallel(inside, &call, 2, 0);
  return 0;
}
"""


def softmax() -> Case:
    x = load("x", ROW)
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return Case(
        loop([store("o", ROW, op("div", power, expr.reduce("sum", F32, power)))], {P0: S0}, {R0: S1}),
        {"x": F32, "o": F32},
    )


def column_softmax() -> Case:
    index = R0 * S0 + P0
    x = load("x", index)
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return Case(
        loop([store("o", index, op("div", power, expr.reduce("sum", F32, power)))], {P0: S0}, {R0: S1}),
        {"x": F32, "o": F32},
    )


def cumsum() -> Case:
    return Case(
        loop([store("o", ROW, expr.scan("sum", F32, load("x", ROW)))], {P0: S0}, {R0: S1}), {"x": F32, "o": F32}
    )


CASES = {"softmax": softmax, "columns": column_softmax, "cumsum": cumsum}


@pytest.mark.parametrize("name", CASES)
def test_inside_a_parallel_region_one_thread_arrives(name: str) -> None:
    case = CASES[name]()
    nested = compile_cpp("nested", NEST).result()
    runner = NativeEntry(nested.address("nested"), 1, nested)
    size = {S0: 3, S1: 5000}
    for variant, entry in case.entries():
        pairs = [random(15000), torch.zeros(15000), random(15000), torch.zeros(15000)]
        numbers = case.arguments({"x": pairs[0], "o": pairs[1]}, size)[2:]
        time_burst(runner, [*pairs, entry.address, *numbers], 1)
        for x, o in (pairs[:2], pairs[2:]):
            want = case.expected({"x": x, "o": torch.zeros(15000)}, size, torch.float64)["o"]
            torch.testing.assert_close(o.double(), want, rtol=1e-4, atol=1e-3, msg=f"{name} {variant}")


@pytest.mark.parametrize("name", CASES)
def test_several_python_threads_run_one_kernel_at_once(name: str) -> None:
    """Every call has its own scratch memory: short rows on the stack, long ones on the heap."""
    case = CASES[name]()
    wrong: list[str] = []

    def work(seed: int, entry: NativeEntry, label: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        for length in (100, 12_000):
            x, o = torch.randn(2 * length, generator=generator), torch.zeros(2 * length)
            want = case.expected({"x": x, "o": o}, {S0: 2, S1: length}, torch.float64)["o"]
            for _ in range(20):
                time_burst(entry, case.arguments({"x": x, "o": o.zero_()}, {S0: 2, S1: length}), 1)
                if not torch.allclose(o.double(), want, rtol=1e-4, atol=1e-3):
                    wrong.append(label)

    for label, entry in case.entries():
        threads = [threading.Thread(target=work, args=(seed, entry, label)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_row_gives_the_same_bits_every_time() -> None:
    case = softmax()
    x = random(3 * 9000)
    for label, entry in case.entries():
        results = []
        for _ in range(5):
            o = torch.zeros(3 * 9000)
            time_burst(entry, case.arguments({"x": x, "o": o}, {S0: 3, S1: 9000}), 1)
            results.append(o)
        assert all(torch.equal(results[0], other) for other in results), label


def test_a_kernel_keeps_nothing_between_calls() -> None:
    for make in CASES.values():
        for candidate in make().candidates:
            body = candidate.source[candidate.source.index('extern "C" long polytile_kernel') :]
            assert "static" not in body and "__thread" not in body


SCRIPT = """
import torch
from tests.codegen import test_loops_threads as t
# other expressions first: names must not depend on what a process did before
if {first}:
    t.cumsum()
print(*[c.source_hash for make in t.CASES.values() for c in make().candidates])
"""


def test_a_kernel_has_the_same_text_in_every_process() -> None:
    command = [sys.executable, "-c"]
    texts = {
        subprocess.run([*command, SCRIPT.format(first=k)], capture_output=True, text=True, check=True).stdout
        for k in (0, 1)
    }
    assert len(texts) == 1 and len(texts.pop().split()) > 5
