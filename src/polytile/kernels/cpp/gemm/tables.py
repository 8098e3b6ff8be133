"""Which configs to try: one table per instruction set in canonical order (ties go to the first), all-rounders first.

Chosen on an AMD EPYC (Zen 5, AVX-512; AVX2 on the same machine) over M 1..1024, K and N 768..3072, squares 64..1024 and
attention shapes; NEON's rows follow from its 32 registers of 4 lanes and are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from polytile.kernels.cpp.gemm.common import ACCUMULATOR_BYTES
from polytile.kernels.cpp.gemm.spec import GemmConfig, GemmSpec

FULL = ("float32", "float64")
HALF = ("bfloat16",)
EVERY = FULL + HALF


@dataclass(frozen=True)
class Row:
    """A config and the specs it is meant for: storage dtypes, layouts of A, layouts of B."""

    config: GemmConfig
    dtypes: tuple[str, ...] = EVERY
    a: tuple[str, ...] = ("k", "m", "any")
    b: tuple[str, ...] = ("n", "k", "any")


# Register tiles fill 32 registers: 6x4 or 12x2 or 8x3 sums, the vectors of B and one of A. 6x4 packed is within 3 %
# of the best from M = 64 on; 8x3 direct wins below it for a row-major B; 12x2 with packed A wins where A's k is far
# apart and K long.
AVX512 = (
    Row(GemmConfig("tile_packed", 6, 4, kc=1024, pairs=True), HALF),
    Row(GemmConfig("tile_packed", 6, 4, kc=1024), FULL, a=("k", "m")),
    Row(GemmConfig("tile_packed", 6, 4, kc=1024, pack_a=True), HALF),
    Row(GemmConfig("tile_packed", 12, 2, kc=1024, pack_a=True), FULL, a=("m", "any")),
    Row(GemmConfig("tile_direct", 8, 3, kc=1024), FULL, b=("n",)),
    Row(GemmConfig("tile_direct", 8, 3, kc=1024, pack_a=True), HALF, b=("n",)),
    Row(GemmConfig("tile_direct", 6, 4, kc=256), FULL, b=("n",)),
    Row(GemmConfig("stream", 8, 1, nc=512, unroll=8), b=("n",)),
    Row(GemmConfig("dot", 6, 4, kc=2048, unroll=2, pairs=True), HALF, b=("k",)),
    Row(GemmConfig("dot", 6, 4, kc=1024, unroll=2), b=("k",)),
    Row(GemmConfig("small", 8, 2, kc=256)),
    Row(GemmConfig("splitk", 6, 4, kc=256), FULL),
)

# 16 registers: 6x2 or 4x3 sums. One row of A against four columns beats two columns for M = 1 and 2 only.
AVX2 = (
    Row(GemmConfig("tile_packed", 6, 2, kc=1024), FULL, a=("k", "m")),
    Row(GemmConfig("tile_packed", 6, 2, kc=1024, pack_a=True), FULL, a=("any",)),
    Row(GemmConfig("tile_packed", 6, 2, kc=1024, pack_a=True), HALF),
    Row(GemmConfig("tile_direct", 4, 3, kc=1024), FULL, b=("n",)),
    Row(GemmConfig("stream", 4, 1, nc=512, unroll=4), b=("n",)),
    Row(GemmConfig("dot", 6, 2, kc=1024, unroll=2), b=("k",)),
    Row(GemmConfig("dot", 2, 4, kc=1024), b=("k",)),
    Row(GemmConfig("small", 6, 2, kc=256)),
    Row(GemmConfig("splitk", 6, 2, kc=256), FULL),
)

GENERIC128 = (
    Row(GemmConfig("tile_packed", 8, 3, kc=512), FULL, a=("k", "m")),
    Row(GemmConfig("tile_packed", 8, 3, kc=512, pack_a=True), FULL, a=("any",)),
    Row(GemmConfig("tile_packed", 8, 3, kc=512, pack_a=True), HALF),
    Row(GemmConfig("tile_direct", 6, 4, kc=512), FULL, b=("n",)),
    Row(GemmConfig("stream", 8, 1, nc=512, unroll=4), b=("n",)),
    Row(GemmConfig("dot", 6, 4, kc=1024, unroll=2), b=("k",)),
    Row(GemmConfig("small", 8, 2, kc=256)),
    Row(GemmConfig("splitk", 8, 3, kc=256), FULL),
)

BY_VECTOR_BYTES: dict[int, tuple[Row, ...]] = {64: AVX512, 32: AVX2, 16: GENERIC128}


def configs(spec: GemmSpec, lanes: int) -> tuple[GemmConfig, ...]:
    """The configs worth trying for `spec` with vectors of `lanes` sums, in canonical order.

    Raises ValueError where no instruction set has vectors of that size.
    """
    size = lanes * ACCUMULATOR_BYTES[spec.accumulator]
    if size not in BY_VECTOR_BYTES:
        known = ", ".join(str(b // ACCUMULATOR_BYTES[spec.accumulator]) for b in sorted(BY_VECTOR_BYTES))
        raise ValueError(f"no matmul configs for vectors of {lanes} {spec.accumulator}; there are tables for {known}.")
    return tuple(
        row.config
        for row in BY_VECTOR_BYTES[size]
        if spec.dtype in row.dtypes and spec.a_layout in row.a and spec.b_layout in row.b
    )
