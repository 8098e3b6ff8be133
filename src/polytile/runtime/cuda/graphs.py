"""CUDA graphs of programs in C: launches are recorded and replayed together (graphs.c explains how).

    graphs = ProgramGraphs(program, index)    # from now on, the program's calls on device `index` use graphs
    graphs.numbers()                          # their statistics

Launches that occurred several times are captured within a call; the background thread makes a graph of the capture. A graph
owns no memory.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from polytile.counters import counters
from polytile.errors import CacheError, CompileFailed, CompilerMissing, DeviceError
from polytile.runtime import background, native
from polytile.runtime import compile as compiler
from polytile.runtime.background import Disturbance
from polytile.runtime.cuda import capturing, driver, launch, products
from polytile.runtime.symbols import addresses

log = logging.getLogger("polytile")

PARTS = ("graph_launches.c", "graph_steps.c", "graph_captures.c", "graph_calls.c", "graph_stretches.c", "graphs.c")
SOURCES = tuple(Path(__file__).with_name(name) for name in ("graphs.h", *PARTS))
"""The recorder is compiled as one unit."""

MOST_NODES = 8192
"""Limit on the nodes of all graphs of a process; the least recently used graphs are evicted first. A kernel node takes
about 5 KiB of driver memory."""

_DRIVER_FUNCTIONS = (
    "cuLaunchKernelEx", "cuCtxGetCurrent", "cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuStreamGetCaptureInfo_v2", "cuGraphGetNodes", "cuGraphNodeGetDependencies", "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeGetAttribute", "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphInstantiateWithFlags", "cuGraphUpload", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
)  # fmt: skip
_PARAMETERS = "cuFuncGetParamInfo"
"""Reports the layout of a kernel's parameters. Drivers before CUDA 12.4 lack it."""
_EDGES = "cuStreamGetCaptureInfo_v3", "cuGraphNodeGetDependencies_v2"
"""Report the edges of a graph too, which tell of kernels that may overlap; the functions without them refuse to report such nodes
(CUDA_ERROR_LOSSY_QUERY). Drivers before CUDA 12.3 lack them, and such edges."""
_NON_BLOCKING = 1


@dataclass(frozen=True)
class Numbers:
    """Statistics of one program's graphs. A stretch is the launches of a call between two library calls that need
    Python.

        replayed, updated            stretches replayed unchanged, and after some nodes were given new parameters
        followed                     the replayed ones that were not recorded, as the calls of kernels were those of the graph
        nodes_updated                total number of such nodes
        direct                       stretches launched one by one because no graph fitted, or because that took the
                                     host no longer
        busy, short                  the same because another thread was using graphs; because there were too few
                                     launches, or many stretches before
        made, evicted                graphs
        refused                      graphs that the driver failed to make or update; `error` is its last result
        calls, rested                calls; those that recorded nothing because graphs had not served many calls before
        to_end, to_python, to_library, to_memory, to_device
                                     stretches by what ended them: the program; something that Python calls; a library's or
                                     kernel's launches that cannot be recorded; memory that waited for launches; that the
                                     device was to begin
        graphs, nodes                current, of this program
        all_graphs, all_nodes        current, of all programs
        direct_ns, launch_ns         host time of a call's stretches one by one, and as the graphs that ran last
        node_ns, call_ns, written_ns  host time to update a kernel's node, a library call whose launches are queried,
                                      and one whose launches are known, in any program
        learned, proved, hopeless    library calls whose launches are known; also at other addresses; cannot be known
    """

    COUNTED: ClassVar = (
        "replayed", "followed", "updated", "direct", "made", "evicted", "refused", "nodes_updated", "busy", "short", "calls",
        "rested", "to_end", "to_python", "to_library", "to_memory", "to_device",
    )  # fmt: skip
    """The numbers that only grow, in C's order; the others are a state."""

    replayed: int
    followed: int
    updated: int
    direct: int
    made: int
    evicted: int
    refused: int
    nodes_updated: int
    busy: int
    short: int
    calls: int
    rested: int
    to_end: int
    to_python: int
    to_library: int
    to_memory: int
    to_device: int
    error: int
    graphs: int
    nodes: int
    all_graphs: int
    all_nodes: int
    direct_ns: int
    launch_ns: int
    node_ns: int
    call_ns: int
    written_ns: int
    learned: int
    proved: int
    hopeless: int

    def __str__(self) -> str:
        served = (
            f"{self.replayed} stretches of launches replayed ({self.followed} unrecorded), {self.updated} updated "
            f"({self.nodes_updated} nodes), "
        )
        served += f"{self.direct + self.busy + self.short} launched one by one"
        ended = {"the program's end": self.to_end, "calls of Python": self.to_python, "libraries": self.to_library,
                 "memory": self.to_memory, "an early beginning": self.to_device}  # fmt: skip
        reasons = ", ".join(f"{what} {count}" for what, count in ended.items() if count)
        cut = f"; stretches ended by {reasons}" if reasons else ""
        graphs = f"{self.graphs} graph(s) of {self.nodes} nodes; {self.made} made, {self.evicted} evicted"
        rest = f"; {self.rested} of {self.calls} calls recorded nothing, as graphs did not pay" if self.rested else ""
        refused = f"; {self.refused} refused: {driver.describe(self.error)}" if self.refused else ""
        return f"{served}{cut}; {graphs}{rest}{refused}"


