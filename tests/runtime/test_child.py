"""Work in a forked copy of the process: what comes back, and what becomes of a copy that fails."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from polytile.runtime.child import ChildFailed, can_fork, in_child

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks are made on Linux alone")


def test_a_value_comes_back_and_the_parent_keeps_its_own() -> None:
    seen: list[int] = []

    def work() -> dict[str, int]:
        seen.append(os.getpid())
        return {"pid": os.getpid(), "large": len("x" * 1_000_000)}

    answer = in_child(work, 20)
    assert answer["pid"] != os.getpid() and answer["large"] == 1_000_000 and not seen


def test_a_large_answer_comes_whole() -> None:
    assert in_child(lambda: "ab" * 1_000_000, 20) == "ab" * 1_000_000


def test_what_the_child_raises_is_told() -> None:
    with pytest.raises(ChildFailed, match="ZeroDivisionError"):
        in_child(lambda: 1 // 0, 20)


def test_a_child_that_dies_is_told() -> None:
    with pytest.raises(ChildFailed, match="died"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 20)


def test_a_child_that_takes_too_long_is_ended() -> None:
    begun = time.monotonic()
    with pytest.raises(ChildFailed, match="too long"):
        in_child(lambda: time.sleep(60), 0.2)
    assert time.monotonic() - begun < 10


def test_other_threads_go_on_and_none_is_left_behind() -> None:
    counted, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    try:
        assert in_child(lambda: threading.active_count(), 20) == 1
        assert counted[0] > before
    finally:
        over.set()
        thread.join()
