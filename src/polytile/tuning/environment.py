"""Everything but the problem and its device that can change the winner: part of every measurement's key."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from polytile import options
from polytile.errors import CompilerMissing
from polytile.runtime import pytorch, toolchain
from polytile.runtime.cuda import driver, gpus, workers

if TYPE_CHECKING:
    import torch

METHOD = "3"
"""Version of the way of measuring (racing.py, summary.py); measurements taken another way are not compared."""

GPU_METHOD = "3"
"""The same for measurements on GPUs (runtime/cuda/timing.py)."""

VARIABLES = (
    "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY",
    "KMP_BLOCKTIME", "LD_PRELOAD",
    "ATEN_CPU_CAPABILITY", "MKL_NUM_THREADS", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)  # fmt: skip
"""Settings that change what a parallel region costs (those of the OpenMP runtimes, and LD_PRELOAD, which can load another one),
and settings that change the code which ATen, MKL and oneDNN run. A fact where they are set."""

GPU_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
"""The same for GPUs."""

GPU_PACKAGES = (
    "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)  # fmt: skip
"""What kernels are compiled with, and the libraries that torch calls, which may be upgraded without it."""

SWITCHES: tuple[tuple[str, object], ...] = (("mkldnn.enabled", True), ("mkldnn.matmul.fp32_precision", "none"))
"""What a program tells torch.backends that changes the library's kernels, and torch's default. A fact where it is another.
Not torch.get_float32_matmul_precision(), which raises where a program has set the precision of one backend."""

GPU_SWITCHES: tuple[tuple[str, object], ...] = (
    ("cuda.matmul.fp32_precision", "none"),
    ("cudnn.conv.fp32_precision", "tf32"),
    ("cuda.matmul.allow_fp16_reduced_precision_reduction", True),
    ("cuda.matmul.allow_bf16_reduced_precision_reduction", True),
)
"""The same for GPUs."""


def environment(target: torch.device | None = None) -> tuple[tuple[str, str], ...]:
    """(name, value) pairs, sorted by name: torch, compiler and its flags, settings of the libraries, method of measuring;
    on a GPU torch, Triton and what the environment tells it, CUDA's libraries, the driver, whether caches are warm, and the
    method."""
    return of_kind("cpu" if target is None else target.type)


def of_kind(kind: str) -> tuple[tuple[str, str], ...]:
    """The same for devices of a kind: "cpu" or "cuda"."""
    if kind == "cuda":
        compiler = tuple(workers.compiler_environment().items())
        facts = _gpu_environment(options.get("gpu_cache"), _values(GPU_VARIABLES), compiler)
        switches = GPU_SWITCHES
    else:
        asked = options.get("cxx"), _values(("CXX", *VARIABLES)), toolchain.variables()
        facts, switches = _environment(*asked), SWITCHES
    told = _switched(switches) + [(f"option {name}", value) for name, value in options.registered().items()]
    return tuple(sorted((*facts, *told))) if told else facts


def present() -> list[tuple[tuple[str, str], ...]]:
    """The environments of this machine's devices: the processor's and, where there is a GPU, that of the GPUs."""
    return [of_kind("cpu"), *([of_kind("cuda")] if gpus.gpus() else [])]


def _switched(switches: Sequence[tuple[str, object]]) -> list[tuple[str, str]]:
    """The settings that a program has made; none if torch was not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [(name, str(said)) for name, default in switches if (said := attrgetter(name)(torch.backends)) != default]


def _values(variables: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.environ.get(name, "") for name in variables)


def _set(variables: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in zip(variables, values, strict=True) if value}


@functools.cache
def _environment(option: str, values: tuple[str, ...], compiler_reads: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    try:
        chain = toolchain.find()
        compiler, flags = f"{chain.kind} {chain.version}", " ".join(chain.flags)
    except CompilerMissing:
        compiler, flags = "none", ""
    facts = {"torch": pytorch.release(), "compiler": compiler, "flags": flags, "method": METHOD}
    return tuple(sorted({**facts, **_set(VARIABLES, values[1:])}.items()))


@functools.cache
def _gpu_environment(
    caches: str, values: tuple[str, ...], compiler_reads: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    facts = {"torch": pytorch.release(), "driver": driver.release(), "caches": caches, "method": GPU_METHOD, "triton": "none"}
    for package in GPU_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[package] = importlib.metadata.version(package)
    return tuple(sorted({**facts, **_set(GPU_VARIABLES, values), **dict(compiler_reads)}.items()))
