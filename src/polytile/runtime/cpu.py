"""The processor that this process runs on, as /proc/cpuinfo and /sys describe it. Starts no other program."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from polytile.problem import digest

_MODEL_FIELDS = ("model name", "Model", "cpu model", "cpu", "CPU part")
_NUMBER_FIELDS = ("cpu family", "model", "CPU implementer", "CPU part", "CPU variant")
_FLAG_FIELDS = ("flags", "Features", "isa", "features")

SCALING = Path("/sys/devices/system/cpu/cpu0/cpufreq")
"""Where Linux tells of the first core's clock."""

LAST_LEVEL = 32 << 20
"""Bytes of the last-level cache, where the system does not say."""

TASKS = Path("/proc/self/task")
"""Where Linux tells of this process's threads."""


@dataclass(frozen=True)
class Cpu:
    """Model name, machine architecture and the instruction-set flags that the kernel reports, sorted."""

    model: str
    machine: str
    flags: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Text that differs wherever code made with -march=native may differ."""
        return f"{self.machine} {self.model} {digest(' '.join(self.flags))}"


def parse(text: str, machine: str) -> Cpu:
    """The Cpu that the text of a /proc/cpuinfo describes; the first processor speaks for all."""
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
    """This machine's processor, read once for each process."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    return parse(text, os.uname().machine)


@functools.cache
def cache_sizes() -> dict[str, int]:
    """Bytes of each cache level of the first core by name ("L1d", "L2", "L3"); empty where /sys does not say."""
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
    """Bytes of the last-level cache."""
    return cache_sizes().get("L3", LAST_LEVEL)


@functools.cache
def max_clock() -> dict[str, float]:
    """How fast the first core's clock may run, as "max_mhz"; empty where the system does not say (most virtual machines)."""
    try:
        return {"max_mhz": int((SCALING / "cpuinfo_max_freq").read_text()) / 1000}
    except (OSError, ValueError):
        return {}


def clocks() -> dict[str, str | float]:
    """What the clock of the first core is doing now: "mhz", and its "governor" where the system lets one be chosen. Empty
    where nothing says. About 50 µs."""
    found: dict[str, str | float] = {}
    try:
        found["mhz"] = int((SCALING / "scaling_cur_freq").read_text()) / 1000
        found["governor"] = (SCALING / "scaling_governor").read_text().strip()
    except (OSError, ValueError):
        mhz = told_mhz()
        if mhz is not None:
            found["mhz"] = mhz
    return found


def told_mhz() -> float | None:
    """The first core's clock as /proc/cpuinfo tells it; None on an architecture that does not."""
    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            return float(next((line.partition(":")[2] for line in file if line.startswith("cpu MHz")), ""))
    except (OSError, ValueError):
        return None


def waited() -> float:
    """Seconds that the threads of this process, all together, have been ready to run while other programs had the cores; 0
    where the system does not say. Some 15 µs a thread."""
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


def usable_cores() -> int:
    """Cores that this process may run on (its affinity mask), at least 1."""
    return len(os.sched_getaffinity(0))


def available_bytes() -> int | None:
    """Memory that may be had without swapping: of the machine, or of the control group where that has less. None where
    nothing says."""
    found = [value for value in (_machine_bytes(), _group_bytes(Path("/sys/fs/cgroup"))) if value is not None]
    return min(found, default=None)


def side_by_side(bytes_each: int) -> int:
    """How many processes that take so much memory each may well run at once: one for each core, if it fits; at least one."""
    available = available_bytes()
    return usable_cores() if available is None else max(1, min(usable_cores(), available // bytes_each))


def _machine_bytes() -> int | None:
    try:
        words = Path("/proc/meminfo").read_text().split()
        return 1024 * int(words[words.index("MemAvailable:") + 1])
    except (OSError, ValueError, IndexError):
        return None


def _group_bytes(group: Path) -> int | None:
    """What the control group's limit leaves; None where it has none ("max")."""
    try:
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None
