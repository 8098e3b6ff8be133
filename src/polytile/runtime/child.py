"""Work done in a forked copy of this process, so that it takes nothing of Python's lock from calls.

The copy knows all that its parent knows, a graph and its symbolic sizes among it, which have no form that another process could
read. What it makes it leaves on disk; a small value comes back as JSON. It computes nothing with tensors: threads of OpenMP, and
contexts of GPUs, do not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from polytile.errors import PolytileError
from polytile.runtime.background import PROCESS_NICENESS, yield_to_calls

log = logging.getLogger("polytile")

PR_SET_PDEATHSIG = 1
"""prctl's option that has a process end with the thread that made it."""


class ChildFailed(PolytileError):
    """A child raised something, died, or took too long."""


def can_fork() -> bool:
    """Whether the system has what `in_child` needs."""
    return sys.platform == "linux"


def in_child(work: Callable[[], Any], seconds: float) -> Any:
    """What `work()` returns in a forked child, as JSON keeps it.

    Raises ChildFailed where it raises, ends the process, or takes longer than `seconds`. The child ends with its parent, and
    with the thread that asked.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # Python warns of forks beside threads: the child calls nothing that needs them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _serve(work, writing)
    os.close(writing)
    try:
        return _answer(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(reading: int, end: float) -> Any:
    """What a child writes until it closes its end of the pipe."""
    content = b""
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        content += chunk
    else:
        raise ChildFailed("it took too long.")
    if not content:
        raise ChildFailed("it died without a word.")
    answer = json.loads(content)
    if "error" in answer:
        raise ChildFailed(answer["error"])
    return answer["value"]


def _serve(work: Callable[[], Any], writing: int) -> NoReturn:
    """The child: does `work`, writes the answer, and ends without anything of Python's own end."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        yield_to_calls(0, PROCESS_NICENESS)
        gc.disable()  # a collection would write to most pages that are shared with the parent
        torch.set_num_threads(1)
        try:
            answer = {"value": work()}
        except BaseException:  # the parent says what to make of it
            answer = {"error": traceback.format_exc(limit=-8)}
        content = json.dumps(answer).encode()
        while content:
            content = content[os.write(writing, content) :]
    finally:
        os._exit(0)
