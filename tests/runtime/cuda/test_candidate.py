"""Triton candidates from facts to a launch: compiled by worker processes, loaded through a driver that keeps what it is
asked."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polytile import counters
from polytile.candidates import triton_variants as variants
from polytile.candidates.triton import Specialised, TritonCandidate, Work
from polytile.codegen.triton.generate import generate
from polytile.problem import Config, Resources
from polytile.runtime.child_process import import_path
from polytile.runtime.cuda import cubins, device, worker, workers
from polytile.runtime.formula import evaluate
from polytile.runtime.launcher import time_burst
from polytile.schedule.canonical import LoopKernel, canonicalize
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from polytile.tuning.environment import environment
from tests.frontend.lowering import lower
from tests.runtime.cuda.conftest import Stub
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

H100 = device.named("H100")


def kernel_of(function: object, *args: torch.Tensor) -> LoopKernel:
    program = lower(function, *args)  # type: ignore[arg-type]
    return canonicalize(program.operations[-1], program.buffers)[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    workers.reset()


def candidate(function: object, *args: torch.Tensor) -> TritonCandidate:
    kernel = kernel_of(function, *args)
    config = variants.configs(kernel, nest_of(kernel.loop), H100)[0]
    work = Work(kernel, "twice", H100, 0, functools.partial(generate, kernel))
    return TritonCandidate("first", config, work, lambda sizes: True, lambda sizes: 1e-6)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_a_kernel_is_compiled_by_a_worker_and_launched_with_its_arguments(stub: Stub, empty_cache: Path) -> None:
    made = candidate(twice, torch.randn(6, 10))
    facts = Facts(aligned=frozenset({"a0", "a1"}))
    special = made.specialise(facts)
    assert special is made.specialise(facts) and special.source_hash == made.source_hash and not special.ready()
    assert special.facts == facts and special.resources == Resources()
    entry = special.entry()
    taken = special.resources
    assert taken.registers is not None and 8 <= taken.registers <= 255
    assert (taken.spilled_bytes, taken.shared_bytes) == (0, 0) and (special.compile_seconds or 0) > 0
    told: list[bool] = []
    special.when_ready(lambda: told.append(special.ready()))
    assert told == [True] and Path(special.source_path).exists()
    x, y = torch.randn(6, 10), torch.empty(6, 10)
    sizes = [60] if len(made.work.kernel.symbols) == 1 else [6, 10]
    time_burst(entry, (x, y, *sizes), 1)
    [call] = stub.calls()
    assert {x.data_ptr(), y.data_ptr()} <= set(call.values)
    assert call.block in (32, 64, 128, 256, 512, 1024) and all(n >= 1 for n in call.grid)


def test_the_handle_says_what_the_entry_launches(stub: Stub, empty_cache: Path) -> None:
    special = candidate(twice, torch.randn(6, 10)).specialise(Facts(aligned=frozenset({"a0", "a1"})))
    handle = special.handle()
    assert handle is not None and not special.interpreted
    [launch], [cubin] = handle.launches, special._compiled()
    code = launch.function
    assert code.image == cubin.binary and code.image[:4] == b"\x7fELF"
    assert (code.symbol, launch.threads, launch.shared) == (cubin.facts.symbol, 32 * cubin.facts.num_warps, cubin.facts.shared)
    sizes = [60] if len(special.base.work.kernel.symbols) == 1 else [6, 10]
    time_burst(special.entry(), (torch.randn(6, 10), torch.empty(6, 10), *sizes), 1)
    [call] = stub.calls()
    assert list(call.grid) == [evaluate(formula, sizes) for formula in launch.grid] and call.block == launch.threads


def test_cubins_are_found_by_content(stub: Stub, empty_cache: Path) -> None:
    def first() -> Specialised:
        return candidate(twice, torch.randn(6, 10)).specialise(Facts(wide=True))

    first().entry()
    runs = counters["compiler_runs"]
    cubins.reset()  # as another process would start
    again = first()
    again.entry()
    assert counters["compiler_runs"] == runs
    cubins.reset()
    found = next(empty_cache.glob("cubins/*.cubin"))
    found.write_bytes(found.read_bytes()[:-200])
    first().entry()
    assert counters["compiler_runs"] == runs + 1 and list(empty_cache.glob("cubins/*.bad"))


def test_a_compilers_refusal_names_the_kernel_and_its_source(stub: Stub, empty_cache: Path) -> None:
    order = cubins.Order("broken", "polytile.codegen.triton.worker", {"source": "import triton\nno python", "arguments": [],
                         "constants": [], "divisible": [], "num_warps": 4, "num_stages": 1, "arch": 90}, "test")  # fmt: skip
    with pytest.raises(cubins.KernelRejected, match="kernel 'broken' did not compile") as caught:
        cubins.request(order).result(PATIENCE)
    assert caught.value.source.read_text().endswith("no python")


def test_a_worker_that_dies_fails_its_job_alone(empty_cache: Path) -> None:
    pool = workers.Workers("tests.runtime.cuda.deadly")
    answers: list[dict[str, object]] = []
    import threading

    done = threading.Event()

    def note(ask: workers.Ask, job: dict[str, bool]) -> None:
        answers.append(ask(job))
        done.set()

    for job in ({"die": True}, {"die": False}):
        done.clear()
        pool.submit(functools.partial(note, job=job))
        assert done.wait(PATIENCE)
    pool.stop()
    assert "died" in str(answers[0]["error"]) and answers[1] == {"fine": True}


def test_what_the_environment_tells_triton_is_in_the_key_and_reaches_the_worker(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str:
        return cubins.Order("k", "tests.runtime.cuda.telling", {}, "test").key

    ptxas = tmp_path / "ptxas"
    ptxas.write_text("the first")
    for name in os.environ:
        if name.startswith(("TRITON_", "DISABLE_")) and name != "TRITON_INTERPRET":
            monkeypatch.delenv(name)
    plain, measured = key(), environment(torch.device("cuda"))
    for name, value in (("DISABLE_PTXAS_OPT", "1"), ("TRITON_DEFAULT_FP_FUSION", "0"), ("TRITON_PTXAS_PATH", str(ptxas))):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert key() != plain and name in dict(environment(torch.device("cuda"))), name
            before = key()
            ptxas.write_text("the other one")
            assert (key() != before) is (name == "TRITON_PTXAS_PATH")
    for name in ("TRITON_CACHE_DIR", "TRITON_KERNEL_OVERRIDE"):
        monkeypatch.setenv(name, "1")
        assert key() == plain and environment(torch.device("cuda")) == measured, name
    for value in ("1", "0"):
        monkeypatch.setenv("DISABLE_PTXAS_OPT", value)
        order = cubins.Order("k", "tests.runtime.cuda.telling", {}, "test")
        told = json.loads(cubins.request(order).result(PATIENCE).binary)
        assert told["DISABLE_PTXAS_OPT"] == value and "TRITON_KERNEL_OVERRIDE" not in told and "TRITON_CACHE_DIR" in told
    workers.reset()


def test_of_processes_that_want_the_same_kernel_one_compiles_it(tmp_path: Path, empty_cache: Path) -> None:
    text = (
        "import sys; from polytile.runtime.cuda import cubins; job = {'log': sys.argv[1], 'seconds': 1};"
        "print(cubins.request(cubins.Order('k', 'tests.runtime.cuda.counting', job, 'test')).result(60).facts.symbol)"
    )
    log, own = tmp_path / "log", {**os.environ, "POLYTILE_CACHE_DIR": str(empty_cache), "PYTHONPATH": import_path()}
    words = [sys.executable, "-c", text, str(log)]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=own) for _ in range(2)]
    assert [process.communicate(timeout=PATIENCE)[0].strip() for process in processes] == ["k", "k"]
    assert len(log.read_text().splitlines()) == 1


def test_other_facts_make_other_code_of_the_same_candidate() -> None:
    made = candidate(twice, torch.randn(6, 10))
    plain, known = made.specialise(Facts(wide=True)), made.specialise(Facts(aligned=frozenset({"a0", "a1"})))
    assert plain.kernel != known.kernel and isinstance(made.config, Config)


def test_processes_that_compile_import_triton_alone() -> None:
    """PyTorch would take longer to import than a kernel takes to compile, and the first call waits for it."""
    code = "import sys, polytile.codegen.triton.worker; print(*[m for m in ('torch', 'sympy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_a_worker_whose_parent_has_ended_meanwhile_says_nothing() -> None:
    """Neither where it answers, nor where it says that it is ready."""
    for job in ({"die": False, "seconds": 0.2}, None):
        control, theirs = socket.socketpair()
        with theirs:
            server = subprocess.Popen(
                [sys.executable, worker.__file__, "tests.runtime.cuda.deadly", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        if job is not None:
            assert control.recv(16) == b"ready\n"
            ours, given = socket.socketpair()
            socket.send_fds(control, [b"."], [given.fileno()])
            ours.sendall(json.dumps(job).encode() + b"\n")
            given.close()
            ours.close()
        control.close()
        _, said = server.communicate(timeout=PATIENCE)  # its worker has the same stderr, so this waits for that too
        assert said == ""
