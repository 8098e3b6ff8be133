"""Which configs a product has on a GPU, and at which sizes each takes part.

The tables of the device family's heuristic hold blocks for large sizes; at smaller ones the heuristic cuts them. As sizes are
known only when a call comes, the candidates are all that any sizes could lead to, and a candidate takes part where the
heuristic would try it. Splits along K and products of few rows have rows of their own below.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polytile.kernels.configs import Request, heuristic
from polytile.kernels.configs.heuristic import next_power
from polytile.kernels.configs.records import Gemm, tile_config
from polytile.kernels.triton.gemm.schedules import MOST_ROWS
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

SIZES = (16, 32, 64, 128, 256)
"""Sizes by which blocks are cut: at larger ones they are as the tables have them."""

THIN = (Gemm(16, 32, 256, 4, 4), Gemm(16, 64, 128, 4, 4), Gemm(16, 128, 64, 5, 4), Gemm(32, 64, 128, 4, 4))
"""Blocks for few rows, where reading B is all there is to do: long runs of k, many loads under way."""
SPLIT = (
    Gemm(16, 32, 256, 3, 4), Gemm(16, 64, 128, 4, 4), Gemm(16, 128, 64, 4, 4), Gemm(32, 64, 128, 3, 4), Gemm(64, 64, 64, 4, 4),
    Gemm(64, 128, 64, 3, 4), Gemm(128, 128, 64, 3, 8),
)  # fmt: skip
SPLITS = (2, 4, 8, 16, 32)
ROWS = ((16, 256, 4), (32, 128, 4), (32, 256, 8), (64, 64, 4), (8, 512, 4), (128, 32, 4), (256, 16, 4))
"""(n, k, warps) of the variant `rows`."""
LARGEST_SCRATCH = 64 << 20
"""Bytes that the parts of a split product may take."""
THIN_UP_TO = 64
TENSOR_SUMS, PLAIN_SUMS = 128, 64


@dataclass(frozen=True)
class Kind:
    """What decides which tables a product takes: the bytes of an element as the tensor cores take it, whether an operand is
    int8, whether operands are 8-bit floats, whether an operand is widened on its way, whether float32 is rounded to TF32."""

    itemsize: int = 2
    int8: bool = False
    float8: bool = False
    mixed: bool = False
    tf32: bool = False

    @property
    def most_sums(self) -> int:
        """Sums of a thread beyond which a kernel spills: without tensor cores the operands stand in registers too."""
        return PLAIN_SUMS if self.itemsize == 4 and not self.tf32 else TENSOR_SUMS

    @property
    def tables(self) -> tuple[str, ...]:
        """Of blocks that programs take one by one."""
        if self.float8:
            return ("scaled_mm",)
        if self.int8 and not self.mixed:
            return ("int8_mm",)
        return ("mm", "mixed_mm") if self.mixed else ("mm",)

    @property
    def persistent_table(self) -> str:
        return "scaled_persistent_mm" if self.float8 else "persistent_mm"


@functools.cache
def configs(kind: Kind, device: DeviceFacts) -> tuple[Config, ...]:
    """All configs in canonical order: plain blocks, persistent ones, splits, few rows."""
    found: dict[Config, None] = {}
    for m, n, k in itertools.product(reversed(SIZES), repeat=3):
        found.update(dict.fromkeys(_tiles(kind, device, m, n, k)))
    found.update(dict.fromkeys(tile_config(row, variant="tile") for row in THIN if _fits(row, kind, device)))
    for m, n, k in itertools.product(reversed(SIZES), repeat=3):
        found.update(dict.fromkeys(_persistent(kind, device, m, n, k)))
    for row, splits in itertools.product(SPLIT, SPLITS):
        if _fits(row, kind, device):
            found[tile_config(row, variant="split", splits=splits)] = None
    for n, k, warps in ROWS:
        found[Config.of(variant="rows", m=1, n=n, k=k, stages=3, warps=warps)] = None
    return tuple(found)


@functools.cache
def _tiles(kind: Kind, device: DeviceFacts, m: int, n: int, k: int) -> tuple[Config, ...]:
    return tuple(_tried(kind, device, kind.tables, "tile", m, n, k))


@functools.cache
def _persistent(kind: Kind, device: DeviceFacts, m: int, n: int, k: int) -> tuple[Config, ...]:
    """Descriptors came with capability 9.0; a block of theirs is 64 wide at least, as their copies are."""
    if device.capability < 90 or min(m, n, k) < 64:
        return ()
    return tuple(_tried(kind, device, (kind.persistent_table,), "persistent", m, n, k))


def _tried(
    kind: Kind, device: DeviceFacts, tables: tuple[str, ...], variant: str, m: int, n: int, k: int
) -> Iterator[Config]:
    for table in tables:
        request = Request(m, n, k, table, kind.itemsize, kind.int8, shared_bytes=device.shared_per_block)
        for config in heuristic("cuda").configs(request):
            if config.accumulators <= kind.most_sums:
                yield tile_config(config, variant=variant)


def _fits(row: Gemm, kind: Kind, device: DeviceFacts) -> bool:
    return row.accumulators <= kind.most_sums and row.shared_bytes(kind.itemsize, 2) <= device.shared_per_block


def valid(kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts) -> bool:
    """Whether `config` is worth trying at these sizes; every config is right at all of them, but `rows` knows its rows."""
    m, n, k = size["M"], size["N"], size["K"]
    variant = config["variant"]
    if variant == "rows":
        return 1 <= m <= MOST_ROWS
    if variant == "persistent":
        return config in _persistent(kind, device, *map(_cut, (m, n, k)))
    if variant == "tile":
        return config in _tiles(kind, device, *map(_cut, (m, n, k))) or (m <= THIN_UP_TO and config in _thin())
    block_m, block_n, block_k, splits = (int(config[name]) for name in ("m", "n", "k", "splits"))
    programs = size["batch"] * -(-m // block_m) * -(-n // block_n)
    enough = k >= 2 * splits * block_k and programs * splits <= 4 * device.sms
    small = max(16, next_power(m)) >= block_m and next_power(n) >= block_n
    return enough and small and splits * size["batch"] * m * n * 4 <= LARGEST_SCRATCH


@functools.cache
def _thin() -> frozenset[Config]:
    return frozenset(tile_config(row, variant="tile") for row in THIN)


def _cut(size: int) -> int:
    return min(max(next_power(size), SIZES[0]), SIZES[-1])


__all__ = ["Kind", "configs", "valid"]
