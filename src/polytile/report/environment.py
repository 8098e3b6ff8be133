"""The machine and the software of this process as text values: what a result must carry to be comparable later."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys

from polytile.runtime.cpu import cpu, usable_cores
from polytile.version import __version__

PACKAGES = ("numpy", "sympy", "triton")


def memory_gib() -> float:
    """Memory of the machine in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def accelerator() -> str:
    """Name, memory and compute capability of the current CUDA device; "" without one."""
    import torch

    if not torch.cuda.is_available():
        return ""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{properties.name} {properties.total_memory / 2**30:.0f} GiB sm_{properties.major}{properties.minor}"


def environment() -> dict[str, str]:
    """Every value that a stored result carries, by name. All values are text; what the machine lacks is left out."""
    import torch

    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "polytile": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": cpu().model,
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
        "memory GiB": f"{memory_gib():.0f}",
        "accelerator": accelerator(),
        "cuda": torch.version.cuda or "" if torch.cuda.is_available() else "",
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts["command"] = " ".join(sys.orig_argv[1:])
    return {name: value for name, value in facts.items() if value}
