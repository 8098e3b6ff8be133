"""The processor of this machine, as described by /proc/cpuinfo and /sys. Starts no other program."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path

from polytile.problem import digest

_MODEL_FIELDS = ("model name", "Model", "cpu model", "cpu", "CPU part")
_NUMBER_FIELDS = ("cpu family", "model", "CPU implementer", "CPU part", "CPU variant")
_FLAG_FIELDS = ("flags", "Features", "isa", "features")

SCALING = Path("/sys/devices/system/cpu/cpu0/cpufreq")
"""Linux's information about the first core's clock."""

LAST_LEVEL = 32 << 20
"""Default size of the last-level cache in bytes, if the system does not report it."""

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""Linux's system call on x86-64, its request to use a part of the processor's state, and the number of AMX's tiles."""

TASKS = Path("/proc/self/task")
"""Linux's information about this process's threads."""


@dataclass(frozen=True)
class Cpu:
    """Model name, machine architecture and the instruction-set flags that the kernel reports and this process may use, sorted."""

    model: str
    machine: str
    flags: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Text that differs whenever code made with -march=native may differ."""
        return f"{self.machine} {self.model} {digest(' '.join(self.flags))}"


def parse(text: str, machine: str) -> Cpu:
    """The Cpu described by the text of a /proc/cpuinfo. The first processor stands for all."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    parts = [fields[name] for name in _NUMBER_FIELDS if name in fields]
    model = next((fields[name] for name in _MODEL_FIELDS if fields.get(name)), "unknown")
    flags = next((fields[name] for name in _FLAG_FIELDS if fields.get(name)), "")
    return Cpu(" ".join([model, *parts]), machine, tuple(sorted(set(flags.split()))))


@functools.cache
def cpu() -> Cpu:
    """This machine's processor, read once per process."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = parse(text, os.uname().machine)
    if "amx_tile" in found.flags and not _request_tiles():
        found = replace(found, flags=tuple(flag for flag in found.flags if not flag.startswith("amx_")))
    return found


def _request_tiles() -> bool:
    """Asks Linux for AMX's tiles, which a process may use only then. Whether it grants them, as some hypervisors and sandboxes do
    not."""
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


@functools.cache
def cache_sizes() -> dict[str, int]:
    """Bytes of each cache level of the first core by name ("L1d", "L2", "L3"); empty if /sys does not report them."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind == "Instruction":
                continue
            name = f"L{level}" + ("d" if level == "1" else "")
            sizes[name] = int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)
        except (OSError, ValueError, IndexError):
            continue
    return sizes


def last_level() -> int:
    """Size of the last-level cache in bytes."""
    return cache_sizes().get("L3", LAST_LEVEL)


@functools.cache
def max_clock() -> dict[str, float]:
    """Maximum clock of the first core, as "max_mhz"; empty if the system does not report it (most virtual machines)."""
    try:
        return {"max_mhz": int((SCALING / "cpuinfo_max_freq").read_text()) / 1000}
    except (OSError, ValueError):
        return {}


def clocks() -> dict[str, str | float]:
    """Current clock of the first core as "mhz", and its "governor" if the system has one. Empty if neither is reported.
    About 50 µs."""
    found: dict[str, str | float] = {}
    try:
        found["mhz"] = int((SCALING / "scaling_cur_freq").read_text()) / 1000
        found["governor"] = (SCALING / "scaling_governor").read_text().strip()
    except (OSError, ValueError):
        mhz = reported_mhz()
        if mhz is not None:
            found["mhz"] = mhz
    return found


def reported_mhz() -> float | None:
    """The first core's clock from /proc/cpuinfo in MHz; None on architectures that do not report it."""
    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            return float(next((line.partition(":")[2] for line in file if line.startswith("cpu MHz")), ""))
    except (OSError, ValueError):
        return None


def waited() -> float:
    """Total seconds that this process's threads were runnable while other programs had the cores; 0 if the system does
    not report it. About 15 µs per thread."""
    total = 0
    try:
        threads = os.listdir(TASKS)
    except OSError:
        return 0.0
    for thread in threads:
        try:
            with open(f"{TASKS}/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended, or the system keeps no account
    return total * 1e-9


def thread_seconds(thread: int) -> float:
    """Seconds that a thread of this process has run on a core, by its native number; 0.0 if it has ended, or the system keeps
    no account."""
    try:
        return int((TASKS / str(thread) / "schedstat").read_text().split()[0]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def usable_cores() -> int:
    """Number of cores in this process's affinity mask, at least 1."""
    return len(os.sched_getaffinity(0))


def available_bytes() -> int | None:
    """Bytes of memory available without swapping: of the machine, or of the control group if it has less. None if
    neither reports it."""
    found = [value for value in (_machine_bytes(), _group_bytes(Path("/sys/fs/cgroup"))) if value is not None]
    return min(found, default=None)


def side_by_side(bytes_each: int) -> int:
    """How many processes of `bytes_each` bytes may run at once: one per core if memory suffices, at least one."""
    available = available_bytes()
    return usable_cores() if available is None else max(1, min(usable_cores(), available // bytes_each))


def _machine_bytes() -> int | None:
    try:
        words = Path("/proc/meminfo").read_text().split()
        return 1024 * int(words[words.index("MemAvailable:") + 1])
    except (OSError, ValueError, IndexError):
        return None


def _group_bytes(group: Path) -> int | None:
    """Bytes left under the control group's limit; None if it has none ("max")."""
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None