class ProgramGraphs:
    """The graphs of a program in C, for the program's lifetime. Raises DeviceError, with the reason, if graphs cannot
    be used."""

    def __init__(self, program: Any, index: int) -> None:
        self.index = index
        _recorder()
        self._program = weakref.ref(program)
        self._address = program.record_launches(_Wanted(weakref.ref(self)))

    def numbers(self) -> Numbers | None:
        """The program's statistics; None once the program is deleted."""
        program = self._program()
        if program is None:
            return None
        values = (ctypes.c_int64 * len(fields(Numbers)))()
        _function("polytile_graphs_numbers", ctypes.c_void_p, ctypes.c_void_p)(self._address, values)
        return Numbers(*values)

    def __str__(self) -> str:
        return str(self.numbers() or "the program is gone")

    def make(self) -> None:
        """Makes the graphs of what calls have captured."""
        program, before = self._program(), self.numbers()
        if program is None or before is None:
            return
        with driver.current(self.index) as cuda:
            _function("polytile_graphs_make", ctypes.c_void_p, ctypes.c_void_p)(
                self._address, _stream(self.index, cuda)
            )
        after = self.numbers()
        assert after is not None
        counters.add("cuda_graphs", after.made - before.made)
        if after.refused > before.refused:
            log.info("A CUDA graph could not be made: %s", driver.describe(after.error))


@dataclass(frozen=True)
class _Wanted:
    """Called by C to request a graph of launches that depend on the entries."""

    graphs: weakref.ref[ProgramGraphs]

    def __call__(self, entries: Sequence[Any]) -> None:
        graphs = self.graphs()
        if graphs is not None:
            background.submit(_Make(graphs, entries))


@dataclass(frozen=True, eq=False)
class _Make:
    """The job of making a program's graphs."""

    graphs: ProgramGraphs
    entries: Sequence[Any]
    """Kept alive until then, since the recorded launches depend on them."""
    disturbs: Disturbance = Disturbance.NONE

    def urgency(self) -> tuple[float, ...]:
        return 1.0, 0.0

    def run(self) -> None:
        self.graphs.make()


def _function(name: str, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(None, *arguments)(loaded().address(name))


def prepare() -> compiler.Compilation:
    """Starts compiling the recorder, or finds it in the cache; returns at once."""
    return compiler.compile_c("cuda_graphs", "\n".join(path.read_text() for path in SOURCES))


@functools.cache
def loaded() -> compiler.Library:
    """The recorder's library in this process. It has state: a second copy, from another cache directory, would have none."""
    return prepare().result()


@functools.cache
def _recorder() -> int:
    """Address of the recorder. Registers it with launches, products and programs."""
    try:
        library = loaded()
        cuda = driver.library()
        functions = [*addresses(cuda, _DRIVER_FUNCTIONS), *_if_any(cuda, _PARAMETERS), *_if_any(cuda, *_EDGES)]
        functions += [*capturing.callbacks(), *launch.torch_functions(), *launch.new_handle()]
    except (CompilerMissing, CompileFailed, CacheError) as error:
        raise DeviceError(f"launches cannot be recorded for CUDA graphs: {error}") from error
    except AttributeError as error:
        raise DeviceError(
            f"the driver {driver.release()} is too old for CUDA graphs that can be updated ({error})."
        ) from error
    module = native.module()
    if module is None:
        raise DeviceError("launches cannot be recorded for CUDA graphs: there is no C launcher.")
    make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        library.address("polytile_graphs_recorder")
    )
    held = (ctypes.c_void_p * len(functions))(*functions)
    recorder = make(ctypes.addressof(held), MOST_NODES)
    module.configure_graphs(recorder, *launch.record(recorder), *products.record(recorder))
    os.register_at_fork(after_in_child=_function("polytile_graphs_forked"))
    return int(recorder)


def _if_any(found: ctypes.CDLL, *names: str) -> list[int]:
    """Addresses of functions that come together; zeros where the driver lacks them."""
    return addresses(found, names) if all(hasattr(found, name) for name in names) else [0] * len(names)


@functools.cache
def _stream(index: int, found: Any) -> int:
    """The stream on which graphs are recorded. torch hands it to nobody."""
    stream = ctypes.c_void_p()
    code = found.cuStreamCreate(ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
    if code:
        raise DeviceError(f"the CUDA driver refused to make a stream: {driver.describe(code)}.")
    return stream.value or 0


def reset() -> None:
    """Forgets the recorder; the next program configures a new one."""
    for known in (loaded, _recorder, _stream):
        known.cache_clear()
