"""Small native kernels that show what a launcher passed to them, and a way to forget what this process knows."""

from __future__ import annotations

import ctypes

from polytile import counters
from polytile.candidates.entries import NativeEntry
from polytile.runtime import cache, toolchain
from polytile.runtime import compile as compiler
from polytile.runtime.compile import Library, compile_cpp

SOURCE = """
extern "C" void GOMP_parallel(void (*fn)(void*), void* data, unsigned threads, unsigned flags);
extern "C" int omp_get_num_threads();

// Writes to the int64 tensor ptrs[0]: threads, its own address, ptrs[1], sizes[0], sizes[1], and counts calls in [5].
extern "C" long show(void* const* ptrs, const long* sizes, long threads) {
    long* out = (long*)ptrs[0];
    out[0] = threads; out[1] = (long)ptrs[0]; out[2] = (long)ptrs[1]; out[3] = sizes[0]; out[4] = sizes[1]; out[5] += 1;
    return 0;
}
extern "C" long fail(void* const* ptrs, const long* sizes, long threads) { return sizes[0]; }

// Waits until another thread makes ptrs[0][0] non-zero; gives up with code 1 after some minutes.
extern "C" int usleep(unsigned microseconds);
extern "C" long wait(void* const* ptrs, const long* sizes, long threads) {
    volatile long* flag = (volatile long*)ptrs[0];
    for (long turns = 0; turns < 300000; turns++) { if (flag[0]) return 0; usleep(1000); }
    return 1;
}
static void count(void* data) { __atomic_store_n((long*)data, (long)omp_get_num_threads(), __ATOMIC_RELAXED); }
extern "C" long team(void* const* ptrs, const long* sizes, long threads) {
    GOMP_parallel(count, ptrs[0], threads, 0);
    return 0;
}
"""


def forget() -> None:
    """Leaves what a new process would know: nothing, save the loaded C launcher, which costs 0.4 s to build."""
    cache.reset()
    toolchain.reset()
    compiler.reset()
    counters.reset()


def library() -> Library:
    """The kernels above, compiled into the cache in force."""
    return compile_cpp("shown", SOURCE).result()


def entry(symbol: str, threads: int = 1) -> NativeEntry:
    made = library()
    return NativeEntry(made.address(symbol), threads, made)


def tiny(number: int) -> str:
    """Source of a kernel `k` that returns `number`."""
    return f'extern "C" long k(void* const* ptrs, const long* sizes, long threads) {{ return {number}; }}\n'


def returned(address: int) -> int:
    """What the kernel at `address` returns when called with nothing."""
    return int(ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(address)(None, None, 1))
