"""The compile service: source text in, a checked shared object out; the same text is never compiled twice.

A shared object is named by the digest of all it depends on (source, flags, compiler, processor). A request that the
cache can answer is answered at once, with no thread and no compiler. Others wait in a queue that a few daemon threads
serve, each running one compiler; whoever needs a result that nobody has begun runs the compiler itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import errno
import functools
import json
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from polytile import locks
from polytile.counters import counters
from polytile.errors import CompileFailed, CompilerMissing
from polytile.problem import digest
from polytile.runtime import background, toolchain
from polytile.runtime.cache import Cache, current
from polytile.runtime.pool import Pool

log = logging.getLogger("polytile")

FORMAT = 1
"""Part of every key; raise it when the same source and flags should be compiled anew."""

TIMEOUT_SECONDS = 300.0
"""A compiler that takes longer is stopped; the largest generated kernels take about 2 s."""

COMPILER_BYTES = 400 << 20
"""Memory of one compiler at most, about: headers are few, and functions short."""

DISK_FULL = "No space left on device"

SUFFIXES = {"c++": ".cpp", "c": ".c"}


class SourceRejected(CompileFailed):
    """The compiler did not accept a source file.

    `command` is the command line, `messages` what the compiler wrote, `source` the file, kept for reading.
    """

    def __init__(self, name: str, command: tuple[str, ...], messages: str, source: Path, ending: str) -> None:
        self.name, self.command, self.messages, self.source = name, command, messages, source
        super().__init__(
            f"kernel {name!r} did not compile: {command[0]} {ending}.\n  source: {source}\n"
            f"  command: {shlex.join(command)}\n  messages:\n{messages.rstrip()}"
        )


class LoadFailed(CompileFailed):
    """A shared object was compiled but this process cannot load it or does not find the kernel in it."""


class CompileRecord(NamedTuple):
    """One answered request: wall seconds of the compiler, 0.0 where the cache had the answer."""

    name: str
    seconds: float
    cached: bool


Source = str | Callable[[], str]
"""A text, or what makes it, where the text may not be needed."""


@dataclass(frozen=True)
class Order:
    """Everything that one run of the compiler depends on."""

    name: str
    source: Source
    language: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    command: tuple[str, ...]
    identity: str
    stem: str = ""
    """Name of its files in the cache, without their suffixes."""
    known_key: str = ""
    present: bool = True
    """Whether there is a compiler to run."""

    @functools.cached_property
    def text(self) -> str:
        return self.source if isinstance(self.source, str) else self.source()

    @functools.cached_property
    def key(self) -> str:
        """Digest of all that can change the binary; the name and the compiler's path cannot."""
        return self.known_key or digest(
            json.dumps([FORMAT, self.language, self.flags, self.libraries, self.identity, self.text]), 24
        )


@dataclass(frozen=True)
class Library:
    """A compiled shared object: its file, the source beside it, and the seconds that compiling took (0.0: cached)."""

    order: Order
    cache: Cache
    path: Path
    seconds: float

    @property
    def name(self) -> str:
        return self.order.name

    @property
    def key(self) -> str:
        return self.order.key

    @property
    def source(self) -> Path:
        return self.path.with_suffix(SUFFIXES[self.order.language])

    @property
    def cached(self) -> bool:
        return self.seconds == 0.0

    def address(self, symbol: str) -> int:
        """Address of the C function `symbol`; see `load`."""
        return load(self, symbol)


class Compilation(Future[Library]):
    """The promise of a Library. `result()` without a timeout does the work itself if nobody has begun it."""

    def __init__(self, work: Callable[[], Library]) -> None:
        super().__init__()
        self._work = work
        self._claim = locks.lock()  # so a forked child does what its parent had begun

    def run(self) -> None:
        """Does the work unless some thread already does or did. The Future carries what goes wrong with it; Ctrl-C says
        nothing about the kernel and is raised here, and the work is done in the background for others who wait."""
        if self._claim.acquire(blocking=False) and (self.running() or self.set_running_or_notify_cancel()):
            try:
                library = self._work()
            except Exception as error:
                self.set_exception(error)
            except BaseException:
                self._claim.release()
                _state.pool.submit(self)
                raise
            else:
                self.set_result(library)

    def result(self, timeout: float | None = None) -> Library:
        if self.done():
            return super().result()
        with counters.stage("compiling"):
            if timeout is None:
                self.run()
            return super().result(timeout)


class _Errand:
    """Something else that a thread of the pool does; what it raises is logged."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def run(self) -> None:
        try:
            self.work()
        except Exception:
            log.warning("Work in the background failed; calls go on with what they have.", exc_info=True)


class _Pool(Pool[Compilation | _Errand]):
    """Each thread runs one compiler at a time."""

    def serve(self, work: Iterator[Compilation | _Errand]) -> None:
        for one in work:
            one.run()


class _State:
    """What the service knows in this process. A forked child starts with nothing: it has none of the threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool = _Pool("polytile-compile", COMPILER_BYTES)
        self.asked: set[str] = set()
        self.compilations: dict[tuple[Path, str], Compilation] = {}
        self.records: list[CompileRecord] = []
        self.running: set[subprocess.Popen[str]] = set()
        self.loaded: dict[Path, ctypes.CDLL] = {}
        self.ended = False


