"""Attention as Triton kernels: flash (each program loops over the keys of a block of queries) and split (programs share the keys
of a block, and a second launch combines what they leave).

Enters: an AttentionProblem, a Config, the Facts of a regime. Leaves: a TritonKernel. Called by candidates and cost.
"""
