"""The lowest room: compiles C++ text, loads it, and launches it.

In: C++ source (with the ABI of generated kernels), tensors and integers. Out: shared objects in the cache, kernel
addresses, dispatchers (regime key -> entry), burst timings, the device's fingerprint. Any room may call; it knows none
of them. Importing it starts no compiler and no thread. A warm process starts no compiler and no other program at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polytile.runtime.compile import Compilation, Library, SourceRejected, compile_cpp, compile_log, load
    from polytile.runtime.device import describe, fingerprint
    from polytile.runtime.dispatcher import Dispatcher
    from polytile.runtime.launcher import empty_strided_cpu, empty_strided_cuda, new_dispatcher, time_burst
    from polytile.runtime.python_dispatcher import PythonDispatcher
    from polytile.runtime.toolchain import Toolchain

__all__ = [
    "Compilation",
    "Dispatcher",
    "Library",
    "PythonDispatcher",
    "SourceRejected",
    "Toolchain",
    "compile_cpp",
    "compile_log",
    "describe",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "fingerprint",
    "load",
    "new_dispatcher",
    "time_burst",
]

_HOMES = {
    "compile": ("Compilation", "Library", "SourceRejected", "compile_cpp", "compile_log", "load"),
    "device": ("describe", "fingerprint"),
    "dispatcher": ("Dispatcher",),
    "launcher": ("empty_strided_cpu", "empty_strided_cuda", "new_dispatcher", "time_burst"),
    "python_dispatcher": ("PythonDispatcher",),
    "toolchain": ("Toolchain",),
}
"""The module that defines each name. It is imported at the name's first use, since most import torch."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
