"""What the analytical prior knows of a machine: peak rate, cache sizes, bandwidths, the price of a thread."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from polytile.kernels.cpp.gemm.spec import GemmConfig, GemmSpec

SYS_CPU = Path("/sys/devices/system/cpu/cpu0")


@dataclass(frozen=True)
class Machine:
    """Rates of one core. GFLOP/s are float32 FMAs at full vector width; bandwidths are GB/s that one core reads.

    The defaults are a 3 GHz core with two AVX-512 FMA units; `detected` and `measured` replace what they can find out.
    """

    gflops: float = 192.0
    vector_bytes: int = 64
    l2: int = 1 << 20
    l3: int = 32 << 20
    l2_gbs: float = 120.0
    l3_gbs: float = 40.0
    dram_gbs: float = 15.0
    dram_total_gbs: float = 40.0
    fork_seconds: float = 2e-6
    barrier_seconds: float = 2e-6

    def cycle(self) -> float:
        """Seconds of one cycle in which two vector FMAs (4 FLOP a float32 lane) issue."""
        return self.vector_bytes / self.gflops * 1e-9

    def bandwidth(self, size: int, threads: int) -> float:
        """Bytes a second that `threads` cores together read from the nearest level that holds `size` bytes."""
        if size <= self.l2 * threads * 0.8:
            return self.l2_gbs * threads * 1e9
        if size <= self.l3 * 0.6:
            return self.l3_gbs * threads * 1e9
        return min(self.dram_gbs * threads, self.dram_total_gbs) * 1e9

    @staticmethod
    def detected() -> Machine:
        """Vector width and clock from /proc/cpuinfo, cache sizes from /sys; defaults where they cannot be read."""
        machine = replace(Machine(), **_cache_sizes())
        text = _text(Path("/proc/cpuinfo"))
        flags = set(_after(text, "flags").split()) | set(_after(text, "Features").split())
        width = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
        clock = float(_after(text, "cpu MHz") or 3000.0) / 1000.0
        return replace(machine, vector_bytes=width, gflops=clock * width)

    def measured(self, build: Callable[[str, str], int]) -> Machine:
        """The same machine with peak rate and L2, L3 and DRAM bandwidths measured, in about 0.1 s besides compiling.

        `build(text, name)` compiles a translation unit and returns the address of `name` in it (it must stay loaded).
        """
        from polytile.kernels.cpp.gemm import generate

        lanes = self.vector_bytes // 4
        tile = GemmConfig("tile_direct", 4 if lanes < 16 else 8, 3)
        peak = _best(build(generate(GemmSpec(), tile, "peak", None, lanes), "peak"), 8 * tile.mr, 256, 3 * lanes)
        flops = 2.0 * 8 * tile.mr * 256 * 3 * lanes
        stream = build(generate(GemmSpec(), GemmConfig("stream", 1, 1, nc=512, unroll=8), "read", None, lanes), "read")

        def rate(size: int) -> float:
            k = max(size // 4096, 8)
            return k * 4096 / _best(stream, 1, k, 1024) / 1e9

        l2, l3 = rate(self.l2 // 2), rate(min(self.l3 // 4, 8 * self.l2))
        return replace(
            self, gflops=flops / peak / 1e9, l2_gbs=l2, l3_gbs=min(l2, l3), dram_gbs=min(l3, rate(self.l3 * 2))
        )


def _best(address: int, m: int, k: int, n: int, calls: int = 7) -> float:
    """Least seconds of one call of a float32 kernel on contiguous zeros."""
    kernel = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(address)
    buffers = [(ctypes.c_float * count)() for count in (m * k, k * n, m * n)]
    ptrs = (ctypes.c_void_p * 3)(*(ctypes.addressof(buffer) for buffer in buffers))
    sizes = (ctypes.c_long * 13)(1, m, n, k, 0, k, 1, 0, n, 1, 0, n, 1)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        kernel(ctypes.addressof(ptrs), ctypes.addressof(sizes), 1)
        times.append(time.perf_counter() - start)
    return min(times)


def _cache_sizes() -> dict[str, int]:
    sizes = {}
    for index in range(8):
        folder = SYS_CPU / "cache" / f"index{index}"
        level, kind, size = (_text(folder / name).strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and size.endswith("K") and level in ("2", "3"):
            sizes[f"l{level}"] = int(size[:-1]) << 10
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text() if os.path.exists(path) else ""
    except OSError:
        return ""


def _after(text: str, key: str) -> str:
    """The value of the first `key : value` line."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
