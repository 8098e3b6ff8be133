"""The built-in device families: CPU, CUDA, ROCm and XPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from polytile.matmul.configs import spaces
from polytile.matmul.configs.files import read
from polytile.matmul.configs.heuristic import Dropped, Heuristic
from polytile.matmul.configs.records import PLAIN, ROCM, Gemm, Record, RegisterTile, RocmGemm

LARGEST_CPU_BLOCK = 1 << 13
"""Maximum number of accumulators of a tile on a CPU: 32 KiB of float32, which fit in the L1 cache."""


class Cpu(Heuristic):
    """CPUs. Generated C++ uses register tiles; the tile tables are for Triton on a CPU, which keeps an accumulator tile in the
    cache."""

    def register_tiles(self, vector_bytes: int) -> tuple[RegisterTile, ...]:
        """The rows for vectors of this many bytes, in canonical order."""
        rows = (*self.table("register_tiles"), *self.table("amx_tiles"))
        return tuple(row for row in rows if isinstance(row, RegisterTile) and row.vector_bytes == vector_bytes)

    def finish(self, config: Gemm) -> Gemm:
        if config.block_m * config.block_n > LARGEST_CPU_BLOCK:
            raise Dropped("cache", f"a block of more than {LARGEST_CPU_BLOCK} sums leaves a CPU's first-level cache")
        return config


class Rocm(Heuristic):
    """AMD GPUs: tiles in whole matrix instructions, the backend's own pipelining, occupancy by the number of warps."""

    def space(self) -> Iterable[Gemm]:
        return spaces.rocm_gemm(self.default_stages)

    def finish(self, config: Gemm) -> Gemm:
        assert isinstance(config, RocmGemm)
        step = config.matrix_instr_nonkdim
        if step and (config.block_m % step or config.block_n % step):
            raise Dropped("matrix instruction", f"blocks are no multiples of the matrix instruction's {step}")
        waves = 8 // config.num_warps if config.waves_per_eu else 0
        return replace(config, num_stages=self.default_stages, waves_per_eu=waves)


BUILT_IN: dict[str, tuple[type[Heuristic], Mapping[str, type[Record]]]] = {
    "cpu": (Cpu, PLAIN), "cuda": (Heuristic, PLAIN), "rocm": (Rocm, ROCM), "xpu": (Heuristic, PLAIN),
}  # fmt: skip
"""The heuristic of each family, and the records of its tables. On NVIDIA and Intel GPUs rows are used unchanged."""


def built_in(family: str) -> Heuristic:
    """The heuristic of a built-in family, with the tables of its file."""
    heuristic, records = BUILT_IN[family]
    return heuristic(family, read(family, records))
