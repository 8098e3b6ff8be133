"""The CUDA driver's C interface through ctypes: contexts, modules, functions.

This module does what happens once per kernel; launch.c makes the calls of every launch. On ROCm the library is
polytile's own wrapper around AMD's runtime (hip.py). The library is opened at first use. Every failure becomes a
DeviceError that states the request and the driver's answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile.errors import DeviceError, DeviceLost, LaunchFailed
from polytile.runtime.cuda import hip

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
LOST = frozenset((46, 100, 101, 214, 220, 221, 226, 700, 702, 709, *range(714, 720), 999))
"""Results after which the process can no longer use the device: it is gone, its memory is corrupt, or an earlier kernel
failed (an illegal address, a trap) and took the context with it."""
MISMATCH = frozenset((35, 209, 218, 222, 223, 803, 804))
"""Results of a driver that is too old for the compiled code, or that does not match the kernel module."""

RELEASE = Path("/proc/driver/nvidia/version")
"""Linux's information about the driver. The first line holds the release, as two or three numbers with dots."""
_RELEASE = re.compile(r"NVRM version:.*?\b(\d+\.\d+(?:\.\d+)?)\b")

_MAX_THREADS, _REGISTERS, _DYNAMIC_SHARED, _LARGE_CLUSTERS = 0, 4, 8, 14
PORTABLE = 8
"""Largest cluster, in blocks, that every device with clusters supports; larger ones must be enabled per function."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: loading a module does not disturb a capture by any thread of the process."""

_POINTERS = ctypes.c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (_POINTERS,),
    "cuDeviceGet": (_POINTERS, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_POINTERS, ctypes.c_int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (_POINTERS,),
    "cuModuleLoadData": (_POINTERS, ctypes.c_void_p),
    "cuModuleUnload": (ctypes.c_void_p,),
    "cuModuleGetFunction": (_POINTERS, ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncGetAttribute": (_POINTERS, ctypes.c_int, ctypes.c_void_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    "cuGetErrorName": (ctypes.c_int, _POINTERS),
    "cuGetErrorString": (ctypes.c_int, _POINTERS),
    "cuThreadExchangeStreamCaptureMode": (_POINTERS,),
}


@dataclass(frozen=True)
class Function:
    """A kernel loaded on one device until the process ends."""

    handle: int


_lock = threading.Lock()


def where() -> str:
    """Path of the library with the driver's functions, or a name by which the system finds it."""
    return hip.library() if hip.present() else LIBRARY


def library() -> ctypes.CDLL:
    """libcuda, opened and initialised. Raises DeviceError if there is no driver, or if it fails to start."""
    with _lock:
        return _opened(where())


@functools.cache
def _opened(name: str) -> ctypes.CDLL:
    try:
        cuda = ctypes.CDLL(name)
        for function, arguments in _PROTOTYPES.items():
            getattr(cuda, function).argtypes = arguments
            getattr(cuda, function).restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"the {_vendor()} driver's library {name} cannot be used ({error}); install {_vendor()}'s driver."
        ) from error
    code = cuda.cuInit(0)
    if code:
        raise DeviceError(f"the {_vendor()} driver does not start: {_words(cuda, code)}. Check {_monitor()}.")
    return cuda


def _vendor() -> str:
    return "AMD" if hip.present() else "NVIDIA"


def _monitor() -> str:
    """The command that lists a machine's GPUs."""
    return "rocm-smi" if hip.present() else "nvidia-smi"


def reset() -> None:
    """Forgets the library and all contexts; the next use opens them again. Kernels loaded before must not be used."""
    with _lock:
        _opened.cache_clear()
        _context.cache_clear()


def describe(code: int) -> str:
    """Describes the driver's result `code`: "CUDA_ERROR_INVALID_VALUE (invalid argument)"."""
    return _words(library(), code)


def _words(found: ctypes.CDLL, code: int) -> str:
    words = []
    for function in (found.cuGetErrorName, found.cuGetErrorString):
        text = ctypes.c_char_p()
        if function(code, ctypes.byref(text)) == 0 and text.value:
            words.append(text.value.decode())
    return f"{words[0]} ({words[1]})" if len(words) == 2 else f"error {code}"


def _check(code: int, what: str) -> None:
    if code:
        raise refusal(code, f"the CUDA driver refused to {what}")


