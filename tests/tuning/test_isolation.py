"""What a kernel does to its process, it does to a worker: the user's goes on, and knows how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polytile import options, store
from polytile.dispatch.multikernel import MultiKernel
from polytile.problem import Outcome
from polytile.tuning import tune as engine
from polytile.tuning.isolation import attempts, worker
from polytile.tuning.isolation.worker import Kind, borrowed, stop_all
from polytile.tuning.tune import tune
from tests.dispatch.helpers import spec
from tests.tuning import planted
from tests.tuning.planted import BODIES, Function, Native, task
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    attempts._told.clear()
    yield
    stop_all()


def outcomes(*candidates: object, **more: object) -> list[tuple[Outcome | None, str]]:
    return [
        (attempt.measurement and attempt.measurement.outcome, attempt.detail)
        for attempt in tune(task(*candidates, **more))
    ]


@pytest.mark.parametrize(
    ("name", "outcome", "word"),
    [
        ("segfault", Outcome.CRASHED, "segmentation fault"),
        ("abort", Outcome.CRASHED, "aborted"),
        ("exit", Outcome.CRASHED, "status 3"),
        ("endless", Outcome.TIMEOUT, "of which it ran for"),
        ("asleep", Outcome.TIMEOUT, "of which it ran for 0."),
        ("eats memory", Outcome.OUT_OF_MEMORY, "bad_alloc"),
        ("wrong tail", Outcome.WRONG, "NaN or infinite values"),
        ("beyond the tail", Outcome.WRONG, "wrote outside argument 'y'"),
        ("writes its input", Outcome.WRONG, "wrote to argument 'x', which it may only read"),
    ],
)
def test_a_kernel_that_fails_is_a_measurement_and_the_next_best_runs(
    name: str, outcome: Outcome, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LARGEST_BYTES", 256 << 20)
    seconds = {"trial_seconds": 1.0} if outcome is Outcome.TIMEOUT else {}
    asked = task(Native("right"), Native(name), Native("also right"), **seconds)
    first, bad, last = tune(asked)
    assert first.ok and last.ok and first.measurement is not None and first.measurement.samples
    assert bad.measurement is not None and bad.measurement.outcome is outcome
    assert word in bad.detail and word in bad.measurement.detail
    assert bool((asked.args[1] == 5.0).all())


def test_a_division_by_zero_is_a_crash_where_the_processor_makes_it_one() -> None:
    ((outcome, _),) = outcomes(Native("divides by zero"))
    assert outcome in (Outcome.CRASHED, Outcome.WRONG)


def test_the_worker_comes_back_and_one_serves_many() -> None:
    tune(task(Native("right"), Native("also right")))
    with borrowed(Kind.NATIVE) as served:
        first, started = served.pid, served.started
        tune(task(Native("also right"), Native("right"), n=17))
        assert served.pid == first
        tune(task(Native("segfault"), Native("right")))
        assert served.started == started + 1 and served.pid not in (None, first)


def test_threads_run_in_the_worker_as_they_do_here() -> None:
    ((outcome, detail),) = outcomes(Native("two threads", threads=2), n=100_000)
    assert outcome is Outcome.OK, detail


def test_a_check_that_fails_in_the_worker_is_the_callers_unless_the_reference_disagrees() -> None:
    out_of_range = Native("out of range", "return 1;")
    ((outcome, detail),) = outcomes(out_of_range)
    assert outcome is Outcome.RAISED and "check 1" in detail
    with pytest.raises(IndexError, match="check 1"):
        tune(task(out_of_range, reference=None))


def test_a_kernel_that_changes_what_it_reads_finds_the_same_values_every_time() -> None:
    accumulates = Native("accumulates", "for (long i = 0; i < n; ++i) y[i] += x[i];")

    def reference(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        y.add_(x)

    ((outcome, detail),) = outcomes(accumulates, reference=reference, roles=("in", "inout"))
    assert outcome is Outcome.OK, detail


def test_python_kernels_are_tried_apart_too() -> None:
    found = outcomes(
        Function("double", planted.double),
        Function("raises", planted.raises),
        Function("dies", planted.dies),
        Function("takes too much", planted.takes_too_much),
    )
    assert [outcome for outcome, _ in found] == [Outcome.OK, Outcome.RAISED, Outcome.CRASHED, Outcome.OUT_OF_MEMORY]
    assert "no kernel for such strides" in found[1][1] and "segmentation fault" in found[2][1]


def test_what_no_other_process_can_find_is_tried_here_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    ((outcome, _),) = outcomes(Function("closure", lambda x, y, n: y.copy_(x * 2)))
    assert outcome is Outcome.OK and "make it a function of a module" in caplog.text
    ((outcome, detail),) = outcomes(Function("closure", lambda x, y, n: y.copy_(x * 2)), only_isolated=True)
    assert outcome is None and "cannot be tried in a worker process" in detail


def test_without_a_worker_the_trial_is_here_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    ((outcome, _),) = outcomes(Native("right"))
    assert outcome is Outcome.OK and "no process can be started" in caplog.text


def test_an_interrupt_ends_what_the_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = worker.Worker._receive

    def interrupted(self: worker.Worker, seconds: float, threads: int) -> None:
        if self._mapped is not None:  # the kernel runs, or is about to
            signal.raise_signal(signal.SIGALRM)
        plain(self, seconds, threads)

    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(worker.Worker, "_receive", interrupted)
            tune(task(Native("asleep")))
    finally:
        signal.signal(signal.SIGALRM, previous)
    with borrowed(Kind.NATIVE) as served:
        assert served.pid is None
    assert outcomes(Native("right"))[0][0] is Outcome.OK


ORPHAN = """
import os, signal, sys, threading, time
from polytile.tuning.isolation import worker
from polytile.tuning.tune import tune
from tests.tuning.planted import Native, task
threading.Thread(target=tune, args=[task(Native(sys.argv[1]), trial_seconds=0.5)], daemon=True).start()
KEY = worker.Kind.NATIVE, 0
while KEY not in worker._workers or worker._workers[KEY]._mapped is None:
    time.sleep(0.01)
