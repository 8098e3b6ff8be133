"""What surrounds generated kernels on a GPU: streams, graphs, threads, errors, memory, compiling beside the calls."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile.candidates.entries import PythonEntry
from polytile.dispatch import refining
from polytile.runtime import native
from polytile.runtime.cuda import device, driver
from polytile.runtime.cuda.timing import REPLAYS, Timer
from tests.gpu.comparing import agree, compiled, data

pytestmark = pytest.mark.gpu


def test_the_launcher_is_compiled_and_the_driver_tells_the_device() -> None:
    assert native.module() is not None
    assert driver.version() > 0
    assert device.facts(0).sms == torch.cuda.get_device_properties(0).multi_processor_count


def test_kernels_run_on_the_callers_stream() -> None:
    call, x = compiled(lambda a: torch.softmax(a * 2, -1)), data(4096, 4096)
    call(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.mul_(3)
        mine = call(x)
    torch.cuda.current_stream().wait_stream(stream)
    agree(mine, torch.softmax(x * 2, -1))


@pytest.mark.parametrize("known", [True, False], ids=["regime known", "regime new"])
def test_a_call_is_recorded_in_a_cuda_graph(known: bool) -> None:
    call = compiled(lambda a: torch.softmax(a, -1).sum(0) + a.sum())
    x = data(64, 1000)
    call(x if known else data(64, 3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(x)
    x.copy_(data(64, 1000))
    graph.replay()
    wide = x.double()
    agree(out, torch.softmax(x, -1).sum(0) + x.sum(), torch.softmax(wide, -1).sum(0) + wide.sum())


def test_sizes_that_come_often_are_measured_but_not_while_a_graph_is_recorded() -> None:
    """With no limit to what it may take, that is at the first look that may measure."""
    call = compiled(lambda a, b: torch.softmax(a @ b, -1), refine=1e6)
    b, x = data(64, 96), data(1008, 64)
    call(data(736, 64), b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(refining.LEAST_CALLS + 1):
            out = call(x, b)
    assert polytile.counters["sizes_refined"] == 0
    for _ in range(2 * refining.LEAST_CALLS):
        again = call(x, b)
    assert polytile.counters["sizes_refined"] > 0
    graph.replay()
    for result in (out, again):
        agree(result, torch.softmax(x @ b, -1))


def test_threads_share_a_kernel() -> None:
    call = compiled(lambda a: torch.softmax(a, -1))
    call(data(64, 100))
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            x = torch.randn(64, 100 + 8 * seed, device="cuda")
            for _ in range(20):
                agree(call(x), torch.softmax(x, -1))
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_without_stalling_another_kernel_serves_until_the_best_is_made() -> None:
    call, x = compiled(lambda a: F.silu(torch.softmax(a * 1.5, -1)), stall="never"), data(300, 777)
    first = call(x)
    agree(first, F.silu(torch.softmax(x * 1.5, -1)), F.silu(torch.softmax(x.double() * 1.5, -1)))
    assert polytile.wait(timeout=120)
    agree(call(x), first, first)
    kernel = polytile.compiler.programs.compiled_programs()[-1].multikernels[0]
    assert [decision.link for decision in kernel.decisions] == ["measured"]


def test_what_is_compiled_ahead_compiles_nothing_at_the_call() -> None:
    call = polytile.compile(lambda a: torch.softmax(a * 1.25, -1), compile_ahead={"s1": [500, 3000]})
    call(data(64, 96))
    for _ in range(100):
        before = polytile.counters["compiler_runs"]
        time.sleep(0.5)
        if polytile.counters["compiler_runs"] == before:
            break
    call(data(64, 3000))
    assert polytile.counters["compiler_runs"] == before


def test_an_index_out_of_range_is_told() -> None:
    call, x = compiled(lambda a, i: a[i] + 1), data(100, 8)
    fine, bad = (torch.tensor([1, 2, last], device="cuda") for last in (3, 300))
    call(x, fine)
    with pytest.raises(IndexError, match="out of range"):
        call(x, bad)
        torch.cuda.synchronize()
        call(x, fine)


def test_without_memory_for_measuring_the_call_succeeds() -> None:
    call = compiled(lambda a: torch.softmax(a, -1))
    call(data(2, 64))
    x = data(2048, 8192)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (120 << 20)) / total)
    try:
        out = call(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    agree(out, torch.softmax(x, -1))


def test_what_is_timed_leaves_no_memory_reserved() -> None:
    x = data(1024, 8192)
    entry = PythonEntry(lambda a: torch.softmax(a * 2, -1).cos(), recordable=True)
    first, timer = (Timer(torch.device("cuda", 0)) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    first(entry, (x,), 5)
    first.release()  # what torch keeps for recording at all, 2 MiB, stays
    before, taken = torch.cuda.memory_reserved(), []
    for _ in range(4):
        for _ in range(REPLAYS):
            assert timer(entry, (x,), 5) > 0
        taken.append(torch.cuda.memory_reserved() - before)
    assert taken[0] >= 2 * x.nbytes and taken == taken[:1] * 4
    timer.release()
    assert torch.cuda.memory_reserved() == before


def test_graphs_of_the_program_survive_measuring() -> None:
    x, w = data(512, 512), data(512, 512)
    call = compiled(lambda a, b: (a @ b).relu())

    def recorded() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return graph, x @ w

    x @ w
    recorded()  # from here on the library's workspace for recording is memory of a graph that is gone
    graph, out = recorded()
    for rows in (64, 512, 2048):
        call(data(rows, 512), w)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    out.zero_()
    graph.replay()
    agree(out, x @ w)


def test_a_warm_process_benchmarks_and_compiles_nothing(empty_cache: Path) -> None:
    script = (
        "import torch, polytile\n"
        "f = torch.compile(lambda a: torch.softmax(a * 1.75, -1), backend='polytile', dynamic=True)\n"
        "f(torch.randn(64, 500, device='cuda'))\n"
        "print(polytile.counters['candidates_benchmarked'], polytile.counters['compiler_runs'])"
    )
    source = Path(polytile.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-500:]
        said.append(done.stdout.strip())
    assert said[0] != "0 0" and said[1] == "0 0"


def test_a_candidate_that_cannot_be_recorded_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(7)
    expected = torch.rand(8, device="cuda")
    x = torch.ones(1, device="cuda")
    timer = Timer(torch.device("cuda", 0))
    torch.manual_seed(7)
    assert timer.seconds(lambda count: [x.item() for _ in range(count)], 4) > 0
    assert not timer.graphs, "a call that waits for the device is timed without a graph"
    assert timer.seconds(lambda count: [torch.rand(8, device="cuda") for _ in range(count)], 1) > 0
    assert Timer(torch.device("cuda", 0)).seconds(lambda count: [x.add(1) for _ in range(count)], 4) > 0
    torch.manual_seed(7)
    agree(torch.rand(8, device="cuda"), expected)


@pytest.mark.alone
@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "launched"])
def test_a_busy_thread_does_not_change_what_is_timed(graphs: bool) -> None:
    """A kernel of 2 µs, which takes the host no less to launch, while another thread holds Python's lock for milliseconds."""
    x, ended = data(64, 1000), threading.Event()
    entry = PythonEntry(lambda a: a.mul_(1.0), recordable=True)
    timer = Timer(torch.device("cuda", 0), graphs=graphs)

    def median() -> float:
        return statistics.median(timer(entry, (x,), 20) / 20 for _ in range(15))

    def spin() -> None:
        while not ended.is_set():
            sum(range(10000))

    median()
    quiet, thread = median(), threading.Thread(target=spin)
    thread.start()
    try:
        busy = median()
    finally:
        ended.set()
        thread.join()
    timer.release()
    assert quiet < 4e-6 and busy < 1.3 * quiet, (quiet, busy)


def test_a_program_may_wait_for_its_device_while_graphs_are_made() -> None:
    """CUDA refuses that while anything is captured: no capture may be open between calls."""
    weights = [data(256, 256) / 16 for _ in range(6)]

    def layers(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight.to(x.dtype))
        return x

    call, before = compiled(layers, cuda_graphs="auto", stall="never"), polytile.counters["cuda_graphs"]
    for _ in range(4):
        for rows in [8, 40, 100] * 80:
            x = data(rows, 256)
            out = call(x)
            torch.cuda.synchronize()
        polytile.wait()
    agree(out, layers(x), layers(x.double()))
    assert polytile.counters["cuda_graphs"] > before
