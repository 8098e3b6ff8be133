"""What else, besides the problem and its device, can change the winner: part of every measurement's key (SPEC M8,
X2)."""

from __future__ import annotations

import functools
import os

import torch

from polytile import options
from polytile.errors import CompilerMissing
from polytile.runtime import toolchain

METHOD = "3"
"""Version of the way of measuring (measure.py, summary.py); measurements taken another way are not compared."""

VARIABLES = ("OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS")
"""Settings of the OpenMP runtime that change what a parallel region costs."""


def environment() -> tuple[tuple[str, str], ...]:
    """(name, value) pairs, sorted by name: torch, compiler and its flags, OpenMP settings, method of measuring."""
    return _environment(options.get("cxx"), tuple(os.environ.get(name, "") for name in ("CXX", *VARIABLES)))


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


__all__ = ["METHOD", "environment"]
