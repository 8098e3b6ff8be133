"""Leases of the processes that share a store file: locks on single bytes of a file beside it, which end with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

SUFFIX = ".leases"


class FileLeases:
    """The leases that this process holds at one store. If locks are not available, everybody gets every lease."""

    def __init__(self, store: Path) -> None:
        self.path = Path(f"{store}{SUFFIX}")
        self._descriptor: int | None = None
        self._pid = 0

    def take(self, number: int) -> bool:
        """Takes the lease unless another process holds it; returns whether it did."""
        try:
            fcntl.lockf(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def give_back(self, number: int) -> None:
        if self._descriptor is not None and self._pid == os.getpid():
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Gives all leases back. A forked child, which has none, only closes the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None or self._pid != os.getpid():
            self.close()
            self._descriptor, self._pid = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), os.getpid()
        return self._descriptor
