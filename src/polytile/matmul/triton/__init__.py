"""Matrix products as Triton: schedules over tiles of the product, and the epilogue on a finished accumulator.

Enters: a GemmKernel, a Config (from the heuristic's tables), the facts of a regime. Leaves: TritonKernels, which candidates
wraps. Called by cost and candidates.
"""
