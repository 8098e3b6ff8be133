"""Configs that are not worth timing at new sizes: those that were clearly slower at nearby sizes.

The time of a user's kernel cannot be predicted. But what one wave of its programs takes changes slowly with the sizes, and how
many waves a config needs follows from the grid: ceil(programs / multiprocessors). Known wrong: a config whose waves become faster
by more than STEP per octave, relative to the best's; a kernel of whose programs several share a multiprocessor. Option tune="all"
times every config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from polytile.dispatch.decision import Decision

RADIUS = 3.0
"""Maximum distance in octaves, along the size that differs most."""

CLEAR, STEP = 1.1, 1.1
"""A clear loser is expected to take over CLEAR times as long as the best; one octave away, STEP times that.

On the times of a product at 64 unseen sizes on an H200 (benchmarks/autotune_replay.py with gpu_autotune_unseen.json), each
config at each size takes 768 timings. These take 78 and lose 1.5 %. 1.05 and 1.1 take 75 and lose as much, but on the times of a
model only 94 % of the choices of 20 processes are alike.
"""

Sizes = tuple[tuple[str, int], ...]


class Timed:
    """The timings for one MultiKernel on a device with `processors` multiprocessors. `read` adds those of its decisions."""

    def __init__(self, processors: int = 1) -> None:
        self.processors = processors
        self._at: dict[Sizes, dict[str, float]] = {}
        self._waves: dict[Sizes, dict[str, int]] = {}

    def read(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            timed = {one.candidate: one.seconds for one in decision.standings if one.seconds > 0}
            if timed:
                self._at[decision.measured_at or decision.sizes] = timed

    def launched(self, sizes: Mapping[str, int], programs: Mapping[str, int]) -> None:
        """Say how many programs the configs launch at these sizes."""
        self._waves[tuple(sizes.items())] = {name: max(1, math.ceil(count / self.processors)) for name, count in programs.items()}

    def is_loser(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Whether the config was clearly slower at the nearest sizes at which it was timed, by the waves there and here."""
        near = ((_octaves(dict(at), sizes), at) for at, timed in self._at.items() if name in timed)
        octaves, at = min(near, key=lambda pair: pair[0], default=(math.inf, ()))
        if octaves > RADIUS:
            return False
        here, there = self._waves.get(tuple(sizes.items()), {}), self._waves.get(at, {})
        grown = {one: here[one] / there[one] for one in here.keys() & there.keys()}
        expected = {one: seconds * grown.get(one, 1.0) for one, seconds in self._at[at].items()}
        return expected[name] > CLEAR * STEP**octaves * min(expected.values())


def processors(device: torch.device) -> int:
    """How many programs of a kernel run at a time, where each fills a multiprocessor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _octaves(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max((abs(math.log2((size + 1) / (other[name] + 1))) for name, size in one.items()), default=0.0)
