"""The products of linear layers, known before there is a graph: their register tiles may be compiled while it is traced.

A layer multiplies rows by a transposed weight. Which of the configs its products take depends on their sizes; all of them are of
a few tiles (shared_tiles.py), which every such product of the type shares.
"""

from __future__ import annotations

from collections.abc import Iterator

from polytile.codegen.function_names import ENTRY
from polytile.matmul.cpp import configs, generate
from polytile.matmul.cpp.spec import GemmSpec
from polytile.matmul.packed_weights import lanes_of

DTYPE = "float32"
"""Type of the operands. Tiles of other types are compiled when a kernel needs them."""


def texts() -> Iterator[str]:
    """The text of a product by each config that one of two float32 operands may take, in canonical order."""
    spec = GemmSpec(dtype=DTYPE, a_layout="k", b_layout="k", out_dtype=DTYPE)
    lanes = lanes_of(spec)
    for config in configs(spec, lanes, prepacked=True):
        yield generate(spec, config, ENTRY, None, lanes)
