"""Holds a stream while the host puts work on it, so that the work then runs without gaps.

    with held(0, 0.1):       # the current stream of device 0 waits until the block ends, 0.1 s at most
        begin.record()
        launch()
        end.record()

A kernel of 1-3 µs ends before the host has launched the next one. And a thread that measures beside a busy program waits up to
5 ms for Python's lock between two launches. Events would count both. So a kernel of one thread comes first, which waits on the
device for a word of host memory: the block's end writes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Iterator

import torch

from polytile.runtime.cuda import driver, hip
from polytile.runtime.cuda.device import facts

HEAD_START = 50e-6
"""Seconds that the device waits on ROCm, which has no such kernel."""

KERNEL = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry hold_stream(.param .u64 word, .param .u32 ticket, .param .u64 nanoseconds)
{
    .reg .pred %p<3>;
    .reg .s32 %r<4>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [word];
    ld.param.u32 %r1, [ticket];
    ld.param.u64 %rd2, [nanoseconds];
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd2, %rd2, %rd3;
WAIT:
    ld.volatile.global.u32 %r2, [%rd1];
    sub.s32 %r3, %r2, %r1;
    setp.ge.s32 %p1, %r3, 0;
    @%p1 bra DONE;
    mov.u64 %rd3, %globaltimer;
    setp.lt.u64 %p2, %rd3, %rd2;
    @%p2 bra WAIT;
DONE:
    ret;
}
\0"""
"""Waits until the word has reached the ticket, or the time is over."""

_tickets = itertools.count(1)


@contextlib.contextmanager
def held(index: int, seconds: float) -> Iterator[None]:
    """Holds the current stream of device `index` until the block ends, for so many seconds at most: a block that waits for the
    stream would otherwise never end. Raises DeviceError if the driver refuses the kernel."""
    if hip.present():
        torch.cuda._sleep(int(HEAD_START * facts(index).clock))
        yield
        return
    word, ticket = _word(index), next(_tickets) & 0x7FFFFFFF
    _launch(index, word.data_ptr(), ticket, seconds)
    try:
        yield
    finally:
        ctypes.c_uint32.from_address(word.data_ptr()).value = ticket


def _launch(index: int, word: int, ticket: int, seconds: float) -> None:
    values = (ctypes.c_uint64(word), ctypes.c_uint32(ticket), ctypes.c_uint64(int(seconds * 1e9)))
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    stream = ctypes.c_void_p(torch.cuda.current_stream(index).cuda_stream)
    with driver.current(index) as cuda:
        one = (ctypes.c_uint(1),) * 6
        code = cuda.cuLaunchKernel(ctypes.c_void_p(_function(index)), *one, ctypes.c_uint(0), stream, pointers, None)
    if code:
        raise driver.refusal(code, "a stream cannot be held while kernels are timed")


@functools.cache
def _function(index: int) -> int:
    return driver.load(index, KERNEL, "hold_stream", threads=1, shared=0).handle


@functools.cache
def _word(index: int) -> torch.Tensor:
    """The word of pinned memory for this device, whose address is the same on host and device."""
    return torch.zeros(1, dtype=torch.int32).pin_memory()
