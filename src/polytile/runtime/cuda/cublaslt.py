"""cuBLASLt's library: the one that torch has loaded for its own products, opened at first use, and what its numbers mean.

Products are called from C (products.py). An algorithm is eight words that the same version of the library takes back. Only
algorithms that add up in one order and in the type of the sums are asked for: results are the same at every call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polytile.errors import DeviceError, LaunchFailed

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
"""What the library may be called, the newest first; where torch has loaded one already, that one is found."""

MOST_WORKSPACE = 32 << 20
"""Bytes of device memory that an algorithm may ask for: what torch gives the library on Hopper."""

TYPES = {
    torch.float32: 0, torch.float16: 2, torch.int8: 3, torch.int32: 10, torch.bfloat16: 14, torch.float8_e4m3fn: 28,
    torch.float8_e5m2: 29,
}  # fmt: skip
"""cudaDataType of what is stored."""
COMPUTE_32F, COMPUTE_32I, COMPUTE_TF32 = 68, 72, 77

_CONFIG = {"id": (0, 4), "tile": (1, 4), "splits": (2, 4), "reduction": (3, 4), "swizzle": (4, 4), "custom": (5, 4),
           "stages": (6, 4), "inner": (7, 2), "cluster": (8, 2)}  # fmt: skip
"""What an algorithm tells of itself: number and bytes of cublasLtMatmulAlgoConfigAttributes_t."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, ctypes.c_int, _P, _N, _P),
}


@dataclass(frozen=True)
class Algorithm:
    """What the library knows an algorithm by, and the bytes of workspace that it needs."""

    words: tuple[int, ...]
    workspace: int

    @property
    def text(self) -> str:
        """All that running it takes, as text: the workspace, then the words."""
        return " ".join(f"{word:x}" for word in (self.workspace, *self.words))

    @property
    def attributes(self) -> str:
        """The numbers that the library gives the parts of the algorithm: "id 66 tile 24 splits 1 ..."."""
        words, found = (ctypes.c_uint64 * 8)(*self.words), []
        for name, (number, size) in _CONFIG.items():
            buffer, written = ctypes.create_string_buffer(size), ctypes.c_size_t()
            if library().cublasLtMatmulAlgoConfigGetAttribute(words, number, buffer, size, ctypes.byref(written)) == 0:
                found.append(f"{name} {struct.unpack('<I' if size == 4 else '<H', buffer.raw)[0]}")
        return " ".join(found)


@functools.cache
def library() -> ctypes.CDLL:
    """The library. Raises DeviceError where it cannot be had."""
    troubles: list[str] = []
    for name in (*_beside_torch(), *NAMES):
        try:
            found = ctypes.CDLL(name)
            for function, arguments in _PROTOTYPES.items():
                getattr(found, function).argtypes = arguments
                getattr(found, function).restype = ctypes.c_int
            found.cublasLtGetVersion.restype = ctypes.c_size_t
            return found
        except (OSError, AttributeError) as error:
            troubles.append(str(error))
    raise DeviceError(f"cuBLASLt cannot be used ({troubles[-1]}); torch's CUDA builds bring it.")


def _beside_torch() -> Iterator[str]:
    """Where the wheels of NVIDIA's packages put it, beside torch."""
    for path in sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib/libcublasLt.so.*"), reverse=True):
        yield str(path)


def soname() -> str:
    """What programs without Python call the library: "libcublasLt.so.13". Raises DeviceError where there is no such library."""
    return f"libcublasLt.so.{version() // 10000}"


def version() -> int:
    """130100 for 13.1.0. Raises DeviceError where there is no such library."""
    return int(library().cublasLtGetVersion())


def reset() -> None:
    """Forgets the library and its handles."""
    for known in (library, handle):
        known.cache_clear()


@functools.cache
def handle(device: int) -> int:
    """The library's handle for device number `device`; -1 is none at all. Raises LaunchFailed where it does not start."""
    made = ctypes.c_void_p()
    with torch.cuda.device(device) if device >= 0 else contextlib.nullcontext():
        code = library().cublasLtCreate(ctypes.byref(made))
    if code:
        raise LaunchFailed(f"cuBLASLt refused to start on device {device}: status {code}.")
    return made.value or 0
