"""The compile service: takes source text and returns a checked shared object. It never compiles the same text twice.

A shared object is named by the digest of everything it depends on: source, flags, compiler and processor. A request
that the cache can answer returns at once, without a thread or a compiler. Other requests wait in a queue served by a
few daemon threads, each of which runs one compiler at a time. A caller that needs a result nobody has started on runs
the compiler itself.

Parts that texts have in common (parts.py) are compiled once, as objects that shared objects are linked with. A shared object
holds its parts, so that whoever loads or ships it needs no other file.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import json
import logging
import os
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
from polytile.runtime import compiler_process, parts, toolchain
from polytile.runtime.cache import Cache, current
from polytile.runtime.compiler_process import SourceRejected
from polytile.runtime.pool import Pool

log = logging.getLogger("polytile")

FORMAT = 1
"""Part of every key. Raise it when unchanged source and flags must be compiled again."""

COMPILER_BYTES = 400 << 20
"""Estimate of the peak memory of one compiler. Kernels include few headers and have short functions."""

DISK_FULL = "No space left on device"

SUFFIXES = {"c++": ".cpp", "c": ".c"}
SHARED, OBJECT = ".so", ".o"
"""Suffixes of what the compiler makes: a shared object, and a part that shared objects are linked with."""


class LoadFailed(CompileFailed):
    """A compiled shared object that this process cannot load, or that lacks the kernel's function."""


class CompileRecord(NamedTuple):
    """One answered request: wall-clock seconds of the compiler, or 0.0 for a cache hit."""

    name: str
    seconds: float
    cached: bool


Source = str | Callable[[], str]
"""A source text, or a function that generates it when it is needed."""


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
    """Name of its files in the cache, without suffixes."""
    known_key: str = ""
    present: bool = True
    """Whether a compiler is installed."""
    suffix: str = SHARED
    beside_calls: bool = False
    """Whether no call waits for it."""

    @property
    def file(self) -> str:
        """Name of the result in the cache."""
        return f"{self.stem}{self.suffix}"

    @functools.cached_property
    def text(self) -> str:
        return self.source if isinstance(self.source, str) else self.source()

    @functools.cached_property
    def key(self) -> str:
        """Digest of everything that can change the binary. The kernel's name and the compiler's path are not part of it."""
        return self.known_key or digest(
            json.dumps([FORMAT, self.language, self.flags, self.libraries, self.identity, self.text]), 24
        )

    def of_part(self, part: parts.Part) -> Order:
        """The order for the object of a part of the text."""
        flags = tuple("-c" if flag == "-shared" else flag for flag in self.flags)
        return dataclasses.replace(
            self, name=part.name, source=part.text, flags=flags, libraries=(), stem="", known_key="", suffix=OBJECT
        )


@dataclass(frozen=True)
class Library:
    """A compiled shared object: its file, the source beside it, and the seconds its compilation took (0.0 for a cache hit)."""

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
    """Future of a Library. `result()` without a timeout does the work itself if no thread has started it."""

    def __init__(self, work: Callable[[], Library]) -> None:
        super().__init__()
        self._work = work
        self._claim = locks.lock()  # reset by a fork, so the child redoes work that its parent had started

    def run(self) -> None:
        """Does the work unless another thread is doing it or has done it.

        The Future carries any Exception. Ctrl-C says nothing about the kernel, so it is raised here, and a background
        thread redoes the work for other waiters.
        """
        if self._claim.acquire(blocking=False) and (self.running() or self.set_running_or_notify_cancel()):
            try:
                library = self._work()
            except Exception as error:
                self.set_exception(error)
            except BaseException:
                self._claim.release()
                _state.pool.submit(self.run)
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


class _BackgroundTask:
    """Other work for a thread of the pool. Exceptions are logged."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.ended = work, threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception:
            log.warning("Background work failed; calls continue with their current kernels.", exc_info=True)
        finally:
            self.ended.set()


class _State:
    """The service's state in this process. A forked child starts with an empty one, since it has none of the threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool = Pool("polytile-compile", COMPILER_BYTES)
        self.asked: set[str] = set()
        self.compilations: dict[tuple[Path, str], Compilation] = {}
        self.tasks: list[_BackgroundTask] = []
        self.records: list[CompileRecord] = []
        self.loaded: dict[Path, ctypes.CDLL] = {}


_state = _State()


def reset() -> None:
    """Forgets every request of this process, so that each is looked up on disk and counted again."""
    global _state
    _state = _State()


os.register_at_fork(after_in_child=reset)


_Arguments = tuple[str, ...]


