"""The layouts of a graph's images: the assignment that is found is the cheapest one there is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Hashable

import torch
from hypothesis import given
from hypothesis import strategies as st

from polytile.frontend.channels_last import Images
from polytile.frontend.layout_cost import Cost, Layouts, cost_of

NODES = 5


def price(layouts: Layouts, last: set[Hashable]) -> float:
    """What an assignment costs, by its definition."""
    own = sum(cost for node, cost in layouts.planes.items() if node not in last)
    own += sum(cost for node, cost in layouts.last.items() if node in last)
    given = [cost for node, readers, cost in layouts.readers if any((r in last) != (node in last) for r in readers)]
    return own + sum(given)


costs = st.integers(0, 9).map(float)


@given(
    own=st.lists(st.tuples(costs, costs), min_size=NODES, max_size=NODES),
    read=st.lists(st.tuples(st.integers(0, NODES - 1), st.sets(st.integers(0, NODES - 1), max_size=3), costs), max_size=8),
)
def test_no_assignment_is_cheaper(own: list[tuple[float, float]], read: list[tuple[int, set[int], float]]) -> None:
    layouts = Layouts()
    for node, cost in enumerate(own):
        layouts.add(node, Cost(*cost))
    for node, readers, conversion in read:
        layouts.read(node, readers, conversion)
    found = layouts.cheapest() & {*range(NODES)}
    every = [set(nodes) for k in range(NODES + 1) for nodes in itertools.combinations(range(NODES), k)]
    assert price(layouts, found) == min(price(layouts, nodes) for nodes in every)


def test_a_conversion_is_paid_once_for_all_readers() -> None:
    layouts = Layouts()
    layouts.add("x", Cost(0.0, float("inf")))
    for reader in "abc":
        layouts.add(reader, Cost(2.0, 0.0))
    layouts.read("x", "abc", 5.0)
    assert layouts.cheapest() >= {*"abc"}


def test_wide_weights_of_small_images_are_packed_and_others_left_in_planes() -> None:
    small = cost_of(images=1.0, weight=10.0, points=9, groups=1, transposed=False, filters=4, way="packed")
    assert small == Cost(1.0, 0.0)  # laying both images out for the packing
    unpacked = cost_of(images=1.0, weight=10.0, points=9, groups=1, transposed=False, filters=4, way="plain")
    assert unpacked.planes < unpacked.last


def test_narrow_groups_of_a_transposed_convolution_stay_as_they_are() -> None:
    narrow, wide = (cost_of(1.0, 0.1, points=9, groups=4, transposed=True, filters=n, way="plain") for n in (8, 16))
    assert narrow == Cost(0.0, 0.0) and wide.planes > wide.last


FIRST = """
import torch
from polytile.frontend.channels_last import lay_channels_last
from polytile.frontend.lower.registry import TABLE
lay_channels_last(torch.fx.Graph(), training=True)
print(torch.ops.aten.add.Tensor in TABLE)
"""


def test_a_process_knows_what_follows_any_layout_from_its_first_graph_on() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=240)
    assert ran.stdout == "True\n", ran.stderr


def test_values_of_one_shape_and_dtype_share_an_image() -> None:
    laid, x = Images(), torch.empty(2, 3, 4, 5)
    image = laid.channels_last(x)
    assert (image.shape, image.stride()) == (x.shape, x.to(memory_format=torch.channels_last).stride())
    assert laid.channels_last(torch.zeros_like(x)) is image
    assert laid.channels_last(x.double()) is not image and laid.channels_last(x[:1]) is not image
