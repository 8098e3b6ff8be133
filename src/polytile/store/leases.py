"""Leases of the processes that share a store in a file: locks on single bytes of a file beside it, which end with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

SUFFIX = ".leases"


class FileLeases:
    """The leases that this process holds at one store. Where locks cannot be had, whoever asks gets every lease."""

    def __init__(self, store: Path) -> None:
        self.path = Path(f"{store}{SUFFIX}")
        self._descriptor: int | None = None
        self._pid = 0

    def take(self, number: int) -> bool:
        """Whether no other process holds this lease; then this one does."""
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
        """Gives all leases back. In a forked child, which has none of them, the descriptor alone is closed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None or self._pid != os.getpid():
            self.close()
            self._descriptor, self._pid = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), os.getpid()
        return self._descriptor
