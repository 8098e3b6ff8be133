"""A forked child of a process that has run kernels on several threads.

GNU's OpenMP runtime keeps its threads from one parallel region to the next. A child has a copy of the record of them and not the
threads, and its first region would wait for them for ever, in eager too. So the child goes on with one thread, as the workers of
torch's DataLoader do. LLVM's and Intel's runtimes start threads anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

log = logging.getLogger("polytile")


def has_gnu_openmp() -> bool:
    """Whether GNU's OpenMP runtime is loaded into this process."""
    try:
        return "libgomp" in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def go_on_alone() -> None:
    """In a forked child: one thread, where more would hang."""
    if torch.get_num_threads() > 1 and has_gnu_openmp():
        torch.set_num_threads(1)
        log.info("This forked process runs on one thread: GNU's OpenMP runtime has none of its parent's.")