print(worker._workers[KEY].pid, flush=True)
time.sleep(0.2)  # the kernel runs by now, mostly; a worker that was not asked yet ends at once
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["asleep", "endless"])
def test_a_worker_whose_process_was_killed_does_not_run_for_ever(name: str) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ORPHAN, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=variables)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until(lambda: not runs(int(done.stdout)), "the worker has ended")


def runs(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody asks about, as in some containers, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# Through a MultiKernel.


def kernel(*names: str) -> MultiKernel:
    own = spec(
        size_names=("n",), size_codes=(1,), reference=planted.double,
        make_args=lambda sizes: (torch.randn(sizes["n"]), torch.zeros(sizes["n"]), sizes["n"]),
    )  # fmt: skip
    return MultiKernel(own, [Native(name) for name in names])


def call(multikernel: MultiKernel, n: int = 1003) -> bool:
    x, y = torch.randn(n), torch.zeros(n)
    multikernel(x, y, n)
    return torch.equal(y, x * 2)


def test_a_program_with_a_kernel_that_crashes_goes_on_and_remembers(empty_cache: Path) -> None:
    with options.override(trial_seconds=1.0, shortlist=3):
        first = kernel("segfault", "endless", "right")
        assert call(first)
        assert first.decisions[0].candidate == "right"
        notes = {standing.candidate: standing.note for standing in first.decisions[0].standings}
        assert "segmentation fault" in notes["segfault"] and "timed out" in notes["endless"]
        kept = {m.candidate: m.outcome for m in store.current().measurements()}
        assert kept == {"segfault": Outcome.CRASHED, "endless": Outcome.TIMEOUT, "right": Outcome.OK}
        store.forget()
        stop_all()
        again = kernel("segfault", "endless", "right")
        assert call(again) and again.decisions[0].link in ("exact", "only")
        with borrowed(Kind.NATIVE) as served:
            assert served.pid is None, "what is on record is not tried again"
    store.forget()


def test_each_source_is_tried_apart_at_first_sight_alone(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[str]] = []
    plain = engine.tune

    def watched(asked: engine.Task) -> list[engine.Attempt]:
        seen.append(asked.isolated)
        return plain(asked)

    monkeypatch.setattr("polytile.dispatch.links.measured.tuner", watched)
    two = kernel("right", "also right")
    assert call(two, 1003) and call(two, 50_003)
    with options.override(isolation="always"):
        assert call(two, 200_003)
    with options.override(isolation="never"):
        assert call(kernel("right", "two threads"), 1003)
    assert seen == [{"right", "also right"}, frozenset(), {"right", "also right"}, frozenset()]
    store.forget()


def test_every_body_was_planted_for_a_reason() -> None:
    """The test of tests: without isolation the harmless ones run here and pass."""
    harmless = [name for name in BODIES if "right" in name]
    assert all(outcome is Outcome.OK for outcome, _ in outcomes(*map(Native, harmless), isolated=frozenset()))
