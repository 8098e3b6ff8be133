"""C++ source for canonical kernels: explicit vectors, no headers, the number of threads as a run-time argument.

In: a LoopKernel (or a matmul spec) and a Config. Out: the text of one translation unit with the native kernel ABI `long
kernel(void* const* ptrs, const long* sizes, long threads)`. Called by matmul and candidates.
"""
