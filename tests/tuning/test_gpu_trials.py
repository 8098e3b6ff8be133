"""Generated GPU kernels run in a worker's context first, many in one message. The GPU is device.c: the host, with faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from polytile.candidates.entries import Entry, PythonEntry
from polytile.candidates.handles import DeviceHandle, MachineCode
from polytile.candidates.triton import Specialised
from polytile.problem import Outcome, digest
from polytile.runtime import compile as compiler
from polytile.runtime.cuda import driver
from polytile.runtime.cuda.launch import Descriptor, Launch, Scratch
from polytile.runtime.formula import encode
from polytile.tuning import measure
from polytile.tuning.isolation import attempts, gpu, policy, worker
from polytile.tuning.isolation.device import GUARD
from polytile.tuning.isolation.worker import Kind, borrowed, stop_all
from polytile.tuning.task import Attempt, Task
from polytile.tuning.tune import tune
from tests.tuning import planted

N = sympy.Symbol("n", integer=True, positive=True)
TENSOR, INT32, INT64, SCRATCH, ERROR_WORD, NOTHING, DESCRIPTOR = range(7)
X, Y, COUNT = (TENSOR, 0), (TENSOR, 1), (INT64, 0)
HEAD = """
#include <stdlib.h>
#include <unistd.h>
int kernel(void **p, unsigned grid) { float *x = *(float **)p[0], *y = *(float **)p[1]; long n = *(long *)p[2];
"""
BODIES = {
    "right": "for (long i = 0; i < n; ++i) y[i] = 2 * x[i]; return grid == (n + 255) / 256 ? 0 : 1;",
    "illegal address": "return 700;",
    "endless": "return 600;",
    "aborts": "abort();",
    "refused": "return 1;",
    "beyond the tail": "for (long i = 0; i < n + 3; ++i) y[i] = 0; return 0;",
    "before the start": "y[-1] = 0; return 0;",
    "far beyond": f"y[n + {GUARD // 4 - 20}] = 0; return 0;",
}


@dataclasses.dataclass
class OnDevice(planted.Function):
    """A candidate from a body in C, for the device; here it is a Python function that is right."""

    origin: str = "triton"
    body: str = ""
    parameters: tuple[tuple[int, int], ...] = (X, Y, COUNT)
    scratch: tuple[Scratch, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    compiled: bool = True

    @property
    def source_hash(self) -> str:
        return digest(self.name + self.body)

    def ready(self) -> bool:
        return self.compiled

    def entry(self) -> Entry:
        return PythonEntry(planted.double)

    def handle(self) -> DeviceHandle:
        source = HEAD + (self.body or BODIES[self.name]) + "}"
        image = compiler.compile_c("device_kernel", source, ("-w",)).result().path.read_bytes()
        places = {N: 0}
        grid = tuple(encode(sympy.sympify(e), places) for e in ((N + 255) // 256, 1, 1))
        code = MachineCode(image, "kernel")
        launch = Launch(code, 128, 0, self.parameters, grid, False, self.descriptors)  # type: ignore[arg-type]
        return DeviceHandle((launch,), self.scratch)


def made(name: str, **more: Any) -> OnDevice:
    return OnDevice(name, planted.double, **more)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library = compiler.compile_c("host_as_device", Path(__file__).with_name("device.c").read_text(), ("-w",)).result()
    monkeypatch.setattr(driver, "LIBRARY", str(library.path))
    monkeypatch.setattr(gpu, "memory_of", lambda index: (80 << 30, 80 << 30))
    monkeypatch.setattr(measure, "timer_for", lambda target, entry: None)
    attempts._told.clear()
    stop_all()
    yield
    stop_all()


def on_device(*candidates: Any, n: int = 1003, **more: Any) -> Task:
    return planted.task(*candidates, n=n, target=torch.device("cuda"), **more)


def processes() -> int:
    with borrowed(Kind.DEVICE) as served:
        return served.started


def outcome(attempt: Attempt) -> Outcome | None:
    return attempt.measurement and attempt.measurement.outcome


@pytest.mark.parametrize(
    ("name", "expected", "word"),
    [
        ("illegal address", Outcome.CRASHED, "an illegal memory access was encountered"),
        ("endless", Outcome.TIMEOUT, "did not come to an end in 0.5 s"),
        ("aborts", Outcome.CRASHED, "aborted"),
        ("refused", Outcome.RAISED, "cuLaunchKernelEx: CUDA_ERROR"),
        ("beyond the tail", Outcome.WRONG, "wrote outside argument 'y'"),
        ("before the start", Outcome.WRONG, "wrote outside argument 'y'"),
        ("far beyond", Outcome.WRONG, "wrote outside argument 'y'"),
    ],
)
def test_a_fault_is_a_measurement_and_the_others_run(name: str, expected: Outcome, word: str) -> None:
    three = made("right"), made(name), made("also right", body=BODIES["right"])
    asked = on_device(*three, trial_seconds=0.5 if expected is Outcome.TIMEOUT else 30.0)
    first, bad, last = tune(asked)
    assert outcome(bad) is expected and word in bad.detail, bad.detail
    assert first.ok and last.ok and first.measurement is not None and first.measurement.samples
    assert bool((asked.args[1] == 5.0).all())


def test_descriptors_are_made_for_the_worker_s_own_memory() -> None:
    body = """const unsigned long *map = p[3];
    for (long i = 0; i < n; ++i) y[i] = 2 * x[i];
    return map[0] == (unsigned long)x && map[1] == 16 && map[2] == n && map[3] == 64 && map[4] == 32 && map[5] == 8
        && map[6] == 7 && map[7] == 2 && map[8] == 3 && map[9] == 2 && map[10] == 1 ? 0 : 1;"""
    count, sixteen = encode(N, {N: 0}), encode(sympy.Integer(16), {})
    what = Descriptor(0, 7, 4, 3, (8, 32), (count, sixteen), (sixteen,))
    one = made("described", body=body, parameters=(X, Y, COUNT, (DESCRIPTOR, 0)), descriptors=(what,))
    [attempt] = tune(on_device(one))
    assert attempt.ok, attempt.detail


def test_many_kernels_are_tried_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = gpu.run_all

    def counted(args: Any, roles: Any, handles: Any, index: int, seconds: float) -> Any:
        asked.append(len(handles))
        return plain(args, roles, handles, index, seconds)

    monkeypatch.setattr(gpu, "run_all", counted)
    many = [made(f"right {k}", body=BODIES["right"]) for k in range(5)]
    many[3].compiled = False
    started = processes()
    assert all(attempt.ok for attempt in tune(on_device(*many)))
    assert asked == [4, 1], "what is compiled by then goes together"
    asked.clear()
    found = tune(on_device(many[0], made("illegal address"), made("aborts"), many[1], n=17))
    assert [outcome(a) for a in found] == [Outcome.OK, Outcome.CRASHED, Outcome.CRASHED, Outcome.OK]
    assert asked == [4, 2, 1] and processes() == started + 3, "a fault ends the process, and another goes on"


def test_positions_are_the_callers_and_other_numbers_are_harmless() -> None:
    body = """float *table = *(float **)p[0]; long *index = *(long **)p[1]; float *out = *(float **)p[2]; n = *(long *)p[3];
    for (long i = 0; i < n; ++i) { if (index[i] != 3 * i || table[index[i]] < 0.01 || table[index[i]] > 0.02) return 700;
                                   out[i] = table[index[i]]; } return 0;"""
    table, index, out = torch.full((300,), -1.0), 3 * torch.arange(100), torch.zeros(100)
    kernel = made("gathers", body=body, parameters=(X, Y, (TENSOR, 2), COUNT))
    (handle,) = [kernel.handle()]
    (ended,) = gpu.run_all((table, index, out, 100), ("in", "in", "out"), [handle], 0, 5.0)
    assert isinstance(ended, worker.Finished), ended
    assert ended.beside is None and ended.code == 0


def test_scratch_checks_and_null_pointers_reach_the_kernel() -> None:
    body = """char *zero = *(char **)p[3], *any = *(char **)p[4]; int *error = *(int **)p[5], *word = *(int **)p[6];
    for (int i = 0; i < 4 * n; ++i) { if (zero[i]) return 700; any[i] = 1; }
    if (*(void **)p[7] || *word != 1003) return 700; *error = 7; return 0;"""
    more = ((SCRATCH, 0), (SCRATCH, 1), (ERROR_WORD, 0), (INT32, 0), (NOTHING, 0))
    sized = encode(4 * N, {N: 0})
    body = body.replace("int *error = *(int **)p[5], *word = *(int **)p[6]", "int *error = *(int **)p[5], *word = (int *)p[6]")
    kernel = made("checks", body=body, parameters=(X, Y, COUNT, *more), scratch=(Scratch(sized, True), Scratch(sized)))
    (ended,) = gpu.run_all((torch.ones(1003), torch.ones(1003), 1003), ("in", "out"), [kernel.handle()], 0, 5.0)
    assert isinstance(ended, worker.Finished), ended
    assert ended.code == 7


def test_arguments_that_share_memory_share_it_there() -> None:
    base = torch.zeros(100)
    body = "return y - x == 30 && n == 10 ? 0 : 700;"
    kernel = made("overlap", body=body)
    (ended,) = gpu.run_all((base[10:50], base[40:60], 10), ("in", "inout"), [kernel.handle()], 0, 5.0)
    assert isinstance(ended, worker.Finished), ended


@pytest.mark.parametrize("free", [16 << 20, 5 << 30])
def test_without_room_on_the_device_it_is_tried_here_and_that_is_told(
    free: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1/16 of the device stays free, whatever the trial would take."""
    monkeypatch.setattr(gpu, "memory_of", lambda index: (free, 80 << 30))
    attempt, _ = tune(on_device(made("right"), made("illegal address")))
    assert attempt.ok and "MiB free" in caplog.text
    assert len(caplog.messages) == 1
    attempt, _ = tune(on_device(made("right"), made("illegal address"), only_isolated=True))
    assert attempt.measurement is None and "MiB free" in attempt.detail


def test_without_a_device_for_another_process_it_is_tried_here_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POLYTILE_TEST_NO_DEVICE", "1")
    (attempt,) = tune(on_device(made("right")))
    assert attempt.ok and "no CUDA-capable device is detected" in caplog.text


def test_arguments_without_room_are_nobodys_fault(caplog: pytest.LogCaptureFixture) -> None:
    (attempt,) = tune(on_device(made("right"), n=20 << 20))
    assert attempt.ok and "CUDA_ERROR_OUT_OF_MEMORY" in caplog.text


def test_a_worker_that_rests_gives_the_device_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.1)
    tune(on_device(made("right")))
    patience = time.monotonic() + 120
    with_process = True
    while with_process and time.monotonic() < patience:
        time.sleep(0.05)
        with borrowed(Kind.DEVICE) as served:
            with_process = served.pid is not None
    assert not with_process


def test_generated_gpu_kernels_are_tried_apart_and_interpreted_ones_are_not() -> None:
    candidate = made("right")
    assert policy.isolated([candidate], lambda source: False) == {"right"}
    assert policy.isolated([candidate], lambda source: True) == frozenset()

    class Interpreted(OnDevice):
        interpreted = True

    assert policy.isolated([Interpreted("right", planted.double)], lambda source: False) == frozenset()
    assert isinstance(Specialised.interpreted, property)
