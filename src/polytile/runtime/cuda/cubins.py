"""Compiled GPU kernels: requested by content, compiled once by a worker process, and cached with their properties.

A kernel is two sealed files named by the digest of everything it depends on: STEM.cubin holds the machine code, STEM.json its
loading parameters and resource usage. Its source is stored beside them for inspection.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polytile.counters import counters
from polytile.errors import CompileFailed
from polytile.problem import digest
from polytile.runtime import lease
from polytile.runtime.cache import Cache, current
from polytile.runtime.cuda import workers

FORMAT = 1
"""Part of every key. Raise it when unchanged jobs must be compiled again."""


REJECTED = ".rejected"
"""Suffix of the file with the compiler's messages for a kernel whose text it rejected. Such a kernel is not compiled again."""


class KernelRejected(CompileFailed):
    """The compiler rejected a generated GPU kernel; `source` is the file, which is kept for inspection."""

    def __init__(self, name: str, messages: str, source: Path) -> None:
        self.name, self.messages, self.source = name, messages, source
        super().__init__(f"kernel {name!r} did not compile.\n  source: {source}\n  messages:\n{messages.rstrip()}")


@dataclass(frozen=True)
class Facts:
    """Loading parameters and resource usage of a cubin.

    Attributes
    ----------
    symbol : str
        Name of the kernel in the cubin.
    num_warps : int
        Warps per block.
    shared : int
        Bytes of dynamic shared memory per block.
    registers : int
        Registers per thread.
    spills : int
        Bytes of register spills per thread.
    seconds : float
        Compile time.
    global_scratch, profile_scratch : int
        Bytes of global memory that each block needs besides.
    descriptors : sequence of sequence of int
        One entry per descriptor argument, as codegen/triton/compile.py defines it.
    """

    symbol: str
    num_warps: int
    shared: int
    registers: int
    spills: int
    seconds: float = 0.0
    global_scratch: int = 0
    profile_scratch: int = 0
    descriptors: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel. `cached`: no compiler ran for it in this process."""

    facts: Facts
    binary: bytes
    source: Path
    cached: bool


@dataclass(frozen=True)
class Order:
    """One kernel to compile.

    `job` is the argument of the worker module's `run`, with the source text under "source", stored with `suffix`.
    `identity` holds what else determines the result (compiler versions), besides the environment variables that the
    compilers read.
    """

    name: str
    module: str
    job: Mapping[str, Any]
    identity: str
    suffix: str = ".py"
    environment: Mapping[str, str] = field(default_factory=workers.compiler_environment)

    @property
    def key(self) -> str:
        return digest(json.dumps([FORMAT, self.identity, self.environment, self.job], sort_keys=True), 24)

    def stem(self, cache: Cache) -> str:
        """Name of its files in the cache, without suffixes."""
        return cache.stem("cubins", self.name, self.key, ".json")


class Promise(Future[Cubin]):
    """A kernel that is being compiled. `result()` raises KernelRejected if the compiler rejected it, CancelledError if it was
    called off. `asked`: how many requests it answers."""

    asked = 0

    @property
    def compiled(self) -> bool:
        return self.done() and not self.cancelled() and self.exception() is None

    @property
    def failed(self) -> bool:
        """Whether it was tried in vain."""
        return self.done() and not self.cancelled() and self.exception() is not None


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.promises: dict[tuple[Path, str], Promise] = {}


_state = _State()


def reset() -> None:
    """Forgets every request of this process, so that each is looked up on disk again."""
    global _state
    _state = _State()


os.register_at_fork(after_in_child=reset)


def request(order: Order) -> Promise:
    """Requests a kernel; returns at once. Equal orders share one result, and a cached kernel needs no worker."""
    cache, key = current(), order.key
    with _state.lock:
        known = _state.promises.get((cache.root, key))
        if known is not None and not (known.cancelled() or known.failed):
            known.asked += 1
            return known
        promise = _state.promises[(cache.root, key)] = Promise()
        promise.asked = 1
    stem = order.stem(cache)
    if cache.holds(f"{stem}{REJECTED}") and (messages := cache.read(f"{stem}{REJECTED}")) is not None:
        promise.set_exception(KernelRejected(order.name, messages.decode(), cache.root / (stem + order.suffix)))
        return promise
    kernel = _read(cache, stem, order)
    if kernel is not None:
        promise.set_result(kernel)
        return promise
    source = cache.write(stem + order.suffix, str(order.job.get("source", "")).encode(), sealed=False)
    began = time.perf_counter()

    def compiled(ask: workers.Ask) -> None:
        if not promise.set_running_or_notify_cancel():
            return
        counters.add("compiler_runs")
        counters.add("kernels_generated")
        try:
            with lease.alone(cache, stem, workers.TIMEOUT_SECONDS):  # other processes may want the same kernel at the same time
                kernel = _read(cache, stem, order)
                promise.set_result(kernel or _kept(cache, stem, order, ask(order.job), source, time.perf_counter() - began))
        except Exception as error:
            promise.set_exception(error)

    workers.pool(order.module).submit(compiled)
    return promise


def call_off(promise: Promise) -> None:
    """Takes back one request. A kernel that nobody waits for, and no worker has begun, is not compiled."""
    with _state.lock:
        promise.asked -= 1
        alone = promise.asked == 0
    if alone:
        promise.cancel()


def _read(cache: Cache, stem: str, order: Order) -> Cubin | None:
    if not cache.holds(f"{stem}.json"):
        return None
    text, binary = cache.read(f"{stem}.json"), cache.read(f"{stem}.cubin")
    if text is None or binary is None:
        return None
    return Cubin(Facts(**json.loads(text)), binary, cache.root / (stem + order.suffix), True)


def _kept(cache: Cache, stem: str, order: Order, answer: Mapping[str, Any], source: Path, waited: float) -> Cubin:
    """Stores the worker's answer in the cache and returns it as a Cubin. Raises KernelRejected."""
    if "error" in answer:
        messages = str(answer.get("trace") or answer["error"])
        if answer.get("rejected"):  # the compiler would reject it again
            cache.write(f"{stem}{REJECTED}", messages.encode())
        raise KernelRejected(order.name, messages, source)
    binary = base64.b64decode(answer["binary"])
    known = {name: answer[name] for name in Facts.__dataclass_fields__ if name in answer}
    facts = Facts(**{"seconds": waited, **known})
    cache.write(f"{stem}.cubin", binary)
    cache.write(f"{stem}.json", json.dumps(asdict(facts)).encode())  # last: its presence implies both files
    return Cubin(facts, binary, source, False)
