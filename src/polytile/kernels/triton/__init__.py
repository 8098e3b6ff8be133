"""Triton source for canonical kernels, and the candidates that run it: loops here, products in gemm/.

Enters: the same LoopKernel or GemmKernel as for C++, a Config, and the Facts of a regime. Leaves: candidates whose machine code a
worker process compiles (`worker.py`) and the driver launches. Called by multikernel and by `kernels.templates`; triton itself is
imported in the workers and under its interpreter alone.
"""
