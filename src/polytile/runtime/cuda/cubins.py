"""Compiled GPU kernels: asked for by content, compiled once by a worker process, kept in the cache with what is known of
them.

A kernel is two sealed files named by the digest of all it depends on: STEM.cubin, the machine code, and STEM.json, what
loading it takes and what the compiler said of its resources; its source lies beside them for reading.
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
from polytile.runtime.cache import Cache, current
from polytile.runtime.cuda import workers

FORMAT = 1
"""Part of every key; raise it when equal jobs should be compiled anew."""


REJECTED = ".rejected"
"""Suffix of the file with a compiler's messages, where it refused the kernel for its text: it is not asked again."""


class KernelRejected(CompileFailed):
    """The compiler did not accept a generated GPU kernel; `source` is the file, kept for reading."""

    def __init__(self, name: str, messages: str, source: Path) -> None:
        self.name, self.messages, self.source = name, messages, source
        super().__init__(f"kernel {name!r} did not compile.\n  source: {source}\n  messages:\n{messages.rstrip()}")


@dataclass(frozen=True)
class Facts:
    """What loading a cubin takes, and its resources: the kernel's name in it, warps of a block, bytes of dynamic shared
    memory, bytes of memory each block wants besides, registers a thread, bytes a thread spills, and of each descriptor argument
    what codegen/triton/compile.py says."""

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
    """One kernel to compile: `job` is what the worker module's `run` takes, `identity` what else decides the result
    (versions of compilers), besides what the environment tells these at the time; `suffix` is that of the source text, which
    the job has under "source"."""

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
        """Name of its files in the cache, without their suffixes."""
        return cache.stem("cubins", self.name, self.key, ".json")


class Promise(Future[Cubin]):
    """A kernel that is being compiled. `result()` raises KernelRejected where the compiler refused it."""


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
    """Asks for a kernel; returns at once. Equal orders share one result, and what the cache holds needs no worker."""
    cache, key = current(), order.key
    with _state.lock:
        known = _state.promises.get((cache.root, key))
        if known is not None and not (known.done() and known.exception() is not None):
            return known
        promise = _state.promises[(cache.root, key)] = Promise()
    stem = order.stem(cache)
    if cache.holds(f"{stem}{REJECTED}") and (messages := cache.read(f"{stem}{REJECTED}")) is not None:
        promise.set_exception(KernelRejected(order.name, messages.decode(), cache.root / (stem + order.suffix)))
        return promise
    found = _read(cache, stem, order)
    if found is not None:
        promise.set_result(found)
        return promise
    counters.add("compiler_runs")
    counters.add("kernels_generated")
    source = cache.write(stem + order.suffix, str(order.job.get("source", "")).encode(), sealed=False)
    began = time.perf_counter()

    def done(answer: Mapping[str, Any]) -> None:
        try:
            promise.set_result(_kept(cache, stem, order, answer, source, time.perf_counter() - began))
        except Exception as error:
            promise.set_exception(error)

    workers.pool(order.module).submit((order.job, done))
    return promise


def held(order: Order) -> bool:
    """Whether a kernel can be had without compiling."""
    with _state.lock:
        known = _state.promises.get((current().root, order.key))
    if known is not None and known.done():
        return known.exception() is None
    return known is None and current().holds(f"{order.stem(current())}.json")


def _read(cache: Cache, stem: str, order: Order) -> Cubin | None:
    if not cache.holds(f"{stem}.json"):
        return None
    text, binary = cache.read(f"{stem}.json"), cache.read(f"{stem}.cubin")
    if text is None or binary is None:
        return None
    return Cubin(Facts(**json.loads(text)), binary, cache.root / (stem + order.suffix), True)


def _kept(cache: Cache, stem: str, order: Order, answer: Mapping[str, Any], source: Path, waited: float) -> Cubin:
    """The worker's answer as a Cubin, in the cache from now on. Raises KernelRejected."""
    if "error" in answer:
        messages = str(answer.get("trace") or answer["error"])
        if answer.get("rejected"):  # by a compiler that would say the same again
            cache.write(f"{stem}{REJECTED}", messages.encode())
        raise KernelRejected(order.name, messages, source)
    binary = base64.b64decode(answer["binary"])
    known = {name: answer[name] for name in Facts.__dataclass_fields__ if name in answer}
    facts = Facts(**{"seconds": waited, **known})
    cache.write(f"{stem}.cubin", binary)
    cache.write(f"{stem}.json", json.dumps(asdict(facts)).encode())  # last: its presence says that both are there
    return Cubin(facts, binary, source, False)
