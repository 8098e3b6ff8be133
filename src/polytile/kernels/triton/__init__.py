"""Triton kernels for loops: generated from the same LoopKernel as the C++ ones."""
