"""Where threads are while a call takes longer than expected: another thread looks at their stacks every millisecond.

It takes Python's lock to look, so a call that is late is disturbed a little more, and a thread that keeps the lock is seen when
it gives it up, at the line that kept it.
"""

from __future__ import annotations

import collections
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

PATIENCE = 1e-3
"""Seconds that a call may take over what is expected before anybody looks."""
PERIOD = 1e-3
SHOWN = 4
"""Files that name a place, the innermost first."""
PACKAGES = ("polytile", "torch", "benchmarks")
BACKGROUND = "polytile-background"

Frame = tuple[str, int, str]
"""File, line and function."""


class Stacks:
    """`arm` before a call and `disarm` after it, on the thread that made this object."""

    def __init__(self) -> None:
        self._caller = threading.get_ident()
        self._until = float("inf")
        self._samples: list[dict[str, list[Frame]]] = []
        self._longest = 0.0
        threading.Thread(target=self._look, name="stacks", daemon=True).start()

    def arm(self, expected: float) -> None:
        """The call that begins now is expected to take so many seconds."""
        self._samples, self._longest = [], 0.0
        self._until = time.perf_counter() + expected + PATIENCE

    def disarm(self) -> dict[str, Any]:
        """How many samples were taken since `arm`, how often the caller and the background thread were where, the commonest place
        first, and the longest that the looking thread waited for its turn; {} where the call was not late."""
        self._until = float("inf")
        samples = list(self._samples)
        if not samples:
            return {}
        found: dict[str, Any] = {"samples": len(samples), "longest_wait": self._longest}
        for whose in ("caller", "background"):
            places = collections.Counter(place(one[whose]) for one in samples if whose in one)
            found[whose] = dict(places.most_common(3))
        return found

    def _look(self) -> None:
        while True:
            slept = time.perf_counter()
            time.sleep(PERIOD)
            now = time.perf_counter()
            if now > self._until:
                self._longest = max(self._longest, now - slept - PERIOD)
                self._samples.append(self._sample())

    def _sample(self) -> dict[str, list[Frame]]:
        stacks = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = {"caller": list(_frames(stacks[self._caller]))}
        for thread, frame in stacks.items():
            if names.get(thread) == BACKGROUND:
                found["background"] = list(_frames(frame))
        return found


def _frames(innermost: FrameType | None) -> Iterator[Frame]:
    frame = innermost
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def place(frames: Sequence[Frame]) -> str:
    """The innermost frame of each run of frames in one file; and the innermost of polytile's where it is not among those."""
    inner = [frame for frame, outer in zip(frames, [("", 0, ""), *frames], strict=False) if frame[0] != outer[0]]
    shown = inner[:SHOWN]
    own = next((frame for frame in inner if "/polytile/" in frame[0] or frame[0].startswith("<polytile")), None)
    if own is not None and own not in shown:
        shown.append(own)
    return " < ".join(f"{_short(file)}:{line} {function}" for file, line, function in shown)


def _short(file: str) -> str:
    """The path within its package."""
    parts = Path(file).parts
    starts = [i for i, part in enumerate(parts[:-1]) if part in PACKAGES]
    return "/".join(parts[starts[-1] + 1 :]) if starts else parts[-1]


__all__ = ["Stacks", "place"]
