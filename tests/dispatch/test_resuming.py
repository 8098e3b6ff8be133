"""Decisions of an earlier process are filed between calls, and first where calls ask for them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from polytile.dispatch import recorded, resuming
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.recorded import Resume
from polytile.runtime import background
from polytile.runtime.background import Disturbance
from tests.dispatch.helpers import Fake
from tests.dispatch.test_stall import PATIENCE, call, never

ROWS = (20, 60, 200)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    background.drop()
    assert background.wait(PATIENCE)


class Filed:
    """Stands for the decisions of an earlier process at ROWS. Notes in what order they are filed and looked at, and by whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[tuple[str, Any]] = []
        self.threads: set[str] = set()
        monkeypatch.setattr(recorded, "TURN_SECONDS", 1e-9)
        monkeypatch.setattr(recorded, "_resume", lambda kernel, fields, row: self._note("filed", fields))
        monkeypatch.setattr(resuming, "reconsider", lambda kernel, fields: self._note("looked at", fields))

    def _note(self, what: str, fields: Any) -> None:
        self.order.append((what, fields))
        self.threads.add(threading.current_thread().name)

    def resume(self, kernel: MultiKernel) -> list[Any]:
        """Submits the job, while the background does nothing. Returns the fields of ROWS."""
        known = [kernel.keys.fields((rows, 64)) for rows in ROWS]
        job = Resume(weakref.ref(kernel), {each: [(each, {})] for each in known}, deque(known), frozenset())
        recorded._resuming[kernel] = [job]
        background.submit(job)
        return known


def test_each_turn_files_one_regime_and_rests_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    filed, kernel = Filed(monkeypatch), never(Fake("fast", 1e-5), tune="off")
    turns, run = list[int](), Resume.run

    def counted(job: Resume) -> None:
        run(job)
        turns.append(len(filed.order))

    monkeypatch.setattr(Resume, "run", counted)
    known = filed.resume(kernel)
    assert background.wait(PATIENCE)
    assert filed.order == [*(("filed", each) for each in known), *(("looked at", each) for each in known)]
    assert turns == [1, 2, 3, 4, 5, 6] and Resume.disturbs is Disturbance.COMPUTES
    assert not recorded._resuming[kernel]


def test_what_a_call_meets_is_filed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    filed, kernel = Filed(monkeypatch), never(Fake("fast", 1e-5), Fake("library", 2e-5, origin="library"), tune="off")
    with background.background.held():
        known = filed.resume(kernel)
        call(kernel, ROWS[2])
    assert background.wait(PATIENCE)
    assert [fields for what, fields in filed.order if what == "filed"] == [known[2], known[0], known[1]]
    assert threading.current_thread().name not in filed.threads
