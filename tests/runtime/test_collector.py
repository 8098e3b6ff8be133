"""Python's garbage collector beside calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc
from polytile.runtime import collector
old = [[] for _ in range(400_000)]
{frozen}
gc.collect()
frozen, before = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
with collector.{block}():
    new = [[] for _ in range(60_000)]
later = [[] for _ in range(95_000)]  # a fifth of all; with the new ones it is over a quarter
expected = (frozen,) if frozen >= collector.OF_PYTHON else (0, frozen)  # Python 3.12 itself freezes what is immortal
print(gc.get_stats()[2]["collections"] - before, gc.get_freeze_count() in expected, gc.isenabled())
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector searches in small steps")
@pytest.mark.parametrize(
    ("block", "frozen", "searches"),
    [("at_rest", "", 1), ("at_rest_uncounted", "", 0), ("at_rest_uncounted", "kept = [[]]; gc.freeze()", None)],
)
def test_no_call_searches_all_objects_because_of_those_that_the_background_has_made(
    block: str, frozen: str, searches: int | None
) -> None:
    script = SCRIPT.format(block=block, frozen=frozen)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found[1:] == ["True", "True"]
    if searches is not None:
        assert int(found[0]) == searches


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector has other generations")
def test_no_call_searches_the_modules_of_the_compiler() -> None:
    """Importing them makes enough new objects for a search of all in the first call."""
    script = """
import gc, torch, polytile
gc.collect()
polytile.compile(torch.nn.Identity())
print(len(gc.get_objects(0)) + len(gc.get_objects(1)), len(gc.get_objects(2)))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    young, old = map(int, found)
    assert young < 10_000 < 100_000 < old
