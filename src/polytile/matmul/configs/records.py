"""Config records: the tunable numbers of a kernel template, as stored in the tables.

Tile sizes count elements. `num_warps` is the number of warps (on a CPU: threads) per tile. `num_stages` is the depth of the
software pipeline; None means the backend's default. Records are values: equal numbers, including the hint, are one config.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

from polytile.problem import Config


@dataclass(frozen=True)
class Gemm:
    """A tile of a matrix product. `group_m` rows of tiles are traversed together, so that they share B in the cache. `hint` is
    the size that replaced a symbolic one when the config was made, or None."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int | None
    num_warps: int
    group_m: int = 8
    hint: int | None = None

    @property
    def accumulators(self) -> float:
        """Number of 32-bit registers per thread for the accumulator."""
        return self.block_m * self.block_n / (32 * self.num_warps)

    def shared_bytes(self, itemsize: int, default_stages: int) -> int:
        """Shared memory in bytes for the pipeline's tiles of both operands."""
        stages = default_stages if self.num_stages is None else self.num_stages
        return stages * itemsize * (self.block_m + self.block_n) * self.block_k


@dataclass(frozen=True)
class Rocm:
    """Further options of ROCm's compiler.

    Attributes
    ----------
    matrix_instr_nonkdim
        Size of the matrix instruction; 0 leaves it to the compiler.
    waves_per_eu
        Occupancy to compile for; 0 for none.
    kpack
        Number of elements along k that one load packs.
    """

    matrix_instr_nonkdim: int = 16
    waves_per_eu: int = 0
    kpack: int = 2


@dataclass(frozen=True)
class RocmGemm(Rocm, Gemm):
    """A tile of a matrix product on ROCm."""


@dataclass(frozen=True)
class Conv:
    """A tile of a convolution as an implicit GEMM: m runs over batch and space, n over output channels."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int | None
    num_warps: int


@dataclass(frozen=True)
class RocmConv(Rocm, Conv):
    """A tile of a convolution on ROCm."""


@dataclass(frozen=True)
class Flex:
    """Flex attention: a tile of queries by a tile of keys."""

    block_m: int
    block_n: int
    num_stages: int
    num_warps: int


@dataclass(frozen=True)
class RocmFlex(Rocm, Flex):
    matrix_instr_nonkdim: int = 0


@dataclass(frozen=True)
class FlexDecode:
    """Flex attention with few queries: a tile of keys."""

    block_n: int
    num_stages: int
    num_warps: int


@dataclass(frozen=True)
class RocmFlexDecode(Rocm, FlexDecode):
    matrix_instr_nonkdim: int = 0


@dataclass(frozen=True)
class FlexDefault:
    """The default forward config of flex attention for one dtype and head size, from `capability` (90 for 9.0) on."""

    capability: int
    dtype: str
    head_dim: int
    block_m: int
    block_n: int
    num_stages: int
    num_warps: int


@dataclass(frozen=True)
class RegisterTile:
    """A generated C++ product for vectors of `vector_bytes`: the fields of `matmul.cpp.spec.GemmConfig`, and the storage dtypes
    and layouts of A and B for which the row is meant."""

    vector_bytes: int
    form: str
    mr: int
    nv: int
    kc: int
    mc: int
    nc: int
    unroll: int
    pack_a: bool
    pairs: bool
    dtypes: tuple[str, ...]
    a: tuple[str, ...]
    b: tuple[str, ...]
    amx: bool = False


Record = Gemm | Conv | Flex | FlexDecode | FlexDefault | RegisterTile

PLAIN: dict[str, type[Record]] = {
    "gemm": Gemm, "conv": Conv, "flex": Flex, "flex_decode": FlexDecode, "flex_default": FlexDefault,
    "register_tile": RegisterTile,
}  # fmt: skip
"""Kind of table → record class of its rows."""

ROCM: dict[str, type[Record]] = {
    **PLAIN, "gemm": RocmGemm, "conv": RocmConv, "flex": RocmFlex, "flex_decode": RocmFlexDecode,
}  # fmt: skip

KINDS: dict[str, str] = {
    "mm": "gemm", "extra_mm": "gemm", "int8_mm": "gemm", "mixed_mm": "gemm", "persistent_mm": "gemm", "scaled_mm": "gemm",
    "scaled_persistent_mm": "gemm", "mm_plus_mm": "gemm", "conv": "conv", "flex_attn_fwd_autotune": "flex",
    "flex_decode_autotune": "flex_decode", "flex_forward_default": "flex_default", "register_tiles": "register_tile",
    "amx_tiles": "register_tile",
}  # fmt: skip
"""Table → kind: the tables that a family may have."""


AMD = tuple(field.name for field in fields(Rocm))
"""The fields of a product's config that only AMD's compiler reads."""


@functools.lru_cache(maxsize=4096)
def tile_config(record: Gemm, **more: int | str) -> Config:
    """A product's record as the Config that selection and the store use."""
    rocm = {name: getattr(record, name) for name in AMD if isinstance(record, RocmGemm)}
    return Config.of(
        {"size": record.hint} if record.hint is not None else None,
        m=record.block_m, n=record.block_n, k=record.block_k, stages=record.num_stages or 0, warps=record.num_warps,
        group=record.group_m, **rocm, **more,
    )  # fmt: skip
