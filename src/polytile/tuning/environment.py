"""What else, besides the problem and its device, can change the winner: part of every measurement's key (SPEC M8,
X2)."""

from __future__ import annotations

import functools
import importlib.metadata
import os

import torch

from polytile import options
from polytile.errors import CompilerMissing, DeviceError
from polytile.runtime import toolchain
from polytile.runtime.cuda import driver

METHOD = "3"
"""Version of the way of measuring (measure.py, summary.py); measurements taken another way are not compared."""

VARIABLES = (
    "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY",
    "KMP_BLOCKTIME", "LD_PRELOAD",
    "ATEN_CPU_CAPABILITY", "MKL_NUM_THREADS", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)  # fmt: skip
"""Settings that change what a parallel region costs (those of the OpenMP runtimes, and LD_PRELOAD, by which another one
is brought in), and settings that change the code which ATen, MKL and oneDNN run. A fact where they are set."""


def switches() -> dict[str, str]:
    """What the program has told torch, as far as it changes the library's kernels and is not torch's default."""
    said = {
        "float32_matmul_precision": (torch.get_float32_matmul_precision(), "highest"),
        "mkldnn": (str(torch.backends.mkldnn.enabled), "True"),
    }
    return {name: value for name, (value, default) in said.items() if value != default}


GPU_METHOD = "1"
"""The same for measurements on GPUs (runtime/cuda/timing.py)."""


def environment(target: torch.device | None = None) -> tuple[tuple[str, str], ...]:
    """(name, value) pairs, sorted by name: torch, compiler and its flags, settings of the libraries, method of measuring;
    on a GPU torch, Triton, the driver, whether caches are warm, and the method."""
    if target is not None and target.type == "cuda":
        found = _gpu_environment(options.get("gpu_cache"))
    else:
        found = _environment(options.get("cxx"), tuple(os.environ.get(name, "") for name in ("CXX", *VARIABLES)))
    told = switches()
    return tuple(sorted({**dict(found), **told}.items())) if told else found


@functools.cache
def _environment(option: str, variables: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    try:
        found = toolchain.find()
        compiler, flags = f"{found.kind} {found.version}", " ".join(found.flags)
    except CompilerMissing:
        compiler, flags = "none", ""
    facts = {"torch": torch.__version__, "compiler": compiler, "flags": flags, "method": METHOD}
    facts.update((name, value) for name, value in zip(VARIABLES, variables[1:], strict=True) if value)
    return tuple(sorted(facts.items()))


@functools.cache
def _gpu_environment(caches: str) -> tuple[tuple[str, str], ...]:
    try:
        release = str(driver.version())
    except DeviceError:
        release = "none"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    facts = {"torch": torch.__version__, "triton": triton, "driver": release, "caches": caches, "method": GPU_METHOD}
    return tuple(sorted(facts.items()))


__all__ = ["GPU_METHOD", "METHOD", "environment"]
