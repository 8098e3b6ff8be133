"""Daemon threads that compile, or wait for compilers; their number is the option `compile_workers`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from polytile import options
from polytile.runtime.cpu import side_by_side


class Pool:
    """Threads named `name` that make the calls submitted to them, in order. Without the option there is one per core, as far as
    memory suffices for `bytes_each` each."""

    def __init__(self, name: str, bytes_each: int) -> None:
        self.name, self.bytes_each = name, bytes_each
        self.lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0
        self._idle = threading.Semaphore(0)

    def submit(self, work: Callable[[], None]) -> None:
        """Queues work for a thread; returns at once."""
        wanted = options.get("compile_workers") or side_by_side(self.bytes_each)
        with self.lock:
            self._waiting.put(work)
            if not self._idle.acquire(blocking=False) and self._threads < wanted:
                self._threads += 1
                threading.Thread(target=self._serve, name=self.name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                work = self._waiting.get_nowait()
            except queue.Empty:
                self._idle.release()
                work = self._waiting.get()
            work()
