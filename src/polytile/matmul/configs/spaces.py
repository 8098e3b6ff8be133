"""Exhaustive search spaces: every config worth trying when time does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from polytile.matmul.configs.records import Flex, FlexDecode, Gemm, RocmFlex, RocmFlexDecode, RocmGemm

BLOCKS = (16, 32, 64, 128, 256)
STAGES, WARPS = (1, 2, 3, 4, 5), (2, 4, 8)
ROCM_WARPS, ROCM_GROUPS, NONKDIM, WAVES = (4, 8), (4, 8, 16), (0, 16), (0, 2)
FLEX_M, FLEX_N, FLEX_STAGES = (16, 32, 64, 128), (32, 64, 128), (1, 3, 4, 5)
FLEX_BLOCKS = (16, 32, 64, 128)
ROCM_FLEX_STAGES = (1, 2)


def gemm() -> Iterator[Gemm]:
    """Every combination of tile, stages and warps of a product."""
    for m, n, k, stages, warps in product(BLOCKS, BLOCKS, BLOCKS, STAGES, WARPS):
        yield Gemm(m, n, k, stages, warps)


def rocm_gemm(default_stages: int) -> Iterator[RocmGemm]:
    """The same for AMD GPUs, with one stage or the backend's default."""
    numbers = product(BLOCKS, BLOCKS, BLOCKS, (1, default_stages), ROCM_WARPS, ROCM_GROUPS, NONKDIM, WAVES)
    for m, n, k, stages, warps, group, nonkdim, waves in numbers:
        yield RocmGemm(m, n, k, stages, warps, group, matrix_instr_nonkdim=nonkdim, waves_per_eu=waves)


def flex_forward(rocm: bool) -> Iterator[Flex]:
    """Tiles of queries by tiles of keys."""
    yield from _flex(((m, n) for m, n in product(FLEX_M, FLEX_N)), rocm, WARPS)


def flex_backward(rocm: bool) -> Iterator[Flex]:
    """Tiles in which the block of keys is a multiple of the block of queries."""
    yield from _flex(((m, n) for m, n in product(FLEX_BLOCKS, FLEX_BLOCKS) if n % m == 0), rocm, WARPS)


def flex_backward_autotune(rocm: bool) -> Iterator[Flex]:
    """The smaller set to try by default, with eight warps from 128 keys on."""
    for m, n in product((32, 64), (32, 64, 128)):
        yield from _flex(iter([(m, n)]), rocm, (4, 8) if n >= 128 else (4,))


def _flex(blocks: Iterator[tuple[int, int]], rocm: bool, warps: tuple[int, ...]) -> Iterator[Flex]:
    for m, n in blocks:
        if not rocm:
            yield from (Flex(m, n, stages, w) for stages, w in product(FLEX_STAGES, warps))
            continue
        for stages, w, nonkdim, waves in product(ROCM_FLEX_STAGES, warps, NONKDIM, WAVES):
            yield RocmFlex(m, n, stages, w, matrix_instr_nonkdim=nonkdim, waves_per_eu=waves)


def flex_decode(rocm: bool) -> Iterator[FlexDecode]:
    """Tiles of keys, for few queries."""
    if not rocm:
        yield from (FlexDecode(n, stages, w) for n, stages, w in product(FLEX_BLOCKS, FLEX_STAGES, WARPS))
        return
    for n, stages, w, nonkdim, waves in product(FLEX_BLOCKS, ROCM_FLEX_STAGES, WARPS, NONKDIM, WAVES):
        yield RocmFlexDecode(n, stages, w, matrix_instr_nonkdim=nonkdim, waves_per_eu=waves)
