"""Attention as Triton kernels: flash (each program loops over the keys of a tile of queries) and split (programs share the keys
of a tile, and a second launch combines their partial results).

Enters: an AttentionProblem, a Config, the Facts of a regime. Leaves: a TritonKernel. Called by candidates and cost.
"""
