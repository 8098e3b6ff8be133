"""Trees as one flat table, read by C (forest.c), or by Python without a compiler.

The nodes of all trees are consecutive, with siblings adjacent. A node with feature ≥ 0 moves `down` this many nodes if the row's
feature is at most `number`, and one further if it is greater. A leaf has feature -1, and `number` is its value. A node takes 8
bytes in C: a float32 and two 16-bit integers.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from polytile.errors import CacheError, CompileFailed, CompilerMissing, OptionError
from polytile.runtime import compile as compiler

log = logging.getLogger("polytile")

NODE = struct.Struct("fhH")

Walk = Callable[..., None]
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p
)


@dataclass(frozen=True)
class Forest:
    """Trees with the first nodes `roots`; `feature`, `down` and `number` have one entry per node. Raises OptionError if a walk
    might not end."""

    roots: tuple[int, ...]
    feature: tuple[int, ...]
    down: tuple[int, ...]
    number: tuple[float, ...]

    def __post_init__(self) -> None:
        nodes = len(self.feature)
        alike = len(self.down) == len(self.number) == nodes and all(0 <= root < nodes for root in self.roots)
        ends = alike and all(
            feature == -1 or (0 <= feature < 1 << 15 and 0 < down < min(1 << 16, nodes - 1 - here))
            for here, (feature, down) in enumerate(zip(self.feature, self.down, strict=True))
        )
        if not (self.roots and ends):
            raise OptionError("a forest has a root or more, and each node's children stand behind it; here they do not.")

    @property
    def table_bytes(self) -> int:
        """Size of the table in C, in bytes."""
        return NODE.size * len(self.feature)

    def says(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """The value of each tree for each row: one list of the rows' values per tree."""
        walk = _compiled()
        if walk is None:
            return [[self._leaf_value(root, row) for row in rows] for root in self.roots]
        count, trees, (nodes, roots) = len(rows), len(self.roots), self._packed
        values, out = array("d", [value for row in rows for value in row]), array("d", bytes(8 * count * trees))
        width = len(rows[0]) if rows else 0
        walk(nodes, roots.buffer_info()[0], trees, values.buffer_info()[0], count, width, out.buffer_info()[0])
        return [list(out[k * count : (k + 1) * count]) for k in range(trees)]

    @cached_property
    def _packed(self) -> tuple[bytes, array[int]]:
        nodes = zip(self.number, self.feature, self.down, strict=True)
        return b"".join(NODE.pack(*node) for node in nodes), array("i", self.roots)

    @cached_property
    def _numbers(self) -> array[float]:
        """The numbers as float32, with which C compares."""
        return array("f", self.number)

    def _leaf_value(self, node: int, row: Sequence[float]) -> float:
        while (feature := self.feature[node]) >= 0:
            node += self.down[node] + (row[feature] > self._numbers[node])
        return self._numbers[node]


@functools.cache
def prepare() -> compiler.Compilation:
    """Once in a process: start compiling the C code that reads forests, unless it is compiled already."""
    source = Path(__file__).with_name("forest.c").read_text(encoding="utf-8")
    return compiler.compile_c("forest", source)


def _compiled() -> Walk | None:
    """The C function; None while it is being compiled, which nothing waits for, or without a compiler."""
    promise = prepare()
    if not promise.done():
        return None
    return _loaded(promise)


@functools.cache
def _loaded(promise: compiler.Compilation) -> Walk | None:
    try:
        walk: Walk = _SIGNATURE(compiler.load(promise.result(), "polytile_forest"))
    except (CompilerMissing, CompileFailed, CacheError) as error:
        log.info("learned models are read by Python: %s", str(error).partition("\n")[0])
        return None
    return walk
