"""The memories of a program over its calls, and where they lie in its arena."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from polytile.runtime import native
from polytile.wrapper.footprint import Footprints
from polytile.wrapper.lines import TakeArguments
from tests.passes.helpers import S0, S1, Net
from tests.wrapper.helpers import lines_of


def net() -> Footprints:
    """Operators that store every result, of the sizes of `x` or `small`; the caller keeps both."""
    net = Net()
    x, small = net.input("x", S0, S1), net.input("small", S1)
    first, second, third = net.op("sin", x), net.op("cos", x), net.op("sin", small)
    total = net.op("add", net.op("mul", first, second), net.op("cos", third))
    program = net.program(net.reduce("sum", net.op("mul", net.op("sin", total), net.op("exp", net.op("cos", second))), 1))
    kept = (replace(line, kept=frozenset(line.names)) if isinstance(line, TakeArguments) else line for line in lines_of(program))
    return Footprints(tuple(kept), program.buffers)


@pytest.fixture(scope="module")
def footprints() -> Footprints:
    return net()


def test_memories_are_needed_from_a_call_until_a_later_one(footprints: Footprints) -> None:
    calls = len(footprints.calls)
    assert calls == 11
    assert all(0 <= memory.first < memory.last <= calls for memory in footprints.memories)
    assert max(memory.last for memory in footprints.memories) == calls  # the result's


def test_memories_have_their_bytes_at_the_sizes_of_a_call(footprints: Footprints) -> None:
    assert set(footprints.at({S0: 16, S1: 40}).bytes) == {16 * 40 * 4, 192, 64}  # 40 and 16 floats are rounded up to 64 bytes


def test_their_offsets_are_the_launchers(footprints: Footprints, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int, bool, int]] = []

    def place(memories: list[tuple[int, int, bool, int]]) -> tuple[int, list[int]]:
        made.extend(memories)
        return 6400, [64 * number for number in range(len(memories))]

    monkeypatch.setattr(native, "module", lambda: SimpleNamespace(place_memories=place))
    found = footprints.at({S0: 16, S1: 40})
    assert [size for *_, size in made] == list(found.bytes) and found.arena == 6400
    assert [offset is not None for offset in found.offsets] == [inside for _, _, inside, _ in made]


def test_the_launcher_places_memories_where_no_other_is_needed() -> None:
    memories = [(0, 3, True, 128), (1, 5, True, 64), (3, 5, True, 128), (0, 5, False, 64)]
    assert native.module().place_memories(memories) == (192, [0, 128, 0, -1])
    assert native.module().place_memories([]) == (0, [])


def test_memories_that_are_never_needed_together_share_their_place() -> None:
    memories = [(0, 2, True, 64), (2, 4, True, 64), (1, 3, True, 128)]
    assert native.module().place_memories(memories) == (192, [128, 128, 0])


def test_of_several_orders_that_with_the_smallest_arena_counts() -> None:
    """The two largest, which are never needed together, would come first, to one place, and the two others above both."""
    memories = [(first, last, True, 64 * size) for first, last, size in ((2, 3, 3), (2, 4, 2), (4, 7, 3), (3, 5, 2))]
    assert native.module().place_memories(memories)[0] == 5 * 64


def test_sizes_of_0_take_nothing(footprints: Footprints) -> None:
    found = footprints.at({S0: 0, S1: 16})
    assert set(found.bytes) == {0, 64}
