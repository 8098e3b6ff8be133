"""What can run a Problem: the Candidate protocol and the two kinds of entry that a ready candidate offers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from polytile.problem import Config
from polytile.runtime.cuda.launch import Descriptor
from polytile.runtime.formula import Formula
from polytile.schedule.facts import Facts


@dataclass(frozen=True)
class NativeEntry:
    """A loaded kernel: `long kernel(void* const* ptrs, const long* sizes, long threads)` at `address`.

    `keep` holds whatever must stay alive while the address is in use (the shared library). Of a GPU kernel, `threads` is
    the address of the plan by which the launcher at `address` launches it, and `keep` the plan.
    """

    address: int
    threads: int = 1
    keep: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class PythonEntry:
    """A Python callable that takes the kernel's own flat arguments: tensors first, then integers. Returns None.

    `recordable`: all it does, once it has run for these sizes, is to start work on a GPU's current stream, so that a CUDA
    graph can record it.
    """

    call: Callable[..., None]
    recordable: bool = False


Entry = NativeEntry | PythonEntry


def settle(entry: Entry) -> None:
    """Waits until what `entry` has launched on a GPU is done. Raises IndexError if a run-time check failed there."""
    wait = getattr(getattr(entry, "keep", None), "settle", None)
    code = wait() if wait is not None else 0
    if code:
        raise IndexError(f"run-time check {code} of the kernel failed: an index is out of range.")


def specialised(candidate: Candidate, facts: Facts) -> Candidate:
    """The candidate for a regime with these facts: what its `specialise` gives, itself where it has none. Name, config and
    source hash stay the same."""
    specialise = getattr(candidate, "specialise", None)
    return candidate if specialise is None else specialise(facts)


def settled(candidate: Candidate, sizes: Mapping[str, int]) -> Candidate:
    """The candidate for a regime that was decided by what it took at these sizes: what its `settle` gives, itself where it has
    none. Name, config and source hash stay the same."""
    settle = getattr(candidate, "settle", None)
    return candidate if settle is None else settle(sizes)


def ready(candidate: Candidate) -> bool:
    """Whether `entry()` returns at once; a candidate that does not say is taken for ready."""
    asked = getattr(candidate, "ready", None)
    return asked is None or bool(asked())


def failed(candidate: Candidate) -> bool:
    """Whether making the candidate is known to have failed."""
    asked = getattr(candidate, "failed", None)
    return asked is not None and bool(asked())


@dataclass(frozen=True)
class NativeHandle:
    """How another process gets a NativeEntry: the C function `symbol` of the shared object at `path`.

    With `bind`, (function, number, another path, symbol there), the kernel is in two objects: `function` of the first is to
    be called with the number and the address of the symbol in the other.
    """

    path: str
    symbol: str
    threads: int = 1
    bind: tuple[str, int, str, str] | None = None


@dataclass(frozen=True)
class PythonHandle:
    """How another process gets a PythonEntry: the attribute `name` ("f", "Kernel.run") of `module`, which is the name of
    a module or the path of a .py file.

    Without `arguments` the attribute is the callable itself; with them (values that JSON can hold) it is called with
    them and returns the callable.
    """

    module: str
    name: str
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class DeviceLaunch:
    """One launch of the kernel `symbol` of the machine code `image`: threads of a block, bytes of dynamic shared memory, (kind,
    index) of each parameter (runtime/cuda/launch.py), the grid's dimensions as formulas of the call's integers, whether it may
    overlap with the kernel before, its descriptors, and how many programs are one cluster."""

    image: bytes = field(repr=False)
    symbol: str
    threads: int
    shared: int
    parameters: tuple[tuple[int, int], ...]
    grid: tuple[Formula, Formula, Formula]
    overlaps: bool = False
    descriptors: tuple[Descriptor, ...] = ()
    cluster: int = 1


@dataclass(frozen=True)
class DeviceHandle:
    """How another process runs a kernel on a GPU: its launches, and the scratch buffers that they want, each as a formula of
    its bytes and whether it has to be zero."""

    launches: tuple[DeviceLaunch, ...]
    scratch: tuple[tuple[Formula, bool], ...] = ()


Handle = NativeHandle | PythonHandle | DeviceHandle


def handle_of_function(function: Callable[..., Any]) -> PythonHandle | None:
    """The handle of a function or class attribute that a module holds under its own name; None for lambdas, closures
    and whatever else another process could not find again."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    held: Any = sys.modules.get(module or "")
    for part in name.split("."):
        held = getattr(held, part, None)
    if held is not function:
        return None
    if module != "__main__":
        return PythonHandle(str(module), name)
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        return None
    return PythonHandle(path, name) if path and path.endswith(".py") else None


READY_MADE = ("library", "padding", "decomposed", "cublaslt")
"""Origins of candidates for which nothing is generated or compiled: calls of libraries."""


class Candidate(Protocol):
    """Something that can run a Problem. Candidates of a MultiKernel stand in canonical order: of equals that were predicted alike
    the first is chosen.

    What a candidate may have besides, and what is assumed of one that has it not:

    handle() → Handle | None     how another process gets the kernel (tuning/isolation); it raises what `entry` raises and runs
                                 nothing of the kernel. None, or not there: the first run is in this process
    specialise(facts)            the form for regimes with these facts, of the same name, config and source hash; itself
    settle(sizes)                the form for a regime that was decided by what it took at these sizes; itself
    made()                       its forms compiled so far, each with the `facts` that it needs; itself alone
    ready(), failed()            whether `entry` returns at once; whether making it has failed; yes, and no
    hard_limits: bool            at sizes that are not `valid` it would do harm, so it must be valid all over a regime; False
    steady: bool                 it runs the same code at sizes close by; True
    recipe: str                  equal for candidates of one source, and known before that is generated; `source_hash`
    traits: Iterable             what it has in common with its near copies; nothing
    interpreted: bool            none of its code is run by the processor itself; False
    of_main: bool                the main script defines it, which another process could only import by running it; False
    source_path: str             where its source can be read; origin and source hash are shown
    resources, compile_seconds   what its compiler reports (problem.Resources; seconds); unknown
    operators: Iterable[str]     the library's operators that it calls in place of a loop, for the counters; none
    told(sizes) → dict           what it is at these sizes, for the record; nothing
    """

    @property
    def name(self) -> str:
        """Short, stable, unique within its MultiKernel: "persistent t2", "gemm 6x64 t1", "aten"."""
        ...

    @property
    def origin(self) -> str:
        """The source it comes from: "cpp", "library", ..."""
        ...

    @property
    def config(self) -> Config: ...

    @property
    def source_hash(self) -> str: ...

    def valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether it can run at these concrete sizes."""
        ...

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Analytical prior: predicted seconds of one call."""
        ...

    def prepare(self) -> None:
        """Starts making it in the background; returns at once; may be called many times."""
        ...

    def entry(self) -> Entry:
        """The runnable form; waits until it is made. Raises CompileFailed or CompilerMissing."""
        ...
