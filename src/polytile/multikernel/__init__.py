"""Several kernels behind one call, and which of them runs for which sizes.

Enters: a KernelSpec (what the kernel computes and takes) and its Candidates in canonical order. Leaves: a
MultiKernel, called with the kernel's flat arguments, and its Decisions, each with where it came from. Callers:
`polytile.compiler`, `explain`, commands, and users who write kernels by hand (handwritten). Calls: runtime (the dispatch
table), tuning (trials), store (what is known), kernels (candidates), ir.
"""

from polytile.multikernel.decision import Decision, Standing
from polytile.multikernel.multikernel import MultiKernel
from polytile.multikernel.registry import alive
from polytile.multikernel.scratch import Scratch, merge_scratch
from polytile.multikernel.spec import ArgInfo, KernelSpec

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
