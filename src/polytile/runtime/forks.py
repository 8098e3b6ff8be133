"""Keeps forked children alive whose parent has run kernels on several threads.

GNU's OpenMP runtime keeps its threads between parallel regions. A child inherits the record of them but not the
threads, and would wait for them forever in its first region, in eager too. So the child continues with one thread, as
torch's DataLoader workers do. LLVM's and Intel's runtimes start new threads.
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


def use_one_thread() -> None:
    """Restricts a forked child to one thread where more would hang."""
    if torch.get_num_threads() > 1 and has_gnu_openmp():
        torch.set_num_threads(1)
        log.info("This forked process runs on one thread: GNU's OpenMP runtime has none of its parent's.")