_state = _State()


def reset() -> None:
    """Forgets every request of this process, so that each is looked up on disk and counted again."""
    global _state
    _state = _State()


os.register_at_fork(after_in_child=reset)


@atexit.register
def _stop_compilers() -> None:
    _state.ended = True
    for process in list(_state.running):
        _stop(process)


_groups = {"own": True}
"""Whether each compiler has a process group to itself, so that Ctrl-C does not reach it."""


def share_group() -> None:
    """From now on compilers belong to this process's group, with which they end."""
    _groups["own"] = False


def _stop(process: subprocess.Popen[str]) -> None:
    """Ends a compiler driver and the programs that it runs; it removes its own temporary files."""
    with contextlib.suppress(OSError):
        if _groups["own"]:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()


_Words = tuple[str, ...]


def compile_cpp(
    name: str, source: Source, flags: tuple[str, ...] = (), openmp: bool = True, key: str = ""
) -> Compilation:
    """Asks for the shared object of the C++ `source` of the kernel `name`; returns at once. `openmp`: it may start threads,
    by the runtime that torch brings. With the `key` that `key_of_cpp` gave for the text, a source that is made when it is called
    is called only where the cache has no such object.

    The result raises CompilerMissing, SourceRejected (a CompileFailed) or CacheError. Equal sources share one result.
    """
    text = source if isinstance(source, str) or key else source()
    digested = key or digest(str(text))
    with _state.lock:
        if digested not in _state.asked:
            _state.asked.add(digested)
            counters.add("kernels_generated")
    return _request(name, text, "c++", functools.partial(_words_of_cpp, flags, openmp), key)


def key_of_cpp(source: str) -> str:
    """The key of the object that `compile_cpp` gives for this text. Raises CompilerMissing."""
    tools = toolchain.find()
    return Order("", source, "c++", *_words_of_cpp((), True, tools), tools.command, tools.identity).key


def _words_of_cpp(flags: _Words, openmp: bool, tools: toolchain.Toolchain) -> tuple[_Words, _Words]:
    runtime = openmp_flags() if openmp else ()
    return (*tools.flags, *runtime, *flags), () if runtime else tools.libraries


def compile_c(name: str, source: str, flags: tuple[str, ...] = (), headers: tuple[str, ...] = ()) -> Compilation:
    """Asks for the shared object of a C extension; as `compile_cpp`, but not counted as a generated kernel. `headers`: folders
    whose files the `flags` tell apart."""
    return _request(name, source, "c", lambda tools: ((*toolchain.EXTENSION_FLAGS, *flags), ()), headers=headers)


def in_background(work: Callable[[], None]) -> None:
    """Has a thread that serves compilers do something, which asks for a compiler in the end."""
    _state.pool.submit(_Errand(work))


def has_c(name: str, source: str, flags: tuple[str, ...] = ()) -> bool:
    """Whether the cache holds what `compile_c` would compile."""
    try:
        tools = toolchain.find()
    except CompilerMissing:
        return False
    order = Order(name, source, "c", (*toolchain.EXTENSION_FLAGS, *flags), (), tools.command, tools.identity)
    cache = current()
    return cache.holds(f"{cache.stem('kernels', name, order.key, '.so')}.so")


def has_key(key: str) -> bool:
    """Whether the cache holds the object with the key that `key_of_cpp` gave for some text."""
    cache = current()
    return cache.holds(f"{cache.stem('kernels', '', key, '.so')}.so")


def _request(
    name: str,
    source: Source,
    language: str,
    words: Callable[[toolchain.Toolchain], tuple[_Words, _Words]],
    key: str = "",
    headers: tuple[str, ...] = (),
) -> Compilation:
    """`words`: the flags and the libraries for a compiler."""
    try:
        tools = toolchain.find()
    except CompilerMissing as error:
        failed = Compilation(functools.partial(_raise, error))
        failed.run()
        return failed
    command = (*tools.command, *(f"-I{folder}" for folder in headers))
    order = Order(name, source, language, *words(tools), command, tools.identity, known_key=key, present=tools.present)
    cache = current()
    place = (cache.root, order.key)
    with _state.lock:
        known = _state.compilations.get(place)
        if known is not None and not _failed(known):
            return known
        order = dataclasses.replace(order, stem=cache.stem("kernels", order.name, order.key, ".so"))
        compilation = _state.compilations[place] = Compilation(lambda: _fetch(order, cache) or _build(order, cache))
    if cache.holds(f"{order.stem}.so") or not tools.present:
        compilation.run()  # a look-up, unless the file is damaged
    else:
        _state.pool.submit(compilation)
    return compilation


def _raise(error: Exception) -> Library:
    raise error


def _failed(compilation: Compilation) -> bool:
    return compilation.done() and (compilation.cancelled() or compilation.exception() is not None)


@functools.cache
def openmp_flags() -> tuple[str, ...]:
    """Nothing where torch has brought an OpenMP runtime with GOMP_parallel into the process; else -fopenmp."""
    import torch  # noqa: F401  (loads the runtime)

    return () if hasattr(ctypes.CDLL(None), "GOMP_parallel") else ("-fopenmp",)


