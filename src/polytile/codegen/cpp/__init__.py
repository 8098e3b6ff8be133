"""C++ source for canonical kernels: explicit vectors, no headers, threads as a run-time argument.

Enters: a LoopKernel (or a matmul spec) and a Config. Leaves: one translation unit's text with the native kernel ABI
`long kernel(void* const* ptrs, const long* sizes, long threads)`. Called by matmul and candidates.
"""
