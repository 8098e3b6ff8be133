"""Several kernels behind one call, and which of them runs for which sizes.

Enters: a KernelSpec (what the kernel computes and takes) and its Candidates in canonical order. Leaves: a MultiKernel, called
with the kernel's flat arguments, and its Decisions, each with its grounds. Callers: compiler, commands, and users who write
kernels by hand (handwritten). Calls: runtime (the dispatch table), tuning (trials), store (what is known), candidates, matmul,
schedule, ir.
"""
