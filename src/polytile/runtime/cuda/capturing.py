"""Captures in which torch's own functions launch kernels: graphs.c calls these functions around them.

torch's functions use its current stream, and take memory from its allocator: results on the way, and cuBLAS's workspaces, one a
stream. Within such a capture the capturing stream is torch's current one, and memory comes from a pool that belongs to the
stream on which the graph will run. Graphs of one stream run in order, so each may overwrite what an earlier one has left.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import threading
from typing import Any

import torch

log = logging.getLogger("polytile")

_ENTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
_LEAVE = ctypes.CFUNCTYPE(None)

NOT_SUPPORTED = 801
"""CUDA_ERROR_NOT_SUPPORTED: returned to C for a capture that torch cannot take part in."""

_entered = threading.local()
_pools: dict[tuple[int, int], Any] = {}
"""The pool of each stream of a device, for the process's lifetime: cuBLAS's workspaces stay in it."""


def callbacks() -> tuple[int, int]:
    """Addresses of `enter` and `leave` for C. They take the GIL."""
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in _functions())  # type: ignore[return-value]


@functools.cache
def _functions() -> tuple[Any, Any]:
    return _ENTER(enter), _LEAVE(leave)


def enter(device: int, stream: int | None, of: int | None) -> int:
    """Begins what belongs to a capture on `stream`, which stands for the stream `of` of a device. Returns 0, or the error
    NOT_SUPPORTED."""
    stack = contextlib.ExitStack()
    try:
        pool = _pools.get((device, of or 0))
        if pool is None:
            pool = _pools[device, of or 0] = torch.cuda.MemPool()
        stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream or 0, device=device)))
        stack.enter_context(torch.cuda.use_mem_pool(pool, device))
    except Exception as error:  # none can be raised through C
        stack.close()
        log.warning("torch %s takes no part in captures of CUDA graphs: %s", torch.__version__, error)
        return NOT_SUPPORTED
    _entered.stack = stack
    return 0


def leave() -> None:
    """Ends it."""
    _entered.stack.close()
