"""Seeds without a launch each: what the default generator's state says, and no two alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytile.runtime.cuda.seeds import BLOCK, STEP, Seeds


class Generator:
    """The host's side of a CUDA generator."""

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        self.seed, self.offset = seed, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % STEP == 0
        self.offset = offset


class Device:
    """Makes blocks, as the generator given or a count of the default one's says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def fill(self, generator: Any) -> torch.Tensor:
        self.asked.append(generator)
        state = (generator.seed, generator.offset) if generator else (-1, len(self.asked))
        return torch.empty(2 * BLOCK, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(hash(state)))


def seeds_of(device: Device) -> Seeds:
    make: Any = Generator
    return Seeds(device.fill, make)


def refused() -> torch.Generator:
    raise AssertionError("no generator can be made during a capture")


@pytest.fixture
def device() -> Device:
    return Device()


def taken(seeds: Seeds, generator: Any, count: int) -> list[int]:
    return [int(seeds.following(generator)) for _ in range(count)]


def test_the_same_state_gives_the_same_seeds(device: Device) -> None:
    seeds, generator = seeds_of(device), Generator(7)
    first = taken(seeds, generator, 5)
    generator.manual_seed(7)
    assert taken(seeds, generator, 5) == first
    generator.manual_seed(8)
    assert not set(taken(seeds, generator, 5)) & set(first)
    assert taken(seeds_of(Device()), Generator(7), 5) == first


def test_what_others_draw_between_two_calls_counts(device: Device) -> None:
    seeds, generator = seeds_of(device), Generator(7)
    first = taken(seeds, generator, 4)
    generator.manual_seed(7)
    generator.set_offset(3 * STEP)
    assert taken(seeds, generator, 1) == first[3:]
    generator.set_offset(5 * BLOCK * STEP)
    assert not set(taken(seeds, generator, 1)) & set(first)


def test_a_kernel_serves_many_calls_and_each_moves_the_offset(device: Device) -> None:
    seeds, generator = seeds_of(device), Generator()
    found = taken(seeds, generator, 2 * BLOCK)
    assert len(set(found)) == 2 * BLOCK
    assert len(device.asked) == 2
    assert generator.offset == 2 * BLOCK * STEP


def test_every_seed_is_aligned_alike(device: Device) -> None:
    seeds, generator = seeds_of(device), Generator()
    first, second = (seeds.following(generator) for _ in range(2))  # type: ignore[arg-type]
    assert (second.data_ptr() - first.data_ptr()) % 16 == 0
    assert first.shape == (1,)


def test_a_capture_draws_a_block_from_the_default_generator(device: Device) -> None:
    seeds = Seeds(device.fill, refused)
    found = [int(seeds.captured(1)) for _ in range(BLOCK + 1)]
    assert len(set(found)) == BLOCK + 1
    assert device.asked == [None, None]
    assert int(seeds.captured(2)) not in found
    assert device.asked == [None] * 3


def test_a_call_after_a_capture_lets_go_of_the_capture_s_memory(device: Device) -> None:
    seeds = seeds_of(device)
    seeds.captured(1)
    taken(seeds, Generator(), 1)
    assert seeds._captured is None
