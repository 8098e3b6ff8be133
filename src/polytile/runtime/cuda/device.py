"""Properties of a GPU that affect which kernel is fastest, from the driver or from a table by name.

The table serves where there is no GPU (`named("H100")`: priors, compiling, tests). It also supplies what no driver
reports reliably, such as the bandwidth that a copy reaches. `fingerprint` is part of every Problem measured on a
device.
"""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from polytile.errors import DeviceError
from polytile.runtime.device import remember

GB = 1e9
MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU.

    `capability` is 90 for 9.0; it is 0 for AMD, where `arch` names Triton's target ("gfx942"). Sizes are in bytes,
    `clock` is the boost clock in Hz. `bandwidth` is in bytes per second, read plus written, as reached by a large copy;
    `l2_bandwidth` is the same for data that stays in the L2 cache. `launch_seconds` is the time per kernel in a
    replayed graph of empty kernels.
    """

    name: str
    capability: int
    sms: int
    clock: float
    bandwidth: float
    l2_bytes: int
    l2_bandwidth: float
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    shared_per_sm: int = 228 * KIB
    shared_per_block: int = 227 * KIB
    threads_per_sm: int = 2048
    threads_per_block: int = 1024
    blocks_per_sm: int = 32
    warp: int = 32
    memory_bytes: int = 80 << 30
    launch_seconds: float = 1.3e-6
    arch: str = ""

    @property
    def family(self) -> str:
        """The vendor whose heuristics its products follow (matmul/configs)."""
        return "rocm" if self.arch else "cuda"

    @property
    def target(self) -> int | str:
        """The compile target of its kernels."""
        return self.arch or self.capability


TABLE: tuple[DeviceFacts, ...] = (
    DeviceFacts("NVIDIA H100 80GB HBM3", 90, 132, 1.98e9, 3020 * GB, 50 * MIB, 7000 * GB),
    DeviceFacts("NVIDIA H100 PCIe", 90, 114, 1.755e9, 1800 * GB, 50 * MIB, 5300 * GB),
    DeviceFacts("NVIDIA H200", 90, 132, 1.98e9, 4300 * GB, 60 * MIB, 7000 * GB, memory_bytes=141 << 30),
    DeviceFacts("NVIDIA GH200", 90, 132, 1.98e9, 3400 * GB, 60 * MIB, 7000 * GB, memory_bytes=96 << 30),
    DeviceFacts("NVIDIA B200", 100, 148, 1.965e9, 6800 * GB, 126 * MIB, 10000 * GB, memory_bytes=180 << 30),
    DeviceFacts("NVIDIA A100-SXM4-80GB", 80, 108, 1.41e9, 1700 * GB, 40 * MIB, 4500 * GB, shared_per_sm=164 * KIB,
                shared_per_block=163 * KIB),
    DeviceFacts("NVIDIA A100-SXM4-40GB", 80, 108, 1.41e9, 1320 * GB, 40 * MIB, 4500 * GB, shared_per_sm=164 * KIB,
                shared_per_block=163 * KIB, memory_bytes=40 << 30),
    DeviceFacts("NVIDIA A10", 86, 72, 1.695e9, 500 * GB, 6 * MIB, 2000 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=16, memory_bytes=24 << 30),
    DeviceFacts("NVIDIA GeForce RTX 3090", 86, 82, 1.695e9, 840 * GB, 6 * MIB, 2200 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=16, memory_bytes=24 << 30),
    DeviceFacts("NVIDIA GeForce RTX 4090", 89, 128, 2.52e9, 920 * GB, 72 * MIB, 4500 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=24, memory_bytes=24 << 30),
    DeviceFacts("NVIDIA L4", 89, 58, 2.04e9, 260 * GB, 48 * MIB, 2000 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=24, memory_bytes=24 << 30),
    DeviceFacts("NVIDIA L40S", 89, 142, 2.52e9, 760 * GB, 96 * MIB, 4800 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=24, memory_bytes=48 << 30),
    DeviceFacts("NVIDIA GeForce RTX 5090", 120, 170, 2.407e9, 1523 * GB, 96 * MIB, 6000 * GB, shared_per_sm=100 * KIB,
                shared_per_block=99 * KIB, threads_per_sm=1536, blocks_per_sm=24, memory_bytes=32 << 30),
    DeviceFacts("Tesla V100-SXM2-16GB", 70, 80, 1.53e9, 790 * GB, 6 * MIB, 2200 * GB, shared_per_sm=96 * KIB,
                shared_per_block=96 * KIB, memory_bytes=16 << 30),
    DeviceFacts("Tesla T4", 75, 40, 1.59e9, 240 * GB, 4 * MIB, 1000 * GB, shared_per_sm=64 * KIB,
                shared_per_block=64 * KIB, threads_per_sm=1024, blocks_per_sm=16, memory_bytes=16 << 30),
    DeviceFacts("AMD Instinct MI300X", 0, 304, 2.1e9, 4500 * GB, 256 * MIB, 9000 * GB, registers_per_sm=131072,
                registers_per_block=131072, shared_per_sm=64 * KIB, shared_per_block=64 * KIB, warp=64,
                memory_bytes=192 << 30, arch="gfx942"),
    DeviceFacts("AMD Instinct MI250X", 0, 110, 1.7e9, 1390 * GB, 8 * MIB, 3500 * GB, registers_per_sm=131072,
                registers_per_block=131072, shared_per_sm=64 * KIB, shared_per_block=64 * KIB, warp=64,
                memory_bytes=64 << 30, arch="gfx90a"),
    DeviceFacts("AMD Radeon RX 7900 XTX", 0, 96, 2.5e9, 815 * GB, 96 * MIB, 3500 * GB, registers_per_sm=98304,
                registers_per_block=98304, shared_per_sm=64 * KIB, shared_per_block=64 * KIB, memory_bytes=24 << 30,
                arch="gfx1100"),
)  # fmt: skip
"""Bandwidths: measured by a large device copy on H100 and H200; 85 % of the data sheet's number on the others. L2
bandwidths are round numbers, good enough only to rank kernels. Other devices use the row of the nearest capability,
then of the nearest number of multiprocessors, overridden by their driver's values. For AMD, a multiprocessor is a
compute unit, and an MI250X counts as one of its two halves."""

UNTOLD = ("l2_bytes", "registers_per_sm", "shared_per_sm", "shared_per_block")
"""Facts that AMD's runtime defines differently: its L2 is not the last-level cache, and its register count is per block."""

