"""Matrix products as Triton: schedules over blocks of the product, the epilogue on a finished block of sums.

In: a GemmKernel, a Config (of the heuristic's tables), the facts of a regime. Out: TritonKernels, which
candidates wraps. Called by cost and candidates.
"""
