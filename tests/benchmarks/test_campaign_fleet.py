"""What the benchmark of a campaign's scheduler makes of the times at which devices were busy."""

from __future__ import annotations

import pytest

from benchmarks.campaign_fleet import LAST, _idle


def test_devices_that_are_busy_to_the_end_are_not_idle() -> None:
    assert _idle([(5.0, 15.0), (5.0, 15.0)], 5.0, 10.0, devices=2) == pytest.approx(0.0)


def test_idle_time_in_the_last_part_does_not_count() -> None:
    assert _idle([(0.0, 100.0 * (1 - LAST))], 0.0, 100.0, devices=1) == pytest.approx(0.0)
    assert _idle([(0.0, 50.0 * (1 - LAST))], 0.0, 100.0, devices=1) == pytest.approx(0.5)
    assert _idle([(99.0, 100.0)], 0.0, 100.0, devices=1) == pytest.approx(1.0)
