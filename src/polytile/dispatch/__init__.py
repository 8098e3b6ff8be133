"""Several kernels behind one call, and which of them runs for which sizes.

Enters: a KernelSpec (what the kernel computes and takes) and its Candidates in canonical order. Leaves: a
MultiKernel, called with the kernel's flat arguments, and its Decisions, each with where it came from. Callers:
compiler, commands, and users who write kernels by hand (handwritten). Calls: runtime (the dispatch
table), tuning (trials), store (what is known), candidates, matmul, schedule, ir.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polytile.dispatch.decision import Decision, Standing
    from polytile.dispatch.multikernel import MultiKernel
    from polytile.dispatch.registry import alive
    from polytile.dispatch.scratch import Scratch, merge_scratch
    from polytile.dispatch.spec import ArgInfo, KernelSpec

__all__ = [
    "ArgInfo",
    "Decision",
    "KernelSpec",
    "MultiKernel",
    "Scratch",
    "Standing",
    "alive",
    "merge_scratch",
]

_HOMES = {
    "decision": ("Decision", "Standing"),
    "multikernel": ("MultiKernel",),
    "registry": ("alive",),
    "scratch": ("Scratch", "merge_scratch"),
    "spec": ("ArgInfo", "KernelSpec"),
}
"""The module of each name: it is imported with the name's first use, as most bring torch."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
