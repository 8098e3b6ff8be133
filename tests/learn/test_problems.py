"""Sizes of problems to collect: of four kinds, within their ranges, the same ones for the same seed."""

from __future__ import annotations

import pytest
import torch

from polytile.learn.problems import LIMITS, OPERATIONS, WAYS

LIMIT = 1 << 20


def test_sizes_are_any_powers_multiples_and_odd_by_turns() -> None:
    mm = OPERATIONS["mm"]
    drawn = [mm.sizes(number, 0, 1 << 34) for number in range(80)]
    ways = {way: [sizes for number, sizes in enumerate(drawn) if WAYS[number % 4] == way] for way in WAYS}
    assert all(size & (size - 1) == 0 for sizes in ways["power"] for size in sizes.values())
    assert all(sizes[name] % 8 == 0 for sizes in ways["multiple"] for name in "NK")
    assert all(size % 2 for sizes in ways["odd"] for size in sizes.values())
    assert all(low <= sizes[name] <= high for sizes in drawn for name, (low, high) in mm.ranges.items())
    assert drawn == [mm.sizes(number, 0, 1 << 34) for number in range(80)] != [mm.sizes(n, 1, 1 << 34) for n in range(80)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_runs_at_its_sizes(name: str) -> None:
    operation = OPERATIONS[name]
    assert (operation.family, "cpu") in LIMITS and (operation.family, "cuda") in LIMITS
    sizes = operation.sizes(1, 0, LIMIT)
    assert operation.work(sizes) <= LIMIT
    with torch.no_grad():
        operation.run(*operation.make(sizes, torch.float32, torch.device("cpu")))
