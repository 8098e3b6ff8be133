"""The analytical prior's facts of a machine: peak rate, cache sizes, bandwidths, the cost of a thread."""

from __future__ import annotations

from dataclasses import dataclass

from polytile.runtime import cpu

MHZ = 3000.0
"""Where the system does not say how fast the clock runs."""


@dataclass(frozen=True)
class Machine:
    """Rates of one core. GFLOP/s are float32 FMAs at full vector width; bandwidths are GB/s that one core reads.

    The defaults are a 3 GHz core with two AVX-512 FMA units; `detected` replaces what it can find out.
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
        """This machine's vector width, clock and cache sizes; the defaults where the system does not say."""
        caches, flags = cpu.cache_sizes(), cpu.cpu().flags
        width = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
        return Machine(
            gflops=(cpu.reported_mhz() or MHZ) / 1000.0 * width,
            vector_bytes=width,
            l2=caches.get("L2", Machine.l2),
            l3=caches.get("L3", Machine.l3),
        )
