"""Every test has a cache directory of its own, and a clock that goes by what its candidates say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from polytile import options, store
from polytile.runtime import background, launcher
from polytile.tuning import racing
from polytile.tuning.isolation import attempts
from tests.dispatch.helpers import Call


@pytest.fixture(autouse=True)
def own_cache(empty_cache: object) -> Iterator[None]:
    yield
    store.forget()


@pytest.fixture(autouse=True)
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Bursts take what the candidates say; the list has the name of every candidate that was timed."""
    timed: list[str] = []
    real = launcher.time_burst

    def time_burst(entry: Any, args: Sequence[Any], repeats: int) -> float:
        call = getattr(entry, "call", None)
        if not isinstance(call, Call):
            return real(entry, args, repeats)
        timed.append(call.owner.name)
        return repeats * call.owner.seconds(args[2:])

    monkeypatch.setattr(launcher, "time_burst", time_burst)
    return timed


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No race is disturbed, whatever else the machine does."""
    monkeypatch.setattr(racing._Race, "disturbed", lambda race: 0.0)


@pytest.fixture(autouse=True)
def no_calls_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program has made calls, whatever other tests have called: candidates are measured outside them."""
    monkeypatch.setattr(background.background, "threads", 0)


class Everything(set[Any]):
    def __contains__(self, _: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """That fake candidates cannot be tried in a worker is told once a process, which must not be in the first of these tests."""
    monkeypatch.setattr(attempts, "_told", Everything())


@pytest.fixture
def no_persist() -> Iterator[None]:
    with options.override(persist=False):
        yield
