"""Products of CUTLASS's collectives: their types (numbers.py) and configs, and their text (text.py, finish.py, product.h).

Enters: a GemmKernel, a config and facts. Leaves: a launch in the form that generated GPU kernels have. Called by candidates.
"""
