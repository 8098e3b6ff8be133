"""Products of CUTLASS's collectives: their configs, and their text (text.py, product.h).

Enters: a GemmKernel, a config and facts. Leaves: a launch in the form that generated GPU kernels have. Called by candidates.
"""
