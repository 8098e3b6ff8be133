"""From a LoopKernel and a Config to source text: C++ for CPUs (cpp/), Triton for GPUs (triton/).

Enters: a LoopKernel, a Config, for Triton the Facts of a regime. Leaves: text with a known calling convention. What both
targets share stands here: index expressions as text, a writer of indented lines. Called by matmul, cost and candidates; knows
schedule and ir.
"""
