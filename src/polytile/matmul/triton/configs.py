"""The configs of a product on a GPU, and the sizes at which each is tried.

The tables of the device family's heuristic hold tiles for large sizes; the heuristic shrinks them for smaller ones. Since sizes
are known only at a call, the candidates are all configs that any sizes could lead to, and a candidate is tried where the
heuristic would try it. Split-K and products of few rows have tables of their own below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile import options
from polytile.matmul.configs import Heuristic, Request, heuristic, heuristic_of
from polytile.matmul.configs.files import Tables
from polytile.matmul.configs.heuristic import next_power
from polytile.matmul.configs.records import Gemm, tile_config
from polytile.matmul.triton.schedule import BY_NAME, ProductSchedule, schedule_of
from polytile.matmul.triton.schedules import MOST_ROWS
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

SIZES = (16, 32, 64, 128, 256)
"""Sizes at which tiles are shrunk; at larger ones they are used as they are in the tables."""

FEW = (64, 64, 64)
"""A size whose tiles are also tried at larger sizes, as long as there are no more tiles than multiprocessors.

On an H100, for x @ y in bfloat16, 64x32x64 is the fastest from 128³ to 512³, by 9 to 18 % over the heuristic's tiles for those
sizes. From 576³ on, where it needs a second wave, it is the second slowest.
"""

THIN = (
    Gemm(16, 32, 256, 4, 4), Gemm(16, 64, 128, 4, 4), Gemm(16, 64, 256, 4, 4), Gemm(16, 128, 64, 5, 4), Gemm(16, 128, 128, 4, 8),
    Gemm(32, 64, 128, 4, 4),
)  # fmt: skip
"""Tiles for few rows, where the time goes into reading B: long blocks of k, many loads in flight."""
SPLIT = (
    Gemm(16, 32, 256, 3, 4), Gemm(16, 64, 128, 4, 4), Gemm(16, 128, 64, 4, 4), Gemm(32, 64, 128, 3, 4), Gemm(64, 64, 64, 4, 4),
    Gemm(64, 128, 64, 3, 4), Gemm(128, 128, 64, 3, 8),
)  # fmt: skip
SWAPPED = (
    Gemm(16, 64, 128, 5, 4), Gemm(16, 64, 128, 8, 4), Gemm(16, 128, 64, 5, 4), Gemm(16, 128, 128, 3, 4),
)  # fmt: skip
"""Tiles for few rows in which B is the left operand of the tensor cores: plain, split-K and stream-K.

From the left, the tensor cores read 64 rows at a time directly from shared memory, and rows past the end of A are not read. For B
contiguous along k. In bfloat16 on an H100, the best of them took 7.6 µs at 16×4096×4096 and the best of the others 8.3; at
16×4096×14336 it was 42.1 and 42.9.
"""
SWAPPED_FROM = 90
"""Minimum compute capability for that."""
IN_PARTS = (
    (Gemm(128, 256, 64, 4, 8), 4, 1), (Gemm(256, 128, 64, 4, 8), 4, 1), (Gemm(128, 256, 64, 3, 8), 2, 0),
)  # fmt: skip
"""(tile, stores, flat) of persistent programs that store a tile's columns in parts. With `flat`, the loads for the next tile
start during the stores.

