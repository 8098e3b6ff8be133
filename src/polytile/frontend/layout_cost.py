"""Which images of a graph should have their channels last: the assignment that costs least, conversions included.

    x → conv → y                  1 conversion of x, 1 of y, to save 0.4 of x and y      planes
    x → conv → conv → conv → y    the same conversions, to save 0.4 of each that is read or written     channels last

Every image that may be stored in either layout, and every convolution, is a node that is in planes or has its channels last. What
a convolution costs more in one of them, and what a conversion costs between two nodes that differ, are capacities of edges; the
cheapest assignment is a minimum cut. Costs are in bytes that a conversion moves, by the sizes that were traced; as what is gained
and what is converted grow alike with the images, one assignment serves all sizes.

The constants are measured (36 convolutions, one thread, AVX2 and AVX-512; a conversion takes 0.12 to 0.18 ms for each MiB): of
images in planes ATen's convolution takes 0.02 to 0.12 ms more for each MiB that it reads and writes, with groups 0.04 to 0.26,
transposed 0.3 to 1. They are wrong for a window of 7×7 over three channels by AVX2, which is faster in planes (2.3 ms, 3.0).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from polytile.frontend.hints import traced_size

DENSE, GROUPED, TRANSPOSED = 0.4, 0.7, 2.0
"""What a convolution of images in planes costs more, for each byte that it reads or writes."""

REORDERED = 0.7
"""What eager's call costs more than one by a packing, for each byte of the weight."""

WIDE = 1.0
"""What a convolution with its channels last costs more, for each byte of a weight that is not packed, its window more than
one point: oneDNN, or a kernel of polytile's, brings it into another order in each call."""

NARROW = 8
"""Channels in each group's results up to which a transposed convolution of images in planes is the faster one: eight groups of
12 take 1.7 ms in planes and 0.9 with channels last, four of 8 take 1.0 and 1.4."""

NEVER = math.inf


@dataclass(frozen=True)
class Cost:
    """What a convolution costs more than its best, in planes and with its channels last."""

    planes: float
    last: float


def cost_of(images: float, weight: float, points: int, groups: int, transposed: bool, filters: int, way: str) -> Cost:
    """The cost of a convolution that reads and writes `images` bytes by a weight of `weight` bytes, in a window of `points`.
    `filters`: the weight's second size, which of a transposed convolution is the channels in each group's results. What becomes
    of the weight is the `way`: "packed", "laid out" with its channels last in each pass, or "plain"."""
    if transposed and groups > 1 and filters <= NARROW:
        return Cost(0.0, 0.0)
    planes = images * (TRANSPOSED if transposed else GROUPED if groups > 1 else DENSE)
    if way == "packed":
        return Cost(min(planes + REORDERED * weight, images) if groups == 1 and not transposed else planes, 0.0)
    return Cost(planes, WIDE * weight if points > 1 else 0.0)


def bytes_of(image: torch.Tensor) -> float:
    """Bytes of an image at the sizes that were traced."""
    return math.prod(map(traced_size, image.shape)) * image.element_size()


@dataclass
class Layouts:
    """The nodes of a graph, and what layouts cost them."""

    planes: dict[Hashable, float] = field(default_factory=dict)
    """By node, what it costs to be in planes."""
    last: dict[Hashable, float] = field(default_factory=dict)
    """By node, what it costs to have its channels last."""
    readers: list[tuple[Hashable, frozenset[Hashable], float]] = field(default_factory=list)
    """A node, what reads it, and what it costs to give it, once, to those of another layout."""

    def add(self, node: Hashable, cost: Cost) -> None:
        self.planes[node] = self.planes.get(node, 0.0) + cost.planes
        self.last[node] = self.last.get(node, 0.0) + cost.last

    def read(self, node: Hashable, readers: Iterable[Hashable], conversion: float) -> None:
        self.readers.append((node, frozenset(readers) - {node}, conversion))

    def cheapest(self) -> set[Hashable]:
        """The nodes that have their channels last in the cheapest assignment, in planes where both cost the same."""
        import networkx  # torch needs it; it takes 0.2 s to import

        graph = networkx.DiGraph()
        graph.add_nodes_from(("planes", "last"))
        for node, cost in self.planes.items():
            _edge(graph, node, "last", cost)
        for node, cost in self.last.items():
            _edge(graph, "planes", node, cost)
        for k, (node, readers, conversion) in enumerate(self.readers):
            for reader in readers:
                _edge(graph, ("to last", k), reader, NEVER)
                _edge(graph, reader, ("to planes", k), NEVER)
            _edge(graph, node, ("to last", k), conversion)
            _edge(graph, ("to planes", k), node, conversion)
        _, (_, last) = networkx.minimum_cut(graph, "planes", "last")
        return set(last)


def _edge(graph: Any, start: Hashable, end: Hashable, capacity: float) -> None:
    if capacity > 0:
        graph.add_edge(start, end, **({} if capacity == NEVER else {"capacity": capacity}))