def _record(order: Order, seconds: float, cached: bool) -> None:
    with _state.lock:
        _state.records.append(CompileRecord(order.name, seconds, cached))


def settle(timeout: float) -> None:
    """Waits, at most `timeout` seconds, until no compiler of this process is at work or about to be: what is timed beside
    one, on the same cores, is timed wrong."""
    with _state.lock:
        pending = [compilation for compilation in _state.compilations.values() if not compilation.done()]
    if pending:
        with counters.stage("compiling"):
            futures.wait(pending, timeout)


def compile_log() -> list[CompileRecord]:
    """Every request answered in this process, in order of completion."""
    with _state.lock:
        return list(_state.records)


def _fetch(order: Order, cache: Cache) -> Library | None:
    path = cache.check(f"{order.stem}.so")
    if path is None:
        return None
    _record(order, 0.0, cached=True)
    return Library(order, cache, path, 0.0)


def _build(order: Order, cache: Cache) -> Library:
    """Runs the compiler into a temporary file, then seals it and renames it into the cache. Raises CompilerMissing where there is
    none."""
    if not order.present:
        raise CompilerMissing(toolchain.NONE)
    source = cache.write(order.stem + SUFFIXES[order.language], order.text.encode(), sealed=False)
    output = cache.scratch()
    begin = time.perf_counter()
    try:
        _run_compiler(order, source, output)
        seconds = time.perf_counter() - begin
        path = cache.write(f"{order.stem}.so", output.read_bytes())
    except SourceRejected as error:
        if DISK_FULL not in error.messages:
            raise
        cache.in_force.give_up(OSError(errno.ENOSPC, DISK_FULL))
        return _build(order, cache)
    finally:
        with contextlib.suppress(OSError):
            output.unlink()
    _record(order, seconds, cached=False)
    return Library(order, cache, path, seconds)


def _run_compiler(order: Order, source: Path, output: Path) -> None:
    command = (*order.command, *order.flags, "-x", order.language, str(source), "-o", str(output), *order.libraries)
    status, messages = _ended(order, command, source)
    if status != 0 and _state.ended:  # this process has stopped it: nothing is known about the source
        raise CompilerMissing(f"kernel {order.name!r} was being compiled when the process ended.")
    if status != 0:
        raise SourceRejected(order.name, command, messages, source, f"ended with status {status}")


def _ended(order: Order, command: _Words, source: Path) -> tuple[int, str]:
    """The exit status of the compiler, and what it wrote. One that has yielded and cannot have its priority back is run again
    when somebody waits."""
    counters.add("compiler_runs")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=toolchain.environment(),
        start_new_session=_groups["own"],
    )
    state, stopped = _state, threading.Event()

    def stop() -> None:
        stopped.set()
        _stop(process)

    state.running.add(process)
    if background.background.is_behind_calls():
        background.background.let_yield(process.pid, background.PROCESS_NICENESS, stop)
    try:
        messages, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as error:  # too slow, or Ctrl-C
        _stop(process)
        messages, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            ending = f"was stopped after {TIMEOUT_SECONDS:.0f} s"
            raise SourceRejected(order.name, command, messages, source, ending) from None
        raise
    finally:
        background.background.forget(process.pid)
        state.running.discard(process)
    if process.returncode != 0 and stopped.is_set() and not state.ended:
        return _ended(order, command, source)
    return process.returncode, messages


def verified(library: Library) -> Library:
    """`library` if its file is whole, else the same compiled again. A damaged file must not be loaded: it kills."""
    return library if library.cache.check(f"{library.order.stem}.so") == library.path else _rebuilt(library)


def load(library: Library, symbol: str) -> int:
    """Address of the C function `symbol` of `library`, which stays loaded until the process ends.

    The file is checked first. A damaged one, or one that the dynamic loader refuses, is set aside and compiled again,
    once. Raises LoadFailed if that does not help.
    """
    with _state.lock:
        loaded = _state.loaded.get(library.path)
    if loaded is None:
        loaded = _load_file(verified(library), last=False)
        with _state.lock:
            _state.loaded[library.path] = loaded
    try:
        function = getattr(loaded, symbol)
    except AttributeError:
        raise LoadFailed(
            f"the shared object of kernel {library.name!r} has no C function {symbol!r}; see {library.source}."
        ) from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _load_file(library: Library, last: bool) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library.path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        if last:
            raise LoadFailed(
                f"the shared object of kernel {library.name!r} was compiled but cannot be loaded: {error}; see "
                f"{library.source}."
            ) from error
        library.cache.set_aside(f"{library.order.stem}.so", f"cannot be loaded ({error})")
    return _load_file(_rebuilt(library), last=True)


def _rebuilt(library: Library) -> Library:
    """The library compiled anew; equal requests made from now on share the result."""
    order, cache = library.order, library.cache
    with _state.lock:
        compilation = Compilation(lambda: _fetch(order, cache) or _build(order, cache))
        _state.compilations[(cache.root, order.key)] = compilation
    return compilation.result()