In bfloat16 on an H100, with hand-written kernels and tensor descriptors made on the host, the first took 205, 328 and 712 µs with
a ReLU at 4096x4096x4096, 2048x4096x14336 and 4096x14336x4096. Whole tiles with three stages took 212, 351 and 733, and cuBLAS
with a separate ReLU 228, 359 and 767. With bias and GELU, which need more work per element, the first took 252 against 227 at
4096x4096x4096, where the last took 223.
"""
SPLITS = (2, 4, 8, 16, 32)
STREAM = (
    Gemm(16, 64, 128, 5, 4), Gemm(16, 128, 128, 4, 8), Gemm(64, 64, 64, 4, 4), Gemm(64, 128, 64, 3, 4), Gemm(128, 128, 64, 4, 8),
    Gemm(128, 256, 64, 3, 8), Gemm(256, 128, 64, 3, 8),
)  # fmt: skip
FEWEST_STEPS, MOST_PARTS, FULL_ROUNDS, MOST_ROUNDS = 4, 16, 0.9, 4
"""Limits of stream-K: the minimum number of steps per multiprocessor and the maximum number of parts per tile. Whole tiles are
used if they keep this share of the multiprocessors busy, or take more waves than this."""
ROWS = (
    (16, 256, 3, 4), (32, 128, 3, 4), (32, 256, 3, 8), (64, 64, 3, 4), (8, 512, 3, 4), (128, 32, 3, 4), (256, 16, 3, 4),
    (16, 512, 3, 4), (16, 256, 5, 4),
)  # fmt: skip
"""(n, k, stages, warps) of the variant `rows`."""
GROUPED = (
    Gemm(16, 64, 128, 4, 4), Gemm(16, 128, 64, 5, 4), Gemm(16, 128, 128, 3, 4), Gemm(32, 64, 128, 3, 4), Gemm(32, 128, 64, 4, 4),
    Gemm(64, 64, 64, 4, 4), Gemm(64, 128, 64, 4, 4), Gemm(64, 256, 64, 3, 8), Gemm(128, 128, 64, 3, 4), Gemm(128, 128, 64, 4, 8),
    Gemm(128, 256, 64, 3, 8), Gemm(16, 32, 64, 4, 4), Gemm(32, 64, 32, 3, 4), Gemm(64, 64, 32, 3, 4), Gemm(64, 128, 32, 3, 8),
    Gemm(128, 128, 32, 3, 8),
)  # fmt: skip
"""Tiles of grouped products. For small groups: few rows, with B read once each. The last five serve float32 as well."""
GROUPED_DESCRIBED = (
    (Gemm(64, 128, 64, 3, 4), 0), (Gemm(64, 128, 64, 4, 4), 0), (Gemm(64, 256, 64, 4, 4), 2), (Gemm(128, 128, 64, 3, 4), 0),
    (Gemm(128, 256, 64, 3, 8), 2), (Gemm(128, 256, 64, 4, 8), 4),
)  # fmt: skip
"""(tile, stores) of products of groups of rows whose operands are loaded through tensor descriptors; without stores, tiles are
whole. They were chosen among fifteen for experts of Mixtral and Qwen3-30B-A3B on an H200. Along k descriptors gained nothing:
groups end there after a few steps.
"""
MOST_PLACES = 8
"""Maximum number of programs per multiprocessor that loop over tiles of grouped products."""
LARGEST_SCRATCH = 64 << 20
"""Maximum scratch memory of a split product in bytes."""
THIN_UP_TO = 64
"""Maximum number of rows at which thin tiles are tried."""
DESCRIPTORS_FROM, SMALLEST_DESCRIBED = 90, 64
TENSOR_SUMS, PLAIN_SUMS = 128, 64
"""Maximum number of accumulators per thread without spilling, with tensor cores and without."""


@dataclass(frozen=True)
class Kind:
    """What decides which tables a product uses.

    Attributes
    ----------
    itemsize
        Bytes of an element as the tensor cores take it.
    int8
        An operand is read from 8-bit integers.
    float8
        The operands are 8-bit floats.
    mixed
        An operand is converted or computed as it is read.
    tf32
        float32 operands are rounded to TF32.
    dual
        A second product is added to the accumulator.
    grouped
        The axis of the groups of a grouped product, or "".
    words
        B is computed from packed words (packed_words.py).
    """

    itemsize: int = 2
    int8: bool = False
    float8: bool = False
    mixed: bool = False
    tf32: bool = False
    dual: bool = False
    grouped: str = ""
    words: bool = False

    @classmethod
    def of(cls, kernel: GemmKernel) -> Kind:
        """The kind of a product.

        For int4 weights, a mask, or 8-bit floats that are widened, the dtype in memory counts. Triton gives a thread as many
        neighbours along k as fill a load of that dtype (kWidth 8 for int4, with four threads per row). They do not fit in a step
        of 16 along k, which gives wrong results on a device, although correct ones in the interpreter.
        """
        dtype, stored = kernel.in_dtype, kernel.operand_dtypes
        read = {tensor.dtype for tensors in kernel.inputs for tensor in tensors}
        return cls(
            dtype.itemsize,
            any(each.itemsize == 1 and (not each.is_floating_point or dtype.itemsize > 1) for each in read),
            dtype.is_floating_point and dtype.itemsize == 1,
            any(each != dtype for each in stored) or any(kernel.prologues),
            kernel.tf32,
            kernel.second is not None,
            kernel.spec.grouped,
            kernel.int4 is not None,
        )

    @property
    def most_sums(self) -> int:
        """Maximum number of accumulators per thread without spilling. Without tensor cores the operands are in registers too;
        with 8-bit floats so are the accumulators of one step."""
        return PLAIN_SUMS if self.float8 or (self.itemsize == 4 and not self.tf32) else TENSOR_SUMS

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of non-persistent tiles."""
        if self.float8:
            return ("scaled_mm",)
        if self.int8 and not self.mixed:
            return ("int8_mm",)
        if self.dual and not self.mixed:
            return ("mm", "mm_plus_mm")
        return ("mm", "mixed_mm") if self.mixed else ("mm",)

    @property
    def persistent_table(self) -> str:
        return "scaled_persistent_mm" if self.float8 else "persistent_mm"


