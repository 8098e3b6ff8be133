"""A generated Triton kernel as a Candidate: one variant and config, generated anew for the facts of each regime.

A MultiKernel holds candidates without facts. `specialise(facts)` returns a regime's form, which generates the source, lets a
worker process compile it, and loads it. Name, config and hash stay the same: facts are part of the Problem.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import sympy
import torch

from polytile import locks
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.candidates.generator import text_digest
from polytile.candidates.handles import DeviceHandle, MachineCode
from polytile.codegen.function_names import ENTRY, renamed, symbol_of
from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch, TritonKernel
from polytile.counters import counters
from polytile.errors import CompileFailed, IndexOutOfRange, LoweringError, ResourcesExceeded
from polytile.problem import Config, Resources, Scalar, digest
from polytile.runtime.cache import current
from polytile.runtime.cuda import cubins, driver, launch, workers
from polytile.runtime.cuda.device import DeviceFacts
from polytile.runtime.formula import Formula, encode
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts

WORKER = "polytile.codegen.triton.worker"
"""The module that compiles in worker processes."""

COPYING_FROM = 90
"""The capability from which hardware copies blocks of matrices (TMA), and blocks form clusters."""

REMEMBERED = 16
"""For how many sizes a candidate remembers its prediction: each decision asks for it four times or more."""

Judge = Callable[[Mapping[str, int]], Any]


class Kernel(Protocol):
    """What is computed: its tensor arguments and the symbols of its integer arguments, in the order of a call, and its text."""

    @property
    def tensors(self) -> tuple[TensorArg, ...]: ...

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Work:
    """What all candidates of one kernel share. `index` is the CUDA device's number; None runs the kernels under Triton's
    interpreter. `make(config, facts)` generates; it raises LoweringError where some operation has no Triton form."""

    kernel: Kernel
    name: str
    device: DeviceFacts
    index: int | None
    make: Callable[[Config, Facts], TritonKernel]
    plain: Callable[[Config, Facts], TritonKernel] | None = None
    """The same for GPUs on which no launch starts before the one ahead of it has ended; None: as `make`."""

    @cached_property
    def recipe(self) -> str:
        """Everything that generated text depends on, except config and facts."""
        return digest(f"triton {self.device.target} {self.device.sms} {self.index is None} {self.kernel.text}")

    def order(self, one: Launch, symbol: str, target: int | str | None = None) -> cubins.Order:
        """What a worker process is asked for: the launch with its function called `symbol`. `target`: another architecture than
        the device's."""
        return cubins.Order(self.name, WORKER, job_of(one, target or self.device.target, symbol), triton_version())

    def parameters(self, one: Launch, tensors: Mapping[str, int], symbols: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        """What a launch passes for its arguments. A descriptor is followed by the tensor's sizes and strides, which no kernel
        reads."""
        for argument in one.arguments:
            yield parameter(argument, tensors, symbols)
            if argument.kind is Kind.DESCRIPTOR:
                yield from [(launch.NOTHING, 0)] * (2 * len(one.descriptors[argument.index].shape))

    def memory(self, facts: cubins.Facts) -> tuple[int, ...]:
        """Bytes of device memory that each block needs in addition. Each is passed in a parameter after all others."""
        return facts.global_scratch, facts.profile_scratch


class TritonCandidate(Candidate):
    """One config of a kernel. `valid`, `cost` and `terms`, which says what `cost` is made of, are functions of the concrete
    sizes."""

    origin = "triton"
    hard_limits = True  # a persistent kernel cuts off a row that is longer than its block
    may_spill = True  # a row on chip may be worth some traffic to the cache

    def __init__(
        self, name: str, config: Config, work: Work, valid: Judge, cost: Judge, terms: Judge = lambda sizes: {}
    ) -> None:
        self.name, self.config, self.work, self.recipe = name, config, work, work.recipe
        self._valid, self._terms = valid, terms
        self._cost = functools.lru_cache(REMEMBERED)(lambda sizes: float(cost(dict(sizes))))
        self._lock = locks.lock()
        self._specialised: dict[Facts, Specialised] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.work.name}: {self.name})"

    @cached_property
    def source_hash(self) -> str:
        """Digest of the device and of the text generated under `probes`."""
        text = text_digest(f"{self.recipe} {self.config}", functools.partial(self.work.make, self.config), self.probes)
        return digest(f"triton {self.work.device.target} {text}")

    @property
    def probes(self) -> tuple[Facts, ...]:
        """Facts whose texts stand for all: nothing is known of a call, and as much as may be."""
        symbols = frozenset(symbol.name for symbol in self.work.kernel.symbols)
        return Facts(wide=True), Facts(symbols, frozenset(tensor.name for tensor in self.work.kernel.tensors))

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return bool(self._valid(sizes))

    def cost(self, sizes: Mapping[str, int]) -> float:
        return self._cost(tuple(sizes.items()))

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        return dict(self._terms(sizes))

    def right_where(self, facts: Facts) -> bool:
        """Whether it is right at all sizes at which these facts hold."""
        return not self.hard_limits

    def specialise(self, facts: Facts) -> Specialised:
        """The candidate for regimes with these facts; the same object for the same facts."""
        with self._lock:
            if facts not in self._specialised:
                self._specialised[facts] = self.form(self, facts)
            return self._specialised[facts]

    @property
    def form(self) -> type[Specialised]:
        """The class of its forms for regimes."""
        return Specialised

    def entry(self) -> NativeEntry | PythonEntry:
        """The form without any facts, which is right everywhere."""
        return self.specialise(Facts(wide=True)).entry()


