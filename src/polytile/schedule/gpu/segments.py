"""Ways for a GPU to add up rows by an index (segment sums). The values appear in candidates' names and in configs
(`variant`).

    for p in points: table[index[p], :] += x[p, :]          with zeros where no point falls

ATOMIC             table[:] = 0; for p in programs: atomic_add(table[index[p], :], x[p, :])
                   Legal for any table. Costs the zeros and an atomic per element; atomics contend where many points
                   share a row. PyTorch: index_add; TVM: scatter_add
FIRST_OCCURRENCE   table[:] = 0; for p in programs: if index[p] not in index[:p]: table[index[p], :] = sum of its points
                   No atomics, a fixed order. Costs the zeros; every point scans all indices before its own. For few points
                   per row. No name in PyTorch, TVM or CUB
OWNER_COMPUTES     for row in programs: table[row, :] = sum(x[p, :] for p in points if index[p] == row)
                   One launch, zeros included. Every row scans all indices, which suits few rows or few points. HPF: the
                   owner-computes rule
SORTED             points = counting_sort(index); for row in programs: table[row, :] = sum(x[p, :] for p in points of row)
                   Reads each point once. Legal up to the number of points that a cluster of programs holds. Costs a
                   launch. CUB: radix sort and segmented reduce; PyTorch: embedding backward

All but ATOMIC require a table whose rows are picked by one index (codegen/triton/segment_sums.py).
"""

from __future__ import annotations

import enum

from polytile.problem import Config


class Segments(enum.Enum):
    """A way to add up rows by an index."""

    ATOMIC = "atomic"
    FIRST_OCCURRENCE = "first_occurrence"
    OWNER_COMPUTES = "owner_computes"
    SORTED = "sorted"

    @classmethod
    def named(cls, config: Config) -> Segments | None:
        """The one that a config names; None if it names a schedule of points, rows or columns."""
        return _BY_NAME.get(str(config["variant"]))


_BY_NAME = {one.value: one for one in Segments}
