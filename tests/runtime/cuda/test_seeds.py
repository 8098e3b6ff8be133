"""Seeds without a launch each: what the default generator's state says, and no two alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytile.runtime.cuda.seeds import BLOCK, STATES, STEP, Seeds, signed


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
    return Seeds(device.fill, make, states)


def states(seed: int, first: int) -> torch.Tensor:
    """As on a device: the seed beside each offset."""
    offsets = torch.arange(first, first + STATES * STEP, STEP)
    return torch.stack((torch.full_like(offsets, seed), offsets), 1)


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
    seeds = Seeds(device.fill, refused, states)
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


def test_a_state_is_the_generator_s_seed_and_offset_however_far_it_advances(device: Device) -> None:
    seeds, generator = seeds_of(device), Generator(7)
    for step in (4, 1492, STATES * STEP, 12, 0, 8):
        before = generator.offset
        state = seeds.state(generator, step)  # type: ignore[arg-type]
        assert state.tolist() == [7, before] and generator.offset == before + step
        assert state.data_ptr() % 16 == seeds.state(generator, 4).data_ptr() % 16  # type: ignore[arg-type]
    generator.manual_seed(8)
    assert seeds.state(generator, 4).tolist() == [8, 0]  # type: ignore[arg-type]


def test_a_capture_has_states_of_random_numbers(device: Device) -> None:
    seeds = seeds_of(device)
    found = {tuple(seeds.captured(1, 2).tolist()) for _ in range(BLOCK)}
    assert len(found) == BLOCK and device.asked == [None]


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_of_64_bits_keep_them(seed: int) -> None:
    assert signed(seed) % 2**64 == seed and -(2**63) <= signed(seed) < 2**63
