"""Threads, forks and Ctrl-C around a compiled function: whatever comes between, results are right and the function goes on."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polytile
from polytile import store
from polytile.runtime.cuda import workers
from polytile.tuning import measure, racing
from polytile.tuning.isolation.worker import stop_all
from tests.behaviour.helpers import check, compiled, copied, decisions, sized
from tests.waiting import PATIENCE


def program(x: Tensor, total: Tensor) -> Tensor:
    total.add_(x.sum(0))
    return torch.softmax(x * 1.375, -1)


# Threads.

OLD_TRACER = torch.torch_version.TorchVersion(torch.__version__) < (2, 13)


@pytest.mark.skipif(OLD_TRACER, reason='threads that trace at once crash torch before 2.13, with backend="aot_eager" too')
@pytest.mark.parametrize("stall", ["tune", "never"])
def test_threads_that_make_the_first_call_together_share_its_kernels_and_all_get_results(
    stall: str, empty_cache: Path
) -> None:
    run = compiled(program, stall=stall)
    arguments = [tuple(sized((rows, 300), (300,), seed=rows)) for rows in (5, 40, 40, 700)]
    expected = [copied(given) for given in arguments]
    start, failures = threading.Barrier(len(arguments)), []

    def work(given: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
        try:
            start.wait(PATIENCE)
            for _ in range(3):
                torch.testing.assert_close(run(*given), program(*theirs))
                torch.testing.assert_close(given[1], theirs[1], rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(arguments, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert len(decisions()) == len({(d.kernel, d.regime) for d in decisions()}), "each regime is decided once"


THREADS, CALLS = 16, 1000


@pytest.mark.parametrize("front_door", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_sixteen_threads_make_a_thousand_calls_each_at_changing_sizes(front_door: str) -> None:
    """Through the front door and through Dynamo; some sizes are new to the threads, and are learned while they call."""
    run = polytile.compile(scaled_softmax, options={"stall": "never", "front_door": front_door})
    inputs = list(sized(*[(rows, 40) for rows in (2, 3, 5, 9, 17, 33, 65, 129)]))
    expected = [scaled_softmax(x) for x in inputs]
    for x in inputs[:2]:
        run(x)
    start, wrong = threading.Barrier(THREADS), []

    def work(thread: int) -> None:
        start.wait(PATIENCE)
        for call in range(CALLS):
            which = (call + thread) % len(inputs)
            difference = (run(inputs[which]) - expected[which]).abs().max()
            if not difference < 1e-5:
                wrong.append((thread, call, which))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads) and not wrong
    assert polytile.wait(PATIENCE)


def scaled_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 1.4375, -1)


# Modes of torch.


def test_one_function_serves_inference_mode_and_calls_outside_of_it() -> None:
    run = compiled(scaled_softmax)
    for rows in (3, 40):
        with torch.inference_mode():
            x = torch.randn(rows, 300)
            check_equal(run(x), scaled_softmax(x))
            assert run(x).is_inference()
        outside = torch.randn(rows, 300)
        check_equal(run(outside), scaled_softmax(outside))
        assert not run(outside).is_inference()
        with torch.inference_mode():
            check_equal(run(outside), scaled_softmax(outside))


def test_one_function_computes_in_the_type_that_autocast_asks_for() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x @ weight) * 2

    run = compiled(function)
    for rows in (3, 40):
        x, weight = torch.randn(rows, 32), torch.randn(32, 24)
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = run(x, weight), function(x, weight)
        assert got.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
        check_equal(run(x, weight), function(x, weight))


def check_equal(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# Forks.


def check_in_child(child: int, run: Callable[..., Any], sizes: Sequence[int]) -> None:
    """After a fork, which returned `child`: calls `run` with so many rows in the child, and waits for it in the parent."""
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return
    faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
    try:
        for rows in sizes:
            x = torch.randn(rows, 500)
            torch.testing.assert_close(run(x, torch.zeros(500)), program(x, torch.zeros(500)))
        os._exit(0)
    finally:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is one
        os._exit(1)


FORK = """
import os
import torch, polytile
from tests.behaviour.test_concurrency import check_in_child, program

run = polytile.compile(program)
x = torch.randn(300, 500)
run(x, torch.zeros(500))
check_in_child(os.fork(), run, (300, 3, 4000))  # known, of a new regime, and of one with more work
torch.testing.assert_close(run(x, torch.zeros(500)), program(x, torch.zeros(500)))
"""


FORK_MEANWHILE = """
import os, threading
import torch, polytile
from polytile.tuning import racing
from tests.behaviour.test_concurrency import check_in_child, program

run = polytile.compile(program, options={"tune": "all"})
choosing, forked = threading.Event(), threading.Event()
race = racing.race

def slow(*args, **keywords):
    choosing.set()
    forked.wait()
    return race(*args, **keywords)

racing.race = slow
x = torch.randn(300, 500)
thread = threading.Thread(target=run, args=(x, torch.zeros(500)))
thread.start()
choosing.wait()
child = os.fork()
forked.set()
if child == 0:
    racing.race = race
check_in_child(child, run, (300, 3))  # what the thread is choosing for, and a new regime
thread.join()
"""


@pytest.mark.parametrize("script", [FORK, FORK_MEANWHILE], ids=["after a call", "while another thread chooses"])
def test_a_forked_child_goes_on_with_what_its_parent_compiled(script: str, empty_cache: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    command = [sys.executable, "-c", script, str(PATIENCE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr


# Ctrl-C.


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "name"),
    [(measure, "time_burst"), (racing, "race"), (store.Store, "append")],
    ids=["while timing", "before the race", "while keeping what was measured"],
)
def test_after_ctrl_c_in_a_first_call_the_arguments_are_as_they_were_and_the_next_call_works(
    module: Any, name: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compiled(program, tune="all")
    arguments = tuple(sized((64, 900), (900,)))
    before = copied(arguments)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, interrupted)
        run(*arguments)
    assert torch.equal(arguments[0], before[0])
    run(*arguments)
    check(program, run, *sized((64, 900), (900,), seed=1))
    check(program, run, *sized((65, 901), (901,), seed=1))


# What is left behind.


def held() -> dict[str, int]:
    """What this process has open and runs: descriptors, child processes, pieces of shared memory."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    memory = Path("/proc/self/maps").read_text().count("memfd:polytile")
    return {"descriptors": len(os.listdir("/proc/self/fd")), "children": len(children), "shared memory": memory}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_programs_that_come_and_go_leave_no_file_process_or_memory_behind(empty_cache: Path) -> None:
    def once(factor: float) -> None:
        def function(x: Tensor) -> Tensor:
            return torch.softmax(x * factor, -1)

        run = compiled(function)
        for shape in ((50, 700), (3, 40)):
            check(function, run, *sized(shape))
        torch._dynamo.reset()
        polytile.reset()
        stop_all()
        workers.reset()
        store.forget()

    once(1.0625)  # what a process opens once
    before = held()
    for step in range(3):
        once(1.125 + step / 16)
    after = held()
    assert all(after[kind] <= before[kind] for kind in after), (before, after)
