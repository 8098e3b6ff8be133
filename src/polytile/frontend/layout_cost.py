"""Which images of a graph should be channels-last: the assignment with the lowest cost, conversions included.

    x → conv → y                  1 conversion of x, 1 of y, to save 0.4 of x and y      planes
    x → conv → conv → conv → y    the same conversions, to save 0.4 of each that is read or written     channels last

Every convolution, and every image that may have either layout, is a node that is assigned planes (NCHW) or channels-last. The
extra cost of a convolution in a layout, and of a conversion between nodes that differ, are capacities of edges; the cheapest
assignment is a minimum cut. Costs are in bytes of a conversion, at the traced sizes. As gains and conversions grow alike with the
images, one assignment serves all sizes.

The constants are measured (36 convolutions, one thread, AVX2 and AVX-512; a conversion takes 0.12 to 0.18 ms per MiB). For
images in planes, ATen's convolution takes 0.02 to 0.12 ms more per MiB that it reads and writes, with groups 0.04 to 0.26,
transposed 0.3 to 1. On an H200 in bfloat16 it saves more, 0.4 µs per MiB where a conversion takes 0.5; the same constants
serve. Known wrong: a 7×7 window over three channels with AVX2 is faster in planes (2.3 ms instead of 3.0).
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
"""Extra cost of a convolution of images in planes, per byte that it reads or writes."""

REORDERED = 0.7
"""Extra cost of eager's call compared with one on packed weights, per byte of the weight."""

WIDE = 1.0
"""Extra cost of a channels-last convolution per byte of an unpacked weight, if its window has more than one point: oneDNN, or a
generated kernel, reorders it in each call."""

NARROW = 8
"""Channels per group of the result up to which a transposed convolution is faster in planes: eight groups of 12 take 1.7 ms in
planes and 0.9 channels-last, four of 8 take 1.0 and 1.4."""

NEVER = math.inf


@dataclass(frozen=True)
class Cost:
    """The extra cost of a convolution over its best, in planes and channels-last."""

    planes: float
    last: float


def cost_of(images: float, weight: float, points: int, groups: int, transposed: bool, filters: int, way: str) -> Cost:
    """The cost of a convolution that reads and writes `images` bytes with a weight of `weight` bytes and a window of `points`.

    `filters` is the weight's second size: for a transposed convolution, the channels per group of the result. `way` says how the
    weight is treated: "packed", "laid out" channels-last in each pass, or "plain".
    """
    if transposed and groups > 1 and filters <= NARROW:
        return Cost(0.0, 0.0)
    planes = images * (TRANSPOSED if transposed else GROUPED if groups > 1 else DENSE)
    if way == "packed":
        return Cost(min(planes + REORDERED * weight, images) if groups == 1 and not transposed else planes, 0.0)
    return Cost(planes, WIDE * weight if points > 1 else 0.0)


def bytes_of(image: torch.Tensor) -> float:
    """Bytes of an image at the traced sizes."""
    return math.prod(map(traced_size, image.shape)) * image.element_size()


@dataclass
class Layouts:
    """The nodes of a graph, and their costs in each layout."""

    planes: dict[Hashable, float] = field(default_factory=dict)
    """The cost of each node in planes."""
    last: dict[Hashable, float] = field(default_factory=dict)
    """The cost of each node in channels-last layout."""
    readers: list[tuple[Hashable, frozenset[Hashable], float]] = field(default_factory=list)
    """A node, its readers, and the cost of converting it once for those in the other layout."""

    def add(self, node: Hashable, cost: Cost) -> None:
        self.planes[node] = self.planes.get(node, 0.0) + cost.planes
        self.last[node] = self.last.get(node, 0.0) + cost.last

    def read(self, node: Hashable, readers: Iterable[Hashable], conversion: float) -> None:
        self.readers.append((node, frozenset(readers) - {node}, conversion))

    def cheapest(self) -> set[Hashable]:
        """The channels-last nodes in the cheapest assignment. Ties are planes."""
        import networkx  # a dependency of torch; importing takes 0.2 s

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
