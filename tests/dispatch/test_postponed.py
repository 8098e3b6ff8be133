"""What could not be measured for want of memory is measured by a later call that finds room. The host stands in for a GPU."""

from __future__ import annotations

import pytest
import torch

from polytile.dispatch.multikernel import MultiKernel
from polytile.tuning import headroom
from tests.dispatch.helpers import Fake, arguments, spec

LONG = 2 * headroom.HOST_SECONDS / headroom.HOST_SLOWER
"""Predicted seconds of a problem that is too large for a reference on the host."""


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that may be allocated without raising the peak; none at first."""
    bytes_left = [0]
    monkeypatch.setitem(headroom.HEADROOM, "cpu", lambda device: bytes_left[0])
    return bytes_left


def large(name: str, predicted: float) -> Fake:
    return Fake(name, 1e-5 if name == "fast" else 2e-5, predicted)


@pytest.fixture
def two() -> MultiKernel:
    return MultiKernel(spec(), [large("slow", LONG), large("fast", 1.1 * LONG)])


def test_the_wait_doubles_and_only_the_last_chance_is_the_hosts(spare: list[int], fake_clock: list[str]) -> None:
    """Of a problem that would have the host work for a while. With "thorough" it works at once."""
    middling = 2 * headroom.HOST_AT_ONCE / headroom.HOST_SLOWER
    put_off = MultiKernel(spec(), [large("slow", middling), large("fast", 1.1 * middling)])
    for _ in range(2**headroom.MOST_POSTPONED - 1):
        x, y, m, n = arguments(32)
        put_off(x, y, m, n)
        assert torch.equal(y, 2 * x) and put_off.decisions[0].postponed and not fake_clock
    put_off(*arguments(32))
    assert put_off.decisions[0].candidate == "fast" and fake_clock
    patient = MultiKernel(spec(), [large("slow", middling), large("fast", 1.1 * middling)], {"tune": "thorough"})
    patient(*arguments(32))
    assert patient.decisions[0].candidate == "fast"


def test_a_later_call_that_finds_room_measures(two: MultiKernel, spare: list[int], fake_clock: list[str]) -> None:
    for _ in range(3):
        x, y, m, n = arguments(32)
        two(x, y, m, n)
        assert torch.equal(y, 2 * x) and not fake_clock
    (decision,) = two.decisions
    assert decision.candidate == "slow" and decision.postponed
    assert decision.provenance.startswith("predicted; not measured yet: checking results would take more")
    spare[0] = 1 << 30
    x, y, m, n = arguments(32)
    two(x, y, m, n)
    (decision,) = two.decisions
    assert torch.equal(y, 2 * x) and (decision.candidate, decision.link) == ("fast", "measured")
    assert not decision.postponed and fake_clock


def test_after_a_few_calls_without_room_the_prediction_stays(
    two: MultiKernel, spare: list[int], fake_clock: list[str]
) -> None:
    for _ in range(2**headroom.MOST_POSTPONED):
        two(*arguments(32))
    spare[0] = 1 << 30
    two(*arguments(32))
    (decision,) = two.decisions
    assert decision.candidate == "slow" and not fake_clock
    two(*arguments(600))
    assert two.decisions[1].candidate == "fast", "another regime is another matter"