ESTIMATES = ("bandwidth", "l2_bandwidth", "launch_seconds", "arch")
"""Facts that no driver reports."""

COPY_SHARE = 0.9
"""Share of the memory's theoretical bandwidth that a copy reaches: 3020 of 3352 GB/s on an H100."""


def named(name: str) -> DeviceFacts:
    """The first row whose name contains every word of `name` ("H100" gives the SXM one). Raises DeviceError if there is
    none."""
    words = re.split(r"[\s_-]+", name.lower())
    for row in TABLE:
        if all(word in row.name.lower() for word in words):
            return row
    raise DeviceError(f"no GPU named {name!r} is known; known are {', '.join(row.name for row in TABLE)}.")


def of_capability(capability: int) -> DeviceFacts:
    """The first row of this capability (80 for 8.0). Raises DeviceError if there is none."""
    known = {row.capability: row for row in reversed(TABLE) if row.capability}
    if capability not in known:
        raise DeviceError(f"no GPU of architecture {capability} is known; known are {', '.join(map(str, sorted(known)))}.")
    return known[capability]


def available() -> bool:
    """Whether this process has an NVIDIA or AMD GPU; PyTorch calls both "cuda". Creates no context."""
    import torch

    return torch.cuda.is_available()


def count() -> int:
    """Number of GPUs; their indices start at 0."""
    import torch

    return torch.cuda.device_count() if available() else 0


@functools.cache
def facts(index: int) -> DeviceFacts:
    """Facts of this process's GPU `index`. Raises DeviceError if there is none."""
    if not 0 <= index < count():
        raise DeviceError(
            f"there is no CUDA device {index}: this process sees {count()}. Check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES."
        )
    return described(_properties(index))


def _properties(index: int) -> Any:
    import torch

    return torch.cuda.get_device_properties(index)


def described(properties: Any) -> DeviceFacts:
    """Facts of a device with these properties of torch.cuda.get_device_properties."""
    arch = _arch(properties)
    capability = 0 if arch else 10 * properties.major + properties.minor
    known = next((row for row in TABLE if row.name == properties.name), None)
    base = known or _nearest(arch, capability, properties.multi_processor_count)
    told = {
        "name": properties.name,
        "arch": arch,
        "capability": capability,
        "warp": _positive(properties, "warp_size"),
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": _positive(properties, "L2_cache_size"),
        "registers_per_sm": _positive(properties, "regs_per_multiprocessor"),
        "shared_per_sm": _positive(properties, "shared_memory_per_multiprocessor"),
        "shared_per_block": _positive(properties, "shared_memory_per_block_optin"),
        "threads_per_sm": _positive(properties, "max_threads_per_multi_processor"),
        "clock": _positive(properties, "clock_rate", 1e3),
    }
    told = {key: value for key, value in told.items() if value is not None and not (arch and arch == base.arch and key in UNTOLD)}
    if base.name != properties.name:
        told["bandwidth"] = _pins(properties) or base.bandwidth
    return replace(base, **told)


def _arch(properties: Any) -> str:
    """AMD's architecture without its feature suffixes ("gfx942:sramecc+:xnack-"); "" for other vendors."""
    name = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return name if name.startswith("gfx") else ""


def _nearest(arch: str, capability: int, sms: int) -> DeviceFacts:
    """The row of the same vendor, then of the same architecture or nearest capability, then of the nearest number of
    multiprocessors."""
    made = [row for row in TABLE if bool(row.arch) == bool(arch)]
    return min(made, key=lambda row: (row.arch != arch, abs(row.capability - capability), abs(row.sms - sms)))


def _positive(properties: Any, name: str, factor: float = 1) -> Any:
    value = getattr(properties, name, None)
    return value * factor if isinstance(value, int | float) and value > 0 else None


def _pins(properties: Any) -> float | None:
    """Bytes per second from the memory clock (kHz) and bus width (bits) at two transfers a cycle; None if not reported."""
    clock, width = _positive(properties, "memory_clock_rate", 1e3), _positive(properties, "memory_bus_width")
    return COPY_SHARE * 2 * clock * width / 8 if clock and width else None


def fingerprint(index: int) -> str:
    """Short id, equal for equal devices: "cuda-sm90-132sm-1f0c9a52d8e4".

    Registers its facts for `device.described`: the kind, the driver's values and the clocks, but none of the estimates,
    which a better table may change.
    """
    numbers = facts(index)
    known = {name: value for name, value in asdict(numbers).items() if name not in ESTIMATES}
    properties = _properties(index)
    clock, width = _positive(properties, "memory_clock_rate", 1e3), _positive(properties, "memory_bus_width")
    memory = {"memory_clock": clock, "memory_bus_bits": width}
    return remember(f"cuda-{numbers.arch or f'sm{numbers.capability}'}-{numbers.sms}sm", {"kind": "cuda", **known, **memory})
