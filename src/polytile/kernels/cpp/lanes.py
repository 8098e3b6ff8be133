"""How wide the vectors of a loop are in C++, and which loads gather."""

from __future__ import annotations

from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.kernels.nest import Nest


def lane_bytes(nest: Nest) -> int:
    """Width of the widest element type that lives in vectors: it decides the number of lanes."""
    vectors = [n for n in nest.nodes if nest.is_vector(n)]
    if any(n.dtype.itemsize == 8 or (isinstance(n, Load) and gathers(nest, n)) for n in vectors):
        return 8
    return 4


def gathers(nest: Nest, load: Load) -> bool:
    """Whether a vector load needs a vector of indices."""
    return any(nest.is_vector(i) for i in load.indirect) or sizes.coefficient(load.index, nest.vec.symbol) is None
