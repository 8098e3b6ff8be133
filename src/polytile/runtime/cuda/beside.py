"""GPU work by the background thread while the program uses the GPU: on its own stream, without disturbing captures."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch

from polytile.runtime import native
from polytile.runtime.cuda import driver, launch
from polytile.runtime.symbols import addresses

log = logging.getLogger("polytile")

_EVENT_FUNCTIONS = (
    "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime", "cuStreamIsCapturing",
)  # fmt: skip


@contextlib.contextmanager
def beside_calls(index: int) -> Iterator[None]:
    """Makes this thread work on its own stream of device `index` within the block, and waits for that work at the end.
    The work is not captured, and does not invalidate a capture that another thread has begun."""
    with driver.current(index), torch.cuda.device(index), torch.cuda.stream(_stream(index)):
        try:
            yield
        finally:
            torch.cuda.current_stream().synchronize()


@functools.cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


@functools.cache
def can_time_calls() -> bool:
    """Whether the dispatch table can time single calls on a GPU. Configures it the first time."""
    module = native.module()
    library = driver.library()
    try:
        functions = addresses(library, _EVENT_FUNCTIONS)
    except AttributeError as error:
        log.info("Calls on this GPU cannot be timed one by one: %s.", error)
        return False
    if module is None:
        return False
    module.configure_functions("events", *functions, launch.torch_functions()[0])
    return True
