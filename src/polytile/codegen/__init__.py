"""From a LoopKernel and a Config to source text: C++ for CPUs (cpp/), Triton for GPUs (triton/).

In: a LoopKernel, a Config and, for Triton, the Facts of a regime. Out: text with a known calling convention. This level
holds what both targets share: index expressions as text, and a writer of indented lines. Called by matmul, cost and
candidates; knows schedule and ir.
"""
