"""Machine code of kernels that are made of CUTLASS's templates.

Enters: CUDA C++ text and where compiler and headers are (runtime/cuda/cutlass.py). Leaves: a cubin. Processes that compile import
this room without PyTorch.
"""