class Specialised(Candidate):
    """A candidate's form for regimes with known facts."""

    origin = TritonCandidate.origin

    def __init__(self, base: TritonCandidate, facts: Facts) -> None:
        self.base, self._facts = base, facts
        self.name, self.config, self.recipe, self.hard_limits = base.name, base.config, base.recipe, base.hard_limits
        self._lock = locks.rlock()
        self._promises: tuple[cubins.Promise, ...] | None = None
        self._entry: NativeEntry | PythonEntry | None = None

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return self.base.traits

    def __repr__(self) -> str:
        return f"Specialised({self.base.work.name}: {self.name})"

    @cached_property
    def source_hash(self) -> str:
        return self.base.source_hash

    @cached_property
    def kernel(self) -> TritonKernel:
        """The generated kernel. Raises LoweringError where some operation has no Triton form."""
        return self.base.work.make(self.config, self.facts)

    @property
    def source(self) -> str:
        return "\n".join(launch.source for launch in self.kernel.launches)

    @property
    def source_path(self) -> str:
        """Where the source can be read once it is compiled."""
        return ";".join(str(cubin.source) for cubin in self._compiled())

    @property
    def compile_seconds(self) -> float | None:
        done = self._compiled()
        return sum(cubin.facts.seconds for cubin in done) if done else None

    @property
    def resources(self) -> Resources:
        """The most that any of its launches takes; unknown before they are compiled."""
        return _resources(self._compiled())

    @property
    def excess(self) -> str:
        """What the compiled kernel needs beyond what the device has, as a sentence; "" if nothing, or not compiled."""
        return self._excess(self.resources, self.base.work.device)

    def _excess(self, taken: Resources, device: DeviceFacts) -> str:
        limit = device.shared_per_block
        if taken.shared_bytes is not None and taken.shared_bytes > limit:
            return f"it needs {taken.shared_bytes} bytes of shared memory, a block of this device may have {limit}"
        if taken.spilled_bytes and not self.base.may_spill:
            return f"its threads need more than {taken.registers} registers and spill {taken.spilled_bytes} bytes each"
        return ""

    def _compiled(self) -> list[cubins.Cubin]:
        return [p.result() for p in self._promises or () if p.compiled]

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self.base.valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return self.base.cost(sizes)

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        return self.base.terms(sizes)

    def prepare(self) -> None:
        if self.base.work.index is not None:
            self._asked()

    def _asked(self) -> tuple[cubins.Promise, ...]:
        with self._lock:
            if self._promises is None:
                self._promises = self._requested(self.kernel)
            return self._promises

    def call_off(self) -> None:
        if self._lock.acquire(blocking=False):  # else another thread waits for the kernel
            promises, self._promises = self._promises or (), None
            self._lock.release()
            for promise in promises:
                cubins.call_off(promise)

    def _requested(self, kernel: TritonKernel, target: int | str | None = None) -> tuple[cubins.Promise, ...]:
        work, several = self.base.work, len(kernel.launches) > 1
        symbols = [symbol_of(work.name, self.name, k if several else None) for k in range(len(kernel.launches))]
        orders = [work.order(one, symbol, target) for one, symbol in zip(kernel.launches, symbols, strict=True)]
        return tuple(map(cubins.request, orders))

    def ready(self) -> bool:
        """Whether the kernel is compiled; starts nothing."""
        if self.base.work.index is None:
            return True
        promises = self._promises
        return promises is not None and all(p.compiled for p in promises)

    def when_ready(self, action: Callable[[], None]) -> None:
        promises = self._promises or ()
        for promise in promises:
            promise.add_done_callback(lambda _: action() if all(p.done() for p in promises) else None)
        if not promises:
            action()

    def failed(self) -> bool:
        """Whether compiling it has failed, or its code needs more than the device has."""
        return any(p.failed for p in self._promises or ()) or bool(self.excess)

    def entry(self) -> NativeEntry | PythonEntry:
        self.prepare()
        with self._lock:
            if self._entry is None:
                self._entry = self._interpreted() if self.base.work.index is None else self._loaded()
            return self._entry

    def _interpreted(self) -> PythonEntry:
        from polytile.codegen.triton import interpret

        tensors = [t.name for t in self.base.work.kernel.tensors]
        symbols = [s.name for s in self.base.work.kernel.symbols]

        def call(*args: Any) -> None:
            values = dict(zip(symbols, args[len(tensors) :], strict=True))
            code = interpret.run(self.kernel, dict(zip(tensors, args, strict=False)), values)
            if code:
                raise IndexOutOfRange(
                    f"kernel {self.base.work.name!r}: run-time check {code} failed: an index is out of range."
                )

        return PythonEntry(call)

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs it."""
        return self.base.work.index is None

    def handle(self) -> DeviceHandle | None:
        """Waits for the cubins; None where the kernel is interpreted."""
        if self.interpreted:
            return None
        self.prepare()
        return self._described()

    def prepare_for(self, device: DeviceFacts) -> tuple[cubins.Promise, ...]:
        """Starts compiling for NVIDIA GPUs of another architecture; nothing where the kernel uses what they lack."""
        kernel = self._plain
        uses_later = any(one.descriptors or one.cluster > 1 for one in kernel.launches)
        if uses_later and device.capability < COPYING_FROM:
            return ()
        return self._requested(kernel, device.target)

    def portable_to(self, device: DeviceFacts) -> DeviceHandle | None:
        """The form for such GPUs; waits until it is compiled. None where they cannot run it."""
        try:
            promises = self.prepare_for(device)
            if not promises or self._excess(_resources([promise.result() for promise in promises]), device):
                return None
        except (CompileFailed, LoweringError):
            return None
        return self._described_as(self._plain, promises)

    @cached_property
    def _plain(self) -> TritonKernel:
        return (self.base.work.plain or self.base.work.make)(self.config, self.facts)

    @property
    def right_anywhere(self) -> bool:
        return self.base.right_where(self.facts)

    @property
    def is_portable(self) -> bool:
        return not self.interpreted

    def portable(self) -> DeviceHandle | None:
        return self.handle()

    def _described(self) -> DeviceHandle:
        """Waits for the cubins. Raises ResourcesExceeded if they need more than a multiprocessor has."""
        work, promises = self.base.work, self._awaited()
        if self.excess:
            raise ResourcesExceeded(f"kernel {work.name!r}, candidate {self.name!r}: {self.excess}; another config is used.")
        return self._described_as(self.kernel, promises)

    def _awaited(self) -> tuple[cubins.Promise, ...]:
        """The compiled kernels. What another thread has called off meanwhile is asked for again."""
        with counters.stage("compiling"):
            while True:
                promises = self._asked()
                with contextlib.suppress(CancelledError):
                    for promise in promises:
                        promise.result()
                    return promises

    def _described_as(self, kernel: TritonKernel, promises: Sequence[cubins.Promise]) -> DeviceHandle:
        work = self.base.work
        positions = {symbol: position for position, symbol in enumerate(work.kernel.symbols)}
        places = {s.name: position for s, position in positions.items()}
        tensors = {t.name: position for position, t in enumerate(work.kernel.tensors)}
        scratch = [launch.Scratch(_bytes(s.dtype, s.size, positions), s.zeroed) for s in kernel.scratch]
        launches = []
        for one, promise in zip(kernel.launches, promises, strict=True):
            cubin = promise.result()
            facts = cubin.facts
            parameters = list(work.parameters(one, tensors, places))
            for each in work.memory(facts):
                parameters.append((launch.SCRATCH, len(scratch)) if each else (launch.NOTHING, 0))
                if each:
                    scratch.append(launch.Scratch(_bytes(torch.uint8, each * sympy.prod(one.grid), positions)))
            x, y, z = (encode(e, positions) for e in one.grid)
            own = tuple(
                _descriptor(each, layout, tensors, positions)
                for each, layout in zip(one.descriptors, facts.descriptors, strict=True)
            )
            code, threads = MachineCode(cubin.binary, facts.symbol), work.device.warp * facts.num_warps
            how = threads, facts.shared, tuple(parameters), (x, y, z), one.overlaps, own, one.cluster
            launches.append(launch.Launch(code, *how))
        return DeviceHandle(tuple(launches), tuple(scratch))

    def _loaded(self) -> NativeEntry:
        """Waits for the cubins, loads them on the device and makes the plan of their launches."""
        work, index, described = self.base.work, self.base.work.index, self._described()
        assert index is not None
        launches = []
        for one in described.launches:
            code = one.function
            function = driver.load(index, code.image, code.symbol, one.threads, one.shared, one.cluster)
            launches.append(one.with_function(function))
        return NativeEntry.of_plan(launch.Plan(work.name, index, launches, described.scratch))


def _resources(done: Sequence[cubins.Cubin]) -> Resources:
    """The maximum over these; unknown if there are none."""
    if not done:
        return Resources()
    facts = [cubin.facts for cubin in done]
    return Resources(max(f.registers for f in facts), max(f.spills for f in facts), max(f.shared for f in facts))


def _bytes(dtype: torch.dtype, size: sympy.Expr, positions: Mapping[sympy.Symbol, int]) -> Formula:
    """Bytes of a scratch buffer of `size` elements."""
    return encode(sympy.sympify(size) * dtype.itemsize, positions)


def parameter(argument: Argument, tensors: Mapping[str, int], symbols: Mapping[str, int]) -> tuple[int, int]:
    """What a launch passes for an argument: (kind, index)."""
    match argument.kind:
        case Kind.TENSOR:
            return launch.TENSOR, tensors[argument.name]
        case Kind.SYMBOL:
            return launch.INT64 if argument.type == "i64" else launch.INT32, symbols[argument.name]
        case Kind.SCRATCH:
            return launch.SCRATCH, argument.index
        case Kind.ERROR:
            return launch.ERROR_WORD, 0
        case Kind.DESCRIPTOR:
            return launch.DESCRIPTOR, argument.index


def _descriptor(
    what: Descriptor, layout: Sequence[int], tensors: Mapping[str, int], positions: Mapping[sympy.Symbol, int]
) -> launch.Descriptor:
    """The launch's form of a descriptor. `layout` is the compiler's report of how elements are copied (compile.py)."""
    swizzle, size, kind, *block = layout
    shape, strides = (tuple(encode(e, positions) for e in each) for each in (what.shape, what.strides))
    return launch.Descriptor(tensors[what.tensor], kind, size, swizzle, tuple(block), shape, strides)


def job_of(one: Launch, target: int | str, symbol: str = ENTRY) -> dict[str, Any]:
    """A launch as plain data for a worker process, which compiles it for `target` (DeviceFacts.target) as a function called
    `symbol`."""
    return {
        "source": renamed(one.source, symbol),
        "symbol": symbol,
        "arguments": [[a.kind.value, a.name, a.type, a.index] for a in one.arguments],
        "constants": [list(constant) for constant in one.constants],
        "divisible": [list(known) for known in one.divisible],
        "num_warps": one.num_warps,
        "num_stages": one.num_stages,
        "arch": target,
        **({"own": [list(said) for said in one.own]} if one.own else {}),
    }


TRITON_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
"""Names of packages that contain Triton: PyTorch's builds have names of their own."""


@functools.cache
def triton_version() -> str:
    """The version of the first of TRITON_PACKAGES that is installed, "none" where none is."""
    for package in TRITON_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "none"


def start_workers() -> None:
    """Starts the processes that compile, so that they are ready for the first kernel. If the cache directory has kernels
    already, the first kernel that it lacks starts them."""
    launch.prepare()
    if not current().holds("cubins"):
        workers.pool(WORKER).start()
