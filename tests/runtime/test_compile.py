"""The compile service: never twice, in parallel, and whole files only."""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytile import counters, options
from polytile.errors import CompileFailed, CompilerMissing
from polytile.runtime import cache, child_process, compiler_process, toolchain
from polytile.runtime import compile as compiler
from polytile.runtime.compile import SourceRejected, compile_cpp, compile_log, load
from polytile.tuning.environment import environment
from tests.compilers import in_company, most_at_once, stand_in
from tests.runtime.helpers import entry, forget, library, returned, tiny
from tests.waiting import PATIENCE


def test_source_in_kernel_out(home: Path) -> None:
    made = compile_cpp("my kernel", tiny(7)).result()
    assert returned(load(made, "k")) == 7
    assert made.path.parent == home / "kernels" and made.path.name.startswith("my_kernel-")
    assert made.source.read_text() == tiny(7), "the source lies beside the shared object for people to read"
    assert list((home / "tmp").iterdir()) == []


def test_a_kernel_whose_locals_have_destructors_is_loaded_without_the_cpp_library() -> None:
    """What may throw, as far as the compiler can see, must not make it clean up after an exception."""
    source = """
    extern "C" int getpid(); extern "C" int getppid(); static volatile int seen;
    struct Kept { ~Kept() { seen = getppid(); } };
    extern "C" long k(void* const* ptrs, const long* sizes, long threads) { Kept kept; return getpid() ? 7 : 0; }
    """
    assert returned(load(compile_cpp("destructors", source).result(), "k")) == 7


def test_equal_sources_are_compiled_once_and_counted_once() -> None:
    first = [compile_cpp("k", tiny(1)) for _ in range(5)]
    assert len({future.result().path for future in first}) == 1
    compile_cpp("k", tiny(2)).result()
    assert counters["kernels_generated"] == 2
    assert counters["compiler_runs"] == 2
    assert [(record.name, record.cached) for record in compile_log()] == [("k", False), ("k", False)]
    assert all(record.seconds > 0 for record in compile_log())


def test_a_new_process_finds_everything_without_compiler_or_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cpp("k", tiny(1)).result()
    forget()
    threads = set(threading.enumerate())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    made = compile_cpp("k", tiny(1))
    assert made.done() and returned(made.result().address("k")) == 1
    assert (counters["kernels_generated"], counters["compiler_runs"]) == (1, 0)
    assert compile_log() == [("k", 0.0, True)]
    assert set(threading.enumerate()) <= threads


def test_a_later_process_finds_a_kernel_that_was_first_asked_for_by_another_name() -> None:
    path = compile_cpp("first", tiny(4)).result().path
    compile_cpp("second", tiny(4)).result()
    forget()
    assert compile_cpp("second", tiny(4)).result().path == path and counters["compiler_runs"] == 0


