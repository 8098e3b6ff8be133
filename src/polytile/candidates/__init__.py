"""Everything that can run a piece of work: generated kernels for each target, and calls of the library.

Enters: a LoopKernel or GemmKernel and a device. Leaves: Candidates in canonical order, each with its validity, predicted cost,
source and, once compiled, an Entry. Called by tuning and dispatch; knows cost, codegen, matmul, schedule, ir, runtime.
"""