def compile_cpp(
    name: str, source: Source, flags: tuple[str, ...] = (), openmp: bool = True, key: str = ""
) -> Compilation:
    """Requests the shared object of the C++ `source` of kernel `name`, and returns at once.

    Parameters
    ----------
    name : str
        Name of the kernel, for file names and messages.
    source : str or callable
        C++ text, or a function that generates it. With `key` given, the function runs only if the cache lacks the
        object.
    flags : tuple of str
        Compiler flags beyond the toolchain's own.
    openmp : bool
        Whether the kernel may start threads, through the OpenMP runtime that torch loads.
    key : str
        Result of `key_of_cpp` for the text, if known.

    Returns
    -------
    Compilation
        Its `result()` raises CompilerMissing, SourceRejected (a CompileFailed) or CacheError. Equal sources share one
        result.
    """
    text = source if isinstance(source, str) or key else source()
    digested = key or digest(str(text))
    with _state.lock:
        if digested not in _state.asked:
            _state.asked.add(digested)
            counters.add("kernels_generated")
    return _request(name, text, "c++", functools.partial(_cpp_arguments, flags, openmp), key)


def key_of_cpp(source: str) -> str:
    """Key of the object that `compile_cpp` makes from this text. Raises CompilerMissing."""
    tools = toolchain.find()
    return Order("", source, "c++", *_cpp_arguments((), True, tools), tools.command, tools.identity).key


def _cpp_arguments(flags: _Arguments, openmp: bool, tools: toolchain.Toolchain) -> tuple[_Arguments, _Arguments]:
    runtime = openmp_flags() if openmp else ()
    return (*tools.flags, *runtime, *flags), () if runtime else tools.libraries


def compile_parts(source: str) -> Iterator[Compilation]:
    """The objects of the parts of a C++ text (parts.py), ahead of a kernel with the same parts. Whoever takes one asks for its
    `result()`, as nobody else works on it. Raises CompilerMissing."""
    tools, cache = toolchain.require(), current()
    order = Order("", source, "c++", *_cpp_arguments((), True, tools), tools.command, tools.identity)
    return _objects(order, cache)


def compile_c(
    name: str, source: str, flags: tuple[str, ...] = (), headers: tuple[str, ...] = (), beside_calls: bool = False
) -> Compilation:
    """Requests the shared object of a C extension. Like `compile_cpp`, but not counted as a generated kernel. `headers`
    lists include directories; `flags` must identify their contents. `beside_calls`: no call waits for it, so that the compiler
    has a lower priority."""
    arguments = (*toolchain.EXTENSION_FLAGS, *flags), ()
    return _request(name, source, "c", lambda tools: arguments, headers=headers, beside_calls=beside_calls)


def in_background(work: Callable[[], None]) -> None:
    """Runs `work`, which ends in a request for a compiler, on one of the compile threads."""
    task = _BackgroundTask(work)
    with _state.lock:
        _state.tasks = [*(each for each in _state.tasks if not each.ended.is_set()), task]
    _state.pool.submit(task.run)


def finish_background(timeout: float | None = None) -> bool:
    """Waits up to `timeout` seconds until all work given to `in_background` has ended. Returns whether it has."""
    end = None if timeout is None else time.monotonic() + timeout
    with _state.lock:
        tasks = list(_state.tasks)
    return all(task.ended.wait(None if end is None else max(0.0, end - time.monotonic())) for task in tasks)


def has_c(name: str, source: str, flags: tuple[str, ...] = ()) -> bool:
    """Whether the cache holds the result of `compile_c` for these arguments."""
    try:
        tools = toolchain.find()
    except CompilerMissing:
        return False
    order = Order(name, source, "c", (*toolchain.EXTENSION_FLAGS, *flags), (), tools.command, tools.identity)
    cache = current()
    return cache.holds(f"{cache.stem('kernels', name, order.key, '.so')}.so")


def has_key(key: str) -> bool:
    """Whether the cache holds the object with this key, as returned by `key_of_cpp`."""
    cache = current()
    return cache.holds(f"{cache.stem('kernels', '', key, '.so')}.so")