def refusal(code: int, what: str) -> DeviceError:
    """The error for the driver's result `code`, with a message that starts with `what`: DeviceLost if nothing can run
    any more, else LaunchFailed."""
    try:
        answer = describe(code)
    except DeviceError:
        answer = f"error {code}"
    if code in LOST:
        return DeviceLost(
            f"{what}: {answer}. The GPU is lost to this process; start a new one, and see {_monitor()} and the system's log "
            "if it is lost there too. CUDA_LAUNCH_BLOCKING=1 shows whether an earlier kernel failed."
        )
    if code in MISMATCH:
        return LaunchFailed(
            f"{what}: {answer}. The driver is {release()}, and does not load what a later compiler made; update the "
            "driver, or install a Triton, and for CUTLASS's kernels an NVRTC, that are as old."
        )
    return LaunchFailed(f"{what}: {answer}.")


def version() -> int:
    """CUDA version of the driver, 13000 for 13.0. Raises DeviceError if the driver does not answer."""
    number = ctypes.c_int()
    code = library().cuDriverGetVersion(ctypes.byref(number))
    if code:
        raise DeviceError(f"the CUDA driver did not report its version: {describe(code)}.")
    return number.value


def release() -> str:
    """Release of the driver: "570.86.15 (CUDA 12080)", "HIP 60443483"; "none" without a driver."""
    try:
        cuda = version()
    except DeviceError:
        return "none"
    if hip.present():
        return f"HIP {cuda}"
    try:
        match = _RELEASE.search(RELEASE.read_text())
    except OSError:  # not on Linux, or hidden from a container
        match = None
    return f"{match[1]} (CUDA {cuda})" if match else f"CUDA {cuda}"


def context(index: int) -> int:
    """The primary context of device `index`, which torch uses too; retained until the process ends."""
    with _lock:
        return _context(index)


@functools.cache
def _context(index: int) -> int:
    cuda, device, handle = _opened(where()), ctypes.c_int(), ctypes.c_void_p()
    for code in (cuda.cuDeviceGet(ctypes.byref(device), index),
                 cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), device)):  # fmt: skip
        if code:
            raise DeviceError(f"CUDA device {index} cannot be used: {_words(cuda, code)}.")
    return handle.value or 0


@contextlib.contextmanager
def current(index: int) -> Iterator[ctypes.CDLL]:
    """Makes device `index` the thread's current one within the block, and keeps its work out of stream captures."""
    cuda = library()
    _check(cuda.cuCtxPushCurrent_v2(context(index)), f"make device {index} current")
    mode = ctypes.c_int(_RELAXED)
    try:
        _check(cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "set aside a capture")
        try:
            yield cuda
        finally:
            cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def load(index: int, image: bytes, symbol: str, threads: int, shared: int, cluster: int = 1) -> Function:
    """Loads the kernel `symbol` of the cubin `image`.

    Parameters
    ----------
    index : int
        Index of the device.
    image : bytes
        The cubin.
    symbol : str
        Name of the kernel in it.
    threads : int
        Threads per block.
    shared : int
        Bytes of dynamic shared memory per block.
    cluster : int
        Blocks per cluster.

    Returns
    -------
    Function
        The loaded kernel.

    Raises
    ------
    LaunchFailed
        If the device rejects the cubin, or the kernel exceeds the limits of a block. Nothing has run then.
    """
    with current(index) as cuda:
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        _check(cuda.cuModuleLoadData(ctypes.byref(module), image), f"load kernel {symbol} ({len(image)} bytes)")
        try:
            code = cuda.cuModuleGetFunction(ctypes.byref(handle), module, symbol.encode())
            _check(code, f"find kernel {symbol} in its own cubin")
            most = _attribute(cuda, handle, _MAX_THREADS)
            if threads > most:
                registers = _attribute(cuda, handle, _REGISTERS)
                raise LaunchFailed(
                    f"kernel {symbol} needs {threads} threads a block and {registers} registers a thread; a block of it "
                    f"may have at most {most} threads."
                )
            code = cuda.cuFuncSetAttribute(handle, _DYNAMIC_SHARED, shared)
            _check(code, f"give kernel {symbol} {shared} bytes of shared memory")
            if cluster > PORTABLE:
                code = cuda.cuFuncSetAttribute(handle, _LARGE_CLUSTERS, 1)
                _check(code, f"run kernel {symbol} in clusters of {cluster} blocks")
        except BaseException:
            cuda.cuModuleUnload(module)
            raise
    return Function(handle.value or 0)


def _attribute(found: ctypes.CDLL, function: ctypes.c_void_p, which: int) -> int:
    number = ctypes.c_int()
    _check(found.cuFuncGetAttribute(ctypes.byref(number), which, function), "report a kernel's resources")
    return number.value
