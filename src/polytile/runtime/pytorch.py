"""Facts about PyTorch without importing it, which takes seconds; for commands that only read and print.

A file of PyTorch holds its release. Its library reports the number of threads, and torch itself the GPUs; both answers
are cached as long as their inputs are unchanged. A process that has imported torch asks torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from polytile import options
from polytile.problem import digest
from polytile.runtime import cache
from polytile.runtime.cpu import usable_cores

THREAD_VARIABLES = ("OMP_", "MKL_", "KMP_", "GOMP_", "ATEN_", "LD_PRELOAD")
"""Prefixes of the environment variables that may change the number of threads."""

COUNT = "_ZN2at15get_num_threadsEv"
"""at::get_num_threads(), which torch.get_num_threads calls."""

@functools.cache
def folder() -> Path:
    """Folder in which PyTorch is installed. Raises ModuleNotFoundError if it is not."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("PyTorch is not installed.", name="torch")
    return Path(spec.origin).parent


@functools.cache
def _read() -> ModuleType:
    """The module torch.version, loaded on its own."""
    spec = importlib.util.spec_from_file_location("polytile_torch_version", folder() / "version.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def release() -> str:
    """torch.__version__, such as "2.13.0+cpu"."""
    torch = sys.modules.get("torch")
    return str((torch or _read()).__version__)


def hip() -> str | None:
    """The ROCm release that this PyTorch was built for; None for other builds."""
    torch = sys.modules.get("torch")
    built_for: str | None = getattr(torch.version if torch is not None else _read(), "hip", None)
    return built_for


def threads() -> int:
    """Maximum number of threads of a kernel: the option `threads`, else torch.get_num_threads()."""
    return options.get("threads") or torch_threads()


def torch_threads() -> int:
    """The value of torch.get_num_threads(), even before torch is imported."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else _cached_threads()


def _cached_threads() -> int:
    return int(cached_answer("threads", [usable_cores(), set_variables(THREAD_VARIABLES)], _query_threads))


def set_variables(beginnings: tuple[str, ...]) -> list[tuple[str, str]]:
    """Environment variables with these prefixes, sorted by name."""
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(beginnings))


def cached_answer(what: str, decides: Any, ask: Callable[[], Any]) -> Any:
    """The cached answer of this PyTorch to `what` under the inputs `decides`; calls `ask` if there is none yet."""
    place, name = cache.current(), f"pytorch/{what}-{digest(json.dumps([release(), str(folder()), decides]))}.json"
    answer = place.read(name)
    if answer is None:
        place.write(name, answer := json.dumps(ask()).encode())
    return json.loads(answer)


def _query_threads() -> int:
    """Asks torch's library, which takes a quarter of the time of importing torch; on failure, asks torch."""
    try:
        return int(getattr(ctypes.CDLL(str(folder() / "lib" / "libtorch_cpu.so")), COUNT)())
    except (OSError, AttributeError):
        import torch

        return torch.get_num_threads()