def _request(
    name: str,
    source: Source,
    language: str,
    arguments: Callable[[toolchain.Toolchain], tuple[_Arguments, _Arguments]],
    key: str = "",
    headers: tuple[str, ...] = (),
    beside_calls: bool = False,
) -> Compilation:
    """`arguments` returns the flags and the libraries for a compiler."""
    try:
        tools = toolchain.find()
    except CompilerMissing as error:
        failed = Compilation(functools.partial(_raise, error))
        failed.run()
        return failed
    command = (*tools.command, *(f"-I{folder}" for folder in headers))
    order = Order(
        name, source, language, *arguments(tools), command, tools.identity, known_key=key, present=tools.present,
        beside_calls=beside_calls,
    )  # fmt: skip
    cache = current()
    compilation, new = _compilation(order, cache)
    if new and (cache.holds(f"{cache.stem('kernels', name, order.key, SHARED)}{SHARED}") or not tools.present):
        compilation.run()  # a lookup, unless the file is damaged
    elif new:
        _state.pool.submit(compilation.run)
    return compilation


def _compilation(order: Order, cache: Cache) -> tuple[Compilation, bool]:
    """The one Compilation of equal orders, and whether it is new, so that somebody has to run it."""
    place = (cache.root, order.key)
    with _state.lock:
        known = _state.compilations.get(place)
        if known is not None and not _failed(known):
            return known, False
        placed = dataclasses.replace(order, stem=cache.stem("kernels", order.name, order.key, order.suffix))
        compilation = _state.compilations[place] = Compilation(lambda: _fetch(placed, cache) or _build(placed, cache))
    return compilation, True


def _raise(error: Exception) -> Library:
    raise error


def _failed(compilation: Compilation) -> bool:
    return compilation.done() and (compilation.cancelled() or compilation.exception() is not None)


@functools.cache
def openmp_flags() -> tuple[str, ...]:
    """Empty if torch has loaded an OpenMP runtime with GOMP_parallel into the process, else -fopenmp."""
    import torch  # noqa: F401  (loads the runtime)

    return () if hasattr(ctypes.CDLL(None), "GOMP_parallel") else ("-fopenmp",)


def _record(order: Order, seconds: float, cached: bool) -> None:
    with _state.lock:
        _state.records.append(CompileRecord(order.name, seconds, cached))


def settle(timeout: float) -> None:
    """Waits up to `timeout` seconds until no compiler of this process runs or is queued. A compiler on the same cores
    distorts timings."""
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
    path = cache.check(order.file)
    if path is None:
        return None
    if order.suffix == SHARED:
        _record(order, 0.0, cached=True)
    return Library(order, cache, path, 0.0)


def _build(order: Order, cache: Cache) -> Library:
    """Runs the compiler into a temporary file, seals the result and renames it into the cache. Raises CompilerMissing
    if no compiler is installed."""
    if not order.present:
        raise CompilerMissing(toolchain.NONE)
    objects = _intact_objects(order, cache)
    source = cache.write(order.stem + SUFFIXES[order.language], order.text.encode(), sealed=False)
    output = cache.scratch()
    begin = time.perf_counter()
    try:
        _run_compiler(order, source, objects, output)
        seconds = time.perf_counter() - begin
        path = cache.write(order.file, output.read_bytes())
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


def _objects(order: Order, cache: Cache) -> Iterator[Compilation]:
    """The objects of the parts of a text."""
    own = parts.parts(order.text) if order.suffix == SHARED else ()
    return (_compilation(order.of_part(part), cache)[0] for part in own)


def _intact_objects(order: Order, cache: Cache) -> list[Path]:
    """The same, intact now. Does the work that nobody has begun."""
    return [verified(compilation.result()).path for compilation in _objects(order, cache)]


def _run_compiler(order: Order, source: Path, objects: list[Path], output: Path) -> None:
    linked = ("-x", "none", *map(str, objects)) if objects else ()
    apart = (f"-D{parts.APART}",) if objects else ()
    command = (
        *order.command, *order.flags, *apart, "-x", order.language, str(source), *linked, "-o", str(output), *order.libraries,
    )  # fmt: skip
    compiler_process.run(order.name, command, source, order.beside_calls)


def verified(library: Library) -> Library:
    """Returns `library` if its file is intact, else a recompiled one. Loading a damaged file would crash the process."""
    return library if library.cache.check(library.order.file) == library.path else _rebuilt(library)


def load(library: Library, symbol: str) -> int:
    """Address of the C function `symbol` of `library`, which stays loaded until the process ends.

    The file is checked first. A file that is damaged, or that the dynamic loader rejects, is set aside and recompiled
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
        library.cache.set_aside(library.order.file, f"cannot be loaded ({error})")
    return _load_file(_rebuilt(library), last=True)


def _rebuilt(library: Library) -> Library:
    """Recompiles the library. Later equal requests share the result."""
    order, cache = library.order, library.cache
    with _state.lock:
        compilation = Compilation(lambda: _fetch(order, cache) or _build(order, cache))
        _state.compilations[(cache.root, order.key)] = compilation
    return compilation.result()
