"""Machine code of kernels built from CUTLASS templates.

In: CUDA C++ text, and the locations of the compiler and headers (runtime/cuda/cutlass.py). Out: a cubin. Compiler
processes import this room without PyTorch.
"""