@pytest.mark.parametrize("what", ["source", "flags", "processor", "compiler", "CPATH", "CXXFLAGS", "GCC_EXEC_PREFIX"])
def test_whatever_can_change_the_binary_changes_the_key(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cpp("k", tiny(1)).result()
    compiler.reset()
    if what == "processor":
        monkeypatch.setattr("polytile.runtime.toolchain.cpu", lambda: type("Cpu", (), {"identity": "another"}))
    elif what == "compiler":
        another = dataclasses.replace(compiler.toolchain.find(), version="another version")
        monkeypatch.setattr(compiler.toolchain, "find", lambda: another)
    elif what.isupper():
        before = toolchain.find(), environment()
        monkeypatch.setenv(what, "/usr/lib/gcc/" if what == "GCC_EXEC_PREFIX" else "/nowhere")
        assert what in toolchain.find().version and toolchain.find().identity != before[0].identity and environment() != before[1]
    second = compile_cpp("k", tiny(2 if what == "source" else 1), flags=("-DX",) if what == "flags" else ()).result()
    assert second.key != first.key


def test_a_compiler_reads_what_its_key_has_and_writes_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`g++` here is a script that takes more flags from the environment, as those of some distributions do."""
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\nexec {toolchain.find().path} $CXXFLAGS "$@"\n')
    script.chmod(0o755)
    source = 'extern "C" long k(void* const* p, const long* s, long t) { return NUMBER; }'
    monkeypatch.setenv("DEPENDENCIES_OUTPUT", str(tmp_path / "dependencies"))
    with options.override(cxx=str(script)):
        for number in (3, 4):
            monkeypatch.setenv("CXXFLAGS", f"-DNUMBER={number}")
            assert returned(compile_cpp("k", source).result().address("k")) == number
    assert not (tmp_path / "dependencies").exists()


def test_rejected_source_carries_command_messages_and_the_file(home: Path) -> None:
    failed = compile_cpp("broken", 'extern "C" long k() { return no_such_name; }')
    with pytest.raises(SourceRejected, match="no_such_name") as caught:
        failed.result()
    error = caught.value
    assert isinstance(error, CompileFailed)
    assert error.source.read_text().startswith("extern") and str(error.source) in str(error)
    assert "-O2" in error.command and "no_such_name" in error.messages and error.name == "broken"
    with pytest.raises(SourceRejected):
        compile_cpp("broken", 'extern "C" long k() { return no_such_name; }').result()
    assert counters["compiler_runs"] == 2, "a failure is tried again when asked again: it may have passed"


def test_without_a_compiler_the_result_raises_and_says_what_to_install() -> None:
    with options.override(cxx="no-such-compiler"):
        future = compile_cpp("k", tiny(1))
    with pytest.raises(CompilerMissing, match="Install one"):
        future.result()


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(CompileFailed, match="no C function 'other'"):
        compile_cpp("k", tiny(1)).result().address("other")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def foreign(path: Path) -> None:
    shutil.copy(compile_cpp("other", tiny(99)).result().path, path)


@pytest.mark.parametrize("damage", [truncate, garbage, foreign])
@pytest.mark.parametrize("moment", ["before the request", "between request and load"])
def test_a_damaged_library_is_set_aside_and_rebuilt(
    damage: Callable[[Path], None], moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = compile_cpp("k", tiny(5)).result().path
    forget()
    made = None if moment == "before the request" else compile_cpp("k", tiny(5)).result()
    damage(path)
    before = counters["compiler_runs"]
    made = made or compile_cpp("k", tiny(5)).result()
    assert returned(made.address("k")) == 5
    assert counters["compiler_runs"] == before + 1
    assert path.with_name(path.name + ".bad").exists() and "set aside" in caplog.text


def test_a_whole_file_that_the_loader_refuses_is_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    made = compile_cpp("k", tiny(6)).result()
    cache.current().write(f"{made.order.stem}.so", b"\x7fELF but not really")
    assert returned(made.address("k")) == 6
    assert "cannot be loaded" in caplog.text


def test_a_kernel_that_never_loads_is_an_error_and_not_a_loop() -> None:
    made = compile_cpp("k", 'extern "C" long nowhere(); extern "C" long k() { return nowhere(); }').result()
    with pytest.raises(CompileFailed, match=r"cannot be loaded.*nowhere"):
        made.address("k")


def test_a_full_disk_moves_the_work_to_a_private_directory(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = f'if [[ " $* " == *" -o {home}"* ]]; then echo "ld: No space left on device"; exit 1; fi; exec g++ "$@"'
    with options.override(cxx=stand_in(tmp_path / "g++-on-full-disk", refusing)):
        made = compile_cpp("k", tiny(3)).result()
    assert returned(made.address("k")) == 3
    assert home not in made.path.parents
    assert [record for record in caplog.records if "No space left" in record.getMessage()]


@pytest.mark.parametrize("workers", [1, 2])
def test_compilers_run_in_parallel_up_to_the_option(tmp_path: Path, workers: int) -> None:
    log = tmp_path / "log"
    with options.override(cxx=in_company(tmp_path / "g++", log, workers), compile_workers=workers):
        futures = [compile_cpp("k", tiny(i)) for i in range(4)]
    done, _ = concurrent.futures.wait(futures, timeout=PATIENCE)
    assert len(done) == 4 and sorted(returned(f.result().address("k")) for f in done) == [0, 1, 2, 3]
    assert most_at_once(log) == workers


def test_who_needs_a_kernel_does_not_wait_for_the_queue(tmp_path: Path) -> None:
    go = tmp_path / "go"
    others_wait = f'[[ "$*" == */needed-* ]] || until [[ -e {go} ]]; do sleep 0.01; done; exec g++ "$@"'
    try:
        with options.override(cxx=stand_in(tmp_path / "g++", others_wait), compile_workers=1):
            queue = [compile_cpp("queued", tiny(i)) for i in range(4)]
            needed = compile_cpp("needed", tiny(4))
        assert returned(needed.result().address("k")) == 4
        assert not any(future.done() for future in queue)
    finally:
        go.touch()
    for future in queue:
        future.cancel()
    concurrent.futures.wait(queue, timeout=PATIENCE)


def test_after_ctrl_c_while_compiling_the_kernel_is_there_for_whoever_asks_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = compiler._run_compiler

    def interrupted(order: Any, *files: Path) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        plain(order, *files)

    go = tmp_path / "go"
    queue_waits = f'[[ "$*" == */needed-* ]] || until [[ -e {go} ]]; do sleep 0.01; done; exec g++ "$@"'
    with options.override(cxx=stand_in(tmp_path / "g++", queue_waits), compile_workers=1):
        compile_cpp("queued", tiny(0))
        needed = compile_cpp("needed", tiny(1))
        monkeypatch.setattr(compiler, "_run_compiler", interrupted)
        with pytest.raises(KeyboardInterrupt):
            needed.result()
        go.touch()
        assert returned(needed.result(PATIENCE).address("k")) == 1


@pytest.mark.parametrize("beside_calls", [False, True])
def test_a_compiler_that_no_call_waits_for_is_a_little_nicer(tmp_path: Path, beside_calls: bool) -> None:
    """The launcher's ran beside the tracer, and took a core from it."""
    log = tmp_path / "niceness"
    program = stand_in(tmp_path / "g++", f'sleep 0.2; nice > {log}; exec g++ "$@"')
    with options.override(cxx=program):
        compiler.compile_c("k", "int k;", beside_calls=beside_calls).result()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(log.read_text()) == (min(19, own + child_process.NICENESS) if beside_calls else own)


def test_a_compiler_that_hangs_is_stopped(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "TIMEOUT_SECONDS", 0.3)
    program = stand_in(tmp_path / "g++", f"sleep {10 * PATIENCE:.0f}")
    with options.override(cxx=program), pytest.raises(SourceRejected, match="was stopped after"):
        compile_cpp("k", tiny(1)).result()
    assert list((home / "tmp").iterdir()) == []


def test_a_compiler_that_the_end_of_the_process_stops_says_nothing_about_the_source(home: Path, tmp_path: Path) -> None:
    with options.override(cxx=stand_in(tmp_path / "g++", f"sleep {10 * PATIENCE:.0f}")):
        future, until = compile_cpp("k", tiny(1)), time.monotonic() + PATIENCE
        while not compiler_process._running.processes and time.monotonic() < until:
            time.sleep(0.01)
        compiler_process._stop_compilers()
        with pytest.raises(CompilerMissing, match="when the process ended"):
            future.result(PATIENCE)
    compiler_process.reset()
    compiler.reset()


def test_a_forked_child_can_compile(home: Path) -> None:
    compile_cpp("k", tiny(1)).result()
    concurrent.futures.wait([compile_cpp("k", tiny(2))], timeout=PATIENCE)
    child = os.fork()
    if child == 0:
        try:
            future = compile_cpp("k", tiny(3))
            concurrent.futures.wait([future], timeout=PATIENCE)
            os._exit(0 if returned(future.result(0).address("k")) == 3 else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_come_from_torchs_own_openmp_runtime() -> None:
    import torch

    made, seen = library(), torch.zeros(1, dtype=torch.int64)
    headers = subprocess.run(["readelf", "-d", made.path], capture_output=True, text=True).stdout
    assert "Dynamic section" in headers and "libgomp" not in headers
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(entry("team").address)
    call(ctypes.byref(ctypes.c_void_p(seen.data_ptr())), None, 2)
    assert seen.item() == 2


def test_a_process_without_gomp_links_the_compilers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, *_: Any, **__: Any) -> None: ...

    compiler.openmp_flags.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(compiler.ctypes, "CDLL", Nothing)
        assert compiler.openmp_flags() == ("-fopenmp",)
    made = library()
    compiler.openmp_flags.cache_clear()
    assert "-fopenmp" in made.order.flags and made.address("team")
    assert "libgomp" in subprocess.run(["readelf", "-d", made.path], capture_output=True, text=True).stdout
