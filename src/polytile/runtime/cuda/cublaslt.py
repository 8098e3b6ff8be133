"""The cuBLASLt library: finds and opens it at first use, preferably the one that torch has loaded, and decodes its
numbers.

Products are called from C (products.py). An algorithm is eight words, valid for the same version of the library. Only
algorithms that accumulate in a fixed order and in the accumulator type are requested, so results are the same in every
call.
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
"""Possible names of the library, newest first. If torch has loaded one already, that one is found."""

MOST_WORKSPACE = 32 << 20
"""Maximum workspace of an algorithm in bytes: torch's own limit on Hopper."""

TYPES = {
    torch.float32: 0, torch.float16: 2, torch.int8: 3, torch.int32: 10, torch.bfloat16: 14, torch.float8_e4m3fn: 28,
    torch.float8_e5m2: 29,
}  # fmt: skip
"""cudaDataType of the stored elements."""
COMPUTE_32F, COMPUTE_32I, COMPUTE_TF32 = 68, 72, 77

_CONFIG = {"id": (0, 4), "tile": (1, 4), "splits": (2, 4), "reduction": (3, 4), "swizzle": (4, 4), "custom": (5, 4),
           "stages": (6, 4), "inner": (7, 2), "cluster": (8, 2)}  # fmt: skip
"""Number and size in bytes of each cublasLtMatmulAlgoConfigAttributes_t."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, ctypes.c_int, _P, _N, _P),
}


@dataclass(frozen=True)
class Algorithm:
    """The library's eight words for an algorithm, and the bytes of workspace it needs."""

    words: tuple[int, ...]
    workspace: int

    @property
    def text(self) -> str:
        """Everything needed to run it, as text: the workspace, then the words."""
        return " ".join(f"{word:x}" for word in (self.workspace, *self.words))

    @property
    def attributes(self) -> str:
        """The algorithm's configuration: "id 66 tile 24 splits 1 ..."."""
        words, said = (ctypes.c_uint64 * 8)(*self.words), []
        for name, (number, size) in _CONFIG.items():
            buffer, written = ctypes.create_string_buffer(size), ctypes.c_size_t()
            if library().cublasLtMatmulAlgoConfigGetAttribute(words, number, buffer, size, ctypes.byref(written)) == 0:
                said.append(f"{name} {struct.unpack('<I' if size == 4 else '<H', buffer.raw)[0]}")
        return " ".join(said)


@functools.cache
def library() -> ctypes.CDLL:
    """The library. Raises DeviceError if it cannot be loaded."""
    troubles: list[str] = []
    for name in (*_beside_torch(), *NAMES):
        try:
            cublaslt = ctypes.CDLL(name)
            for function, arguments in _PROTOTYPES.items():
                getattr(cublaslt, function).argtypes = arguments
                getattr(cublaslt, function).restype = ctypes.c_int
            cublaslt.cublasLtGetVersion.restype = ctypes.c_size_t
            return cublaslt
        except (OSError, AttributeError) as error:
            troubles.append(str(error))
    raise DeviceError(f"cuBLASLt cannot be used ({troubles[-1]}); it comes with torch's CUDA builds.")


def _beside_torch() -> Iterator[str]:
    """Paths where NVIDIA's wheels install the library, beside torch."""
    for path in sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib/libcublasLt.so.*"), reverse=True):
        yield str(path)


def soname() -> str:
    """Name by which programs without Python load the library: "libcublasLt.so.13". Raises DeviceError if there is none."""
    return f"libcublasLt.so.{version() // 10000}"


def version() -> int:
    """The version, 130100 for 13.1.0. Raises DeviceError if there is no library."""
    return int(library().cublasLtGetVersion())


def reset() -> None:
    """Forgets the library and its handles."""
    for known in (library, handle):
        known.cache_clear()


@functools.cache
def handle(device: int) -> int:
    """The library's handle for device `device`; -1 for no device. Raises LaunchFailed if the library does not initialise."""
    made = ctypes.c_void_p()
    with torch.cuda.device(device) if device >= 0 else contextlib.nullcontext():
        code = library().cublasLtCreate(ctypes.byref(made))
    if code:
        raise LaunchFailed(f"cuBLASLt refused to start on device {device}: status {code}.")
    return made.value or 0
