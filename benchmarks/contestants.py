"""A contestant in a process and with caches of its own.

Compilers keep what they have compiled and measured in the process and on disk, and find it again by the code alone: a contestant
that is compiled after another, with other hints or in another mode, may be given the other's kernels. So each has a process, and
directories for caches that begin empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHES = {
    "POLYTILE_CACHE_DIR": "polytile",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "TMPDIR": "tmp",
}
"""Environment variables that say where compilers keep things, and the directory of each."""
COMPILERS = ("POLYTILE_COMPILE_WORKERS", "TORCHINDUCTOR_COMPILE_THREADS")
"""Environment variables that say how many compilers may run at a time."""


def own_environment(caches: Path, compilers: int = 0) -> dict[str, str]:
    """The environment of a process whose caches lie in this directory; at most so many compilers run at a time (0: as many as
    each compiler runs by itself)."""
    for name in CACHES.values():
        (caches / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {variable: str(caches / name) for variable, name in CACHES.items()}
    few = {variable: str(compilers) for variable in COMPILERS} if compilers else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))), **paths, **few}


@contextlib.contextmanager
def own_caches(compilers: int = 0) -> Iterator[dict[str, str]]:
    """`own_environment` of a directory that is empty now and removed in the end."""
    with tempfile.TemporaryDirectory(prefix="contestant-", ignore_cleanup_errors=True) as directory:
        yield own_environment(Path(directory), compilers)


@contextlib.contextmanager
def turn(lock: Path | None) -> Iterator[float]:
    """Within the block no other process holds this lock file; what is given are the seconds that were waited. None: no lock."""
    if lock is None:
        yield 0.0
        return
    began = time.perf_counter()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield time.perf_counter() - began


__all__ = ["ROOT", "own_caches", "own_environment", "turn"]