class Space:
    """All configs of one kind of product on one device, from the tables as they are when it is created."""

    def __init__(self, kind: Kind, device: DeviceFacts, exhaustive: bool = False) -> None:
        self.kind, self.device = kind, device
        cuts = [(m, n, k) for m in SIZES[::-1] for n in SIZES[::-1] for k in SIZES[::-1]]
        self._tiles = {cut: self._tried(kind.tables, "tile", cut) for cut in cuts}
        self._persistent = {cut: self._descriptors(cut) for cut in cuts}
        thin = [*self._swapped("tile"), *self._configs_of(THIN, "tile")]
        self._thin = frozenset(thin)
        self._in_parts = self._stored_in_parts()
        by_parts = [[*self._swapped("split", splits=parts), *self._configs_of(SPLIT, "split", splits=parts)] for parts in SPLITS]
        splits = itertools.chain(*zip(*by_parts, strict=True))
        rows = [Config.of(variant="rows", m=1, n=n, k=k, stages=stages, warps=warps) for n, k, stages, warps in ROWS]
        stream = [*self._swapped("stream"), *self._configs_of(STREAM, "stream")]
        tiles, whole = (itertools.chain(*by_table.values()) for by_table in (self._tiles, self._persistent))
        persistent = [*whole, *self._in_parts]
        every = self._every() if exhaustive else []
        self._exhaustive = frozenset(every)
        plain = [*tiles, *thin, *persistent, *splits, *stream, *rows, *every]
        self.configs: tuple[Config, ...] = tuple(dict.fromkeys(self._grouped() if kind.grouped else plain))
        """In canonical order: plain tiles, persistent ones, split-K, stream-K, few rows, then the rest of the exhaustive
        space."""

    def _every(self) -> list[Config]:
        """The family's exhaustive space as plain and persistent tiles. `valid` restricts smaller sizes to the smaller tiles."""
        largest = (SIZES[-1],) * 3
        configs = self._tried(self.kind.tables[:1], "tile", largest, exhaustive=True)
        if self.device.capability >= DESCRIPTORS_FROM:
            described = self._tried((self.kind.persistent_table,), "persistent", largest, exhaustive=True)
            configs |= {c: None for c in described if min(int(c["m"]), int(c["n"]), int(c["k"])) >= SMALLEST_DESCRIBED}
        return list(configs)

    def _configs_of(self, table: tuple[Gemm, ...], variant: str, **more: int) -> list[Config]:
        """The configs of a table that fit on the device."""
        return [tile_config(row, variant=variant, **more) for row in table if self._fits(row)]

    def _grouped(self) -> list[Config]:
        """Tiles of grouped products. Along m, those with B as the left operand are included."""
        by_rows = self.kind.grouped == "m"
        tables: list[tuple[tuple[Gemm, ...], dict[str, int | str]]] = [(GROUPED, {"variant": "grouped"})]
        if by_rows and self._swapped("grouped"):
            tables.append((SWAPPED, {"variant": "grouped", "swapped": 1}))
        if by_rows and self._described:
            tables += [((row,), {"variant": "grouped_tma", "stores": stores}) for row, stores in GROUPED_DESCRIBED]
        return [
            tile_config(row, **more, **({"places": self._places(row)} if by_rows else {}))
            for table, more in tables for row in table if self._fits(row)
        ]  # fmt: skip

    def _places(self, row: Gemm) -> int:
        """Number of programs whose shared memory fits on a multiprocessor, at most MOST_PLACES."""
        own = row.shared_bytes(self.kind.itemsize, 2)
        return min(MOST_PLACES, max(1, self.device.shared_per_block // own))

    def _swapped(self, variant: str, **more: int) -> list[Config]:
        plain = self.kind.words or not self.kind.mixed
        able = self.kind.itemsize == 2 and plain and self.device.capability >= SWAPPED_FROM
        return self._configs_of(SWAPPED, variant, swapped=1, **more) if able else []

    def _tried(
        self, tables: tuple[str, ...], variant: str, cut: tuple[int, int, int], exhaustive: bool = False
    ) -> dict[Config, None]:
        """What the heuristic tries at sizes that shrink tiles to `cut`, in its order."""
        configs: dict[Config, None] = {}
        for table in tables:
            narrow = self.kind.int8 or self.kind.float8  # the tensor cores' step along k, or 4 threads by 8
            limit = self.device.shared_per_block
            request = Request(*cut, table, self.kind.itemsize, narrow, exhaustive=exhaustive, shared_bytes=limit)
            for config in self._family(table).configs(request):
                if config.accumulators <= self.kind.most_sums:
                    configs[tile_config(config, variant=variant)] = None
        return configs

    def _family(self, table: str) -> Heuristic:
        """The heuristic whose rows of the table are tried."""
        serving = heuristic_of(self.device)
        return serving if table in serving.tables else heuristic(self.device.family)

    def _descriptors(self, cut: tuple[int, int, int]) -> dict[Config, None]:
        """Persistent tiles. They need tensor descriptors, available from capability 9.0, whose copies are at least 64 wide."""
        if self.device.capability < DESCRIPTORS_FROM or min(cut) < SMALLEST_DESCRIBED:
            return {}
        return self._tried((self.kind.persistent_table,), "persistent", cut)

    @property
    def _described(self) -> bool:
        """Whether operands of 16-bit types may be loaded through tensor descriptors."""
        return self.kind.itemsize == 2 and not self.kind.mixed and self.device.capability >= DESCRIPTORS_FROM

    def _stored_in_parts(self) -> list[Config]:
        fit = [each for each in IN_PARTS if self._described and self._fits(each[0])]
        return [tile_config(row, variant="persistent", stores=stores, flat=flat) for row, stores, flat in fit]

    def _fits(self, row: Gemm) -> bool:
        shared = row.shared_bytes(self.kind.itemsize, 2)
        return row.accumulators <= self.kind.most_sums and shared <= self.device.shared_per_block

    def valid(self, config: Config, size: Mapping[str, int]) -> bool:
        """Whether `config` is worth trying at these sizes. Every config is correct at all sizes, except that `rows` fixes the
        number of rows."""
        m, n, k = size["M"], size["N"], size["K"]
        if config.get("swapped") and m > int(config["m"]):
            return False
        if config in self._exhaustive and _covers(config, m, n) and _cut(k) >= int(config["k"]):
            return True
        return _PAYS[schedule_of(config)](self, config, size["batch"], m, n, k)

    def _rows_pay(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Up to as many rows as fit in a program's registers."""
        return 1 <= m <= MOST_ROWS and m * _sums(config) <= TENSOR_SUMS

    def _persistent_pays(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Tiles as the heuristic shrinks them. Tiles stored in parts, if programs process several."""
        whole = config in self._persistent[_cut(m), _cut(n), _cut(k)]
        return whole or (config in self._in_parts and self._several_rounds(config, batch, m, n))

    def _tile_pays(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Tiles as the heuristic shrinks them, and further ones for few rows or few tiles."""
        cut = config in self._tiles[_cut(m), _cut(n), _cut(k)]
        return cut or (m <= THIN_UP_TO and config in self._thin) or self._spreads(config, batch, m, n, k)

    def _grouped_pays(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Tiles of up to twice the average number of rows per group, as some groups are larger, and of at least an eighth of
        it."""
        rows = int(config["m"])
        return _covers(config, 2 * m, max(n, SIZES[2])) and (m < 8 * rows or rows >= SIZES[2])

    def _spreads(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Small tiles, for products with so few of them that all run at once."""
        able = config in self._tiles[FEW] and k >= FEW[2]
        return able and _blocks(config, batch, m, n) <= self.device.sms and _covers(config, m, n)

    def _several_rounds(self, config: Config, batch: int, m: int, n: int) -> bool:
        """Whether programs process several tiles each."""
        return _blocks(config, batch, m, n) > self.device.sms and _covers(config, m, n)

    def _split_pays(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """At least two blocks along k per part, where there are too few tiles for the multiprocessors."""
        splits = int(config["splits"])
        enough = k >= 2 * splits * int(config["k"]) and _blocks(config, batch, m, n) * splits <= 4 * self.device.sms
        return enough and _covers(config, m, n) and splits * batch * m * n * 4 <= LARGEST_SCRATCH

    def _stream_pays(self, config: Config, batch: int, m: int, n: int, k: int) -> bool:
        """Where waves of whole tiles would leave multiprocessors idle."""
        return _covers(config, m, n) and stream_pays(config, batch, m, n, k, self.device.sms)


_PAYS: dict[ProductSchedule, Callable[[Space, Config, int, int, int, int], bool]] = {
    BY_NAME["tile"]: Space._tile_pays, BY_NAME["persistent"]: Space._persistent_pays, BY_NAME["split"]: Space._split_pays,
    BY_NAME["stream"]: Space._stream_pays, BY_NAME["rows"]: Space._rows_pay, BY_NAME["grouped"]: Space._grouped_pays,
    BY_NAME["grouped_tma"]: Space._grouped_pays,
}  # fmt: skip
"""Whether a schedule is worth trying for a batch of products m × n × k."""

def stream_pays(config: Config, batch: int, m: int, n: int, k: int, sms: int) -> bool:
    """Whether waves of whole tiles would leave multiprocessors idle that equal shares of all steps along k keep busy."""
    blocks = _blocks(config, batch, m, n)
    rounds = max(1, -(-blocks // sms))
    idle = blocks < FULL_ROUNDS * rounds * sms and rounds <= MOST_ROUNDS
    enough = blocks * -(-k // int(config["k"])) >= FEWEST_STEPS * sms and blocks * MOST_PARTS >= sms
    return idle and enough and 2 * sms * int(config["m"]) * int(config["n"]) * 4 <= LARGEST_SCRATCH


_spaces: dict[tuple[Kind, DeviceFacts, bool], tuple[tuple[Tables, Tables], Space]] = {}


def space(kind: Kind, device: DeviceFacts) -> Space:
    """The space of this kind on this device, rebuilt if a table was overridden or another family serves the device. With option
    `configs` at "exhaustive", it includes the family's exhaustive space."""
    exhaustive = options.get("configs") == "exhaustive"
    tables = heuristic_of(device).tables, heuristic(device.family).tables
    known = _spaces.get((kind, device, exhaustive))
    if known is None or any(mine is not now for mine, now in zip(known[0], tables, strict=True)):
        known = _spaces[kind, device, exhaustive] = (tables, Space(kind, device, exhaustive))
    return known[1]


def _sums(config: Config) -> float:
    """Accumulators per thread and row of A in the variant `rows`, where every lane along k has its own."""
    return int(config["n"]) * int(config["k"]) / (32 * int(config["warps"]))


def _blocks(config: Config, batch: int, m: int, n: int) -> int:
    """Number of tiles of the result."""
    return batch * -(-m // int(config["m"])) * -(-n // int(config["n"]))


def _covers(config: Config, m: int, n: int) -> bool:
    """Whether a tile does not exceed the next powers of two of the sizes."""
    return max(SIZES[0], next_power(m)) >= int(config["m"]) and next_power(n) >= int(config["n"])


def _cut(size: int) -> int:
    return min(max(next_power(size), SIZES[0]), SIZES[-1])
