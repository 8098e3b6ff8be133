"""The worker's own program: runs one kernel at a time on memory that it shares with the process that started it.

Started as a script, with the number of its socket, and with nothing but the standard library, so that it is there in 15
ms; torch is imported if Python kernels are to come. Requests and answers are JSON, one a line; several requests may be sent
at once. It may die of any request: worker.py sees that, and starts another.

    {"do": "open", "preload": [paths], "bytes": most private memory, "torch": whether to import it,
     "device": [CUDA driver's library, number] | null}
    {"do": "map", "bytes": n}                                         with the file descriptor of the memory
    {"do": "unmap"}
    {"do": "load", "path": sys.path, "module", "name", "arguments"}
    {"do": "native", "path", "symbol", "threads", "bind", "pointers": [offset | null], "integers",
     "repeats", "seconds"}
    {"do": "python", the fields of load, "threads", "blocks": [{"offset", "bytes", "device"}],
     "tensors": [{"block", "offset", "dtype", "shape", "stride", "device"} | null], "random": offset, "integers",
     "repeats", "seconds"}

    {"do": "place" | "launch" | "clear", ...}                         on a GPU: device.py

The answer to "native" and "python" is {"code", "seconds"}; to any of them {"error", "message"} if a Python error was
raised. Should the process that asked be gone, the limits on processor and clock that each kernel is given end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import math
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

MARGIN = 2.0
"""Seconds beyond the limit of a request after which the kernel is ended from here; the asking process acts before."""

PATIENCE = 6.0
"""How many times the limit a kernel may take by the clock if it hardly uses the processor."""

POPULATED = mmap.MAP_SHARED | mmap.MAP_POPULATE
"""Memory is mapped with all its pages at once: touching them one by one takes ten times as long."""

Kernel = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_long), ctypes.c_long)


class Child:
    """The worker's state between requests: the shared memory, and the loaded libraries."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.memory: mmap.mmap | None = None
        self.address = 0
        self.loaded: dict[str, ctypes.CDLL] = {}
        self.callables: dict[str, Any] = {}
        self.device: Any = None

    def serve(self) -> None:
        """Answers requests until the other end is closed."""
        waiting = b""
        descriptors: list[int] = []
        while True:
            data, received, _, _ = socket.recv_fds(self.connection, 1 << 16, 4)
            descriptors += received
            if not data:
                return
            waiting += data
            while b"\n" in waiting:
                line, _, waiting = waiting.partition(b"\n")
                answer = self.answer(json.loads(line), descriptors)
                self.connection.sendall(json.dumps(answer).encode() + b"\n")

    def answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """The answer to one request: the method of that name does the work."""
        try:
            if request["do"] == "map":
                request["descriptor"] = descriptors.pop()
            if "seconds" in request:
                _limit(request["seconds"], request["threads"])
            work: Callable[[dict[str, Any]], dict[str, Any] | None] = getattr(self, request["do"])
            return work(request) or {}
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def open(self, request: dict[str, Any]) -> None:
        """Loads the libraries that kernels expect to find in their process, and limits the memory."""
        for path in request["preload"]:
            with contextlib.suppress(OSError):  # a kernel that needs it fails to load, and says so
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        if request["torch"]:
            importlib.import_module("torch")
        if request["device"]:
            self.device = _sibling("device").Device(*request["device"])
        if request["bytes"]:
            resource.setrlimit(resource.RLIMIT_DATA, (request["bytes"], resource.RLIM_INFINITY))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if the system must end a process for want of memory, then this one

    def map(self, request: dict[str, Any]) -> None:
        self.memory = mmap.mmap(request["descriptor"], request["bytes"], POPULATED)
        os.close(request["descriptor"])
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def unmap(self, request: dict[str, Any]) -> None:
        """Releases the memory; the system gets it back once no tensor uses it."""
        self.memory = None

    def load(self, request: dict[str, Any]) -> None:
        """Finds the Python callable that a request means."""
        key = _key(request)
        if key not in self.callables:
            self.callables[key] = _found(request)

    def native(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["bind"]:
            function, number, other, symbol = request["bind"]
            bind = ctypes.CFUNCTYPE(None, ctypes.c_long, ctypes.c_void_p)(self.address_of(request["path"], function))
            bind(number, self.address_of(other, symbol))
        pointers = [0 if offset is None else self.address + offset for offset in request["pointers"]]
        integers = request["integers"]
        bound = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_long * len(integers))(*integers)
        kernel, threads = Kernel(self.address_of(request["path"], request["symbol"])), request["threads"]
        code, begin = 0, time.perf_counter()
        for _ in range(request["repeats"]):
            code = code or int(kernel(*bound, threads))
        return {"code": code, "seconds": time.perf_counter() - begin}

    def address_of(self, path: str, symbol: str) -> int:
        """Address of a function in a shared object, which stays loaded."""
        if path not in self.loaded:
            self.loaded[path] = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        return ctypes.cast(getattr(self.loaded[path], symbol), ctypes.c_void_p).value or 0

    def python(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        assert self.memory is not None
        shared = torch.frombuffer(self.memory, dtype=torch.uint8)
        random = shared[request["random"] :][: torch.get_rng_state().numel()]
        torch.set_rng_state(random.clone())
        blocks = [_Block(torch, shared, block) for block in request["blocks"]]
        tensors = [None if t is None else _tensor(torch, blocks, t) for t in request["tensors"]]
        kernel = self.callables[_key(request)]
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(request["repeats"]):
                kernel(*tensors, *request["integers"])
            for block in blocks:
                block.finish()
            return {"code": 0, "seconds": time.perf_counter() - begin}

    def place(self, request: dict[str, Any]) -> None:
        self.device.place(request["blocks"], self.address)

    def launch(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.device.launch(request, self.address)
        return answer

    def clear(self, request: dict[str, Any]) -> None:
        self.device.clear()


class _Block:
    """A run of the shared memory, copied to the device on which the kernel wants it."""

    def __init__(self, torch: Any, shared: Any, described: dict[str, Any]) -> None:
        device = torch.device(described["device"])
        self.host = shared[described["offset"] :][: described["bytes"]]
        self.there = self.host if device.type == "cpu" else self.host.to(device)

    def finish(self) -> None:
        """Brings what was written on another device back; waits for the device, whose errors show here."""
        if self.there is not self.host:
            self.host.copy_(self.there)


def _tensor(torch: Any, blocks: list[_Block], described: dict[str, Any]) -> Any:
    dtype = getattr(torch, described["dtype"])
    if described["block"] is None:  # no elements
        return torch.empty(described["shape"], dtype=dtype, device=described["device"])
    there = blocks[described["block"]].there
    start = (there.storage_offset() + described["offset"]) // dtype.itemsize
    empty = torch.empty(0, dtype=dtype, device=there.device)
    return empty.set_(there.untyped_storage(), start, described["shape"], described["stride"])


def _sibling(name: str) -> Any:
    """The module in the file beside this one. Importing the package would import what this process must not load."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _key(request: dict[str, Any]) -> str:
    return json.dumps([request["module"], request["name"], request["arguments"]])


def _found(request: dict[str, Any]) -> Any:
    """The Python callable that a request means."""
    for entry in reversed(request["path"]):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    if request["module"].endswith(".py"):
        spec = importlib.util.spec_from_file_location("__polytile_kernel__", request["module"])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(request["module"])
    named: Any = module
    for part in request["name"].split("."):
        named = getattr(named, part)
    return named if request["arguments"] is None else named(**request["arguments"])


def _limit(seconds: float, threads: int) -> None:
    """Limits this process from now on to this many seconds of processor time, or six times as many by the clock. This stops an
    endless kernel when nobody is left to stop it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = used.ru_utime + used.ru_stime + seconds * max(1, threads) + MARGIN
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(most), resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds + MARGIN)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Child(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
