"""Processes that share a store do not measure for one regime at once: one does, and the others follow what it finds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytile import store
from polytile.dispatch import leases
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import background
from tests.dispatch.helpers import Fake, arguments, new_process, spec
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    background.drop()
    assert background.wait(PATIENCE)


def kernel(*candidates: Fake, **options: Any) -> MultiKernel:
    own = candidates or (Fake("first", 3e-5), Fake("second", 1e-5))
    return MultiKernel(spec(), own, {"isolation": "never", "stall": "tune", "threads": 1, **options})


class Other:
    """Another process, which holds a lease until it has measured, and then gives it back."""

    def __init__(self, name: str, measures: bool) -> None:
        self._told, told = os.pipe()
        go_on, self._go_on = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            try:
                held = store.current()
                assert held.take_lease(name)
                os.write(told, b".")
                os.read(go_on, 1)
                if measures:
                    kernel(Fake("first", 1e-5), Fake("second", 3e-5))(*arguments(32))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.read(self._told, 1) == b"."

    def go_on(self) -> None:
        os.write(self._go_on, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1]) == 0


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The lease of the regime of 32 rows."""
    found: list[str] = []
    real = leases.name_of

    def noted(request: Any) -> str:
        found.append(real(request))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(leases, "name_of", noted)
        kernel()(*arguments(32))
    new_process()
    for file in Path(os.environ["POLYTILE_CACHE_DIR"]).glob("store.sqlite3*"):
        file.unlink()
    return found[0]


def test_a_call_that_measures_waits_for_the_process_that_does_and_takes_what_it_found(name: str, fake_clock: list[str]) -> None:
    other = Other(name, measures=True)
    fake_clock.clear()
    mine = kernel()
    call = threading.Thread(target=mine, args=arguments(32))
    call.start()
    until(lambda: name in leases._waiting_since, "the call waits")
    other.go_on()
    call.join(PATIENCE)
    assert mine.decisions[0].candidate == "first" and not fake_clock


def test_nobody_waits_longer_than_patience_for_a_process_that_measures_nothing(
    name: str, fake_clock: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(name, measures=False)
    monkeypatch.setattr(leases, "PATIENCE_SECONDS", 0.1)
    for stall in ("tune", "never"):
        mine = kernel(stall=stall)
        mine(*arguments(32))
        assert background.wait(PATIENCE)
        assert mine.decisions[0].candidate == "second"
    assert set(fake_clock) == {"first", "second"}
    other.go_on()


def test_the_background_does_other_work_until_a_lease_is_free(name: str, fake_clock: list[str]) -> None:
    other = Other(name, measures=True)
    mine = kernel(stall="never")
    mine(*arguments(32))
    mine(*arguments(5000))
    while len(mine.decisions) < 2 or mine.decisions[1].link != "measured":
        background.wait(0.05)
    assert mine.decisions[0].link == "prior", "another process has its lease"
    fake_clock.clear()
    other.go_on()
    assert background.wait(PATIENCE)
    assert mine.decisions[0].candidate == "first" and not fake_clock
