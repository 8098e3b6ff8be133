"""Everything that can run a piece of work: generated kernels for each target, and library calls.

In: a LoopKernel, a GemmKernel or an AttentionProblem, and a device. Out: Candidates in canonical order, each with its validity,
its predicted cost, its source and, once compiled, an Entry. Callers: tuning and dispatch. Uses attention, cost, codegen,
matmul, schedule, ir and runtime.
"""
