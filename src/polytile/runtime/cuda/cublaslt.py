"""cuBLASLt's C interface through ctypes: the algorithms that its heuristic proposes for a product, and running one of them.

    product = Product(a, b, d, COMPUTE_32F)               # column-major, as BLAS has it: D[m, n] = op(A)[m, k] · op(B)[k, n]
    for algorithm in algorithms(product, 6, device): Replay(product, algorithm, device)(a, b, d, workspace, stream)

A product may have a matrix and a number for each row of D (a bias) added to it.

The library is the one that torch has loaded for its own products, opened at first use. An algorithm is eight words that the
same version of the library takes back (`Algorithm.text`, `Algorithm.of`), so that what was measured can be run again. Only
algorithms that add up in one order and in the type of the sums are asked for: results are the same at every call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
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

_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_BATCH, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t; of A, B, C and D
_WITH_BIAS = 4  # of cublasLtEpilogue_t
_SOME_BIAS = 1 << 20
"""An address as good as any bias's: the heuristic looks at its alignment alone."""
_IN_TYPE_OF_SUMS = 2  # of cublasLtReductionScheme_t: parts of a split K are added up in the type of the sums, in order
_CONFIG = {"id": (0, 4), "tile": (1, 4), "splits": (2, 4), "reduction": (3, 4), "swizzle": (4, 4), "custom": (5, 4),
           "stages": (6, 4), "inner": (7, 2), "cluster": (8, 2)}  # fmt: skip
"""What an algorithm tells of itself: number and bytes of cublasLtMatmulAlgoConfigAttributes_t."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescSetAttribute": (_P, ctypes.c_int, _P, _N),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatrixLayoutCreate": (_P, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutSetAttribute": (_P, ctypes.c_int, _P, _N),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, ctypes.c_int, _P, _N),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, ctypes.c_int, _P, _P),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, ctypes.c_int, _P, _N, _P),
    "cublasLtMatmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _N, _P),
}


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in memory, or a batch of them: type, rows and columns as stored, elements from one column to the
    next, from one matrix to the next; whether the product takes its transpose; bytes that its address is a multiple of."""

    dtype: torch.dtype
    rows: int
    columns: int
    stride: int
    batch_stride: int = 0
    transposed: bool = False
    alignment: int = 16


@dataclass(frozen=True)
class Product:
    """D = op(A) · op(B) + C + bias, where C and the bias, of D's type and at a multiple of 16 bytes, may be missing. `compute` is
    one of the COMPUTE_* numbers."""

    a: Matrix
    b: Matrix
    d: Matrix
    compute: int
    batch: int = 1
    c: Matrix | None = None
    bias: bool = False

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        return self.a, self.b, self.c or self.d, self.d


@dataclass(frozen=True)
class Algorithm:
    """What the library knows an algorithm by, the bytes of workspace that it needs, and what it tells of itself."""

    words: tuple[int, ...]
    workspace: int
    told: str = ""

    @property
    def text(self) -> str:
        """All that running it takes, as text: the workspace, then the words."""
        return " ".join(f"{word:x}" for word in (self.workspace, *self.words))

    @staticmethod
    def of(text: str) -> Algorithm:
        """The algorithm that `text` was taken of, for the same version of the library. Raises ValueError for another text."""
        numbers = [int(word, 16) for word in text.split()]
        if len(numbers) != 9:
            raise ValueError(f"an algorithm of cuBLASLt is nine hexadecimal numbers, {text!r} is {len(numbers)}.")
        return Algorithm(tuple(numbers[1:]), numbers[0])


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


_lock = threading.Lock()


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


def version() -> int:
    """130100 for 13.1.0. Raises DeviceError where there is no such library."""
    return int(library().cublasLtGetVersion())


def reset() -> None:
    """Forgets the library, its handles and everything prepared with them."""
    for known in (library, _handle, _prepared, algorithms):
        known.cache_clear()


def _check(code: int, what: str) -> None:
    if code:
        raise LaunchFailed(f"cuBLASLt refused to {what}: status {code}.")


@functools.cache
def _handle(device: int) -> int:
    handle = ctypes.c_void_p()
    with _on(device):
        _check(library().cublasLtCreate(ctypes.byref(handle)), f"start on device {device}")
    return handle.value or 0


@contextlib.contextmanager
def _on(device: int) -> Iterator[None]:
    """Within the block device `device` is the current one; -1 is none at all."""
    if device < 0 or torch.cuda.current_device() == device:
        yield
        return
    with torch.cuda.device(device):
        yield


class _Prepared:
    """The library's descriptors of a product, freed with it."""

    def __init__(self, product: Product) -> None:
        found = library()
        self._made: list[tuple[str, int]] = []
        weakref.finalize(self, _freed, found, self._made).atexit = False
        scale = TYPES[torch.int32] if product.compute == COMPUTE_32I else TYPES[torch.float32]
        self.operation = self._create("MatmulDesc", product.compute, scale)
        for number, matrix in ((_TRANSPOSE_A, product.a), (_TRANSPOSE_B, product.b)):
            self._set("MatmulDesc", self.operation, number, ctypes.c_int(matrix.transposed))
        self.lock = threading.Lock()
        if product.bias:
            self._set("MatmulDesc", self.operation, _EPILOGUE, ctypes.c_uint32(_WITH_BIAS))
            self.set_bias(_SOME_BIAS)
        a, b, d = (self._layout(matrix, product.batch) for matrix in (product.a, product.b, product.d))
        self.layouts = a, b, self._layout(product.c, product.batch) if product.c is not None else d, d
        number_type = ctypes.c_int32 if product.compute == COMPUTE_32I else ctypes.c_float
        self.one, self.zero = number_type(1), number_type(0)

    def set_bias(self, address: int) -> None:
        """The bias of products to come. Who sets it holds `lock` until the product is started."""
        self._set("MatmulDesc", self.operation, _BIAS, ctypes.c_void_p(address))

    def _layout(self, matrix: Matrix, batch: int) -> int:
        made = self._create("MatrixLayout", TYPES[matrix.dtype], matrix.rows, matrix.columns, matrix.stride)
        if batch > 1:
            self._set("MatrixLayout", made, _BATCH, ctypes.c_int32(batch))
            self._set("MatrixLayout", made, _BATCH_STRIDE, ctypes.c_int64(matrix.batch_stride))
        return made

    def preference(self, product: Product) -> int:
        made = self._create("MatmulPreference")
        self._set("MatmulPreference", made, _WORKSPACE, ctypes.c_uint64(MOST_WORKSPACE))
        self._set("MatmulPreference", made, _REDUCTIONS, ctypes.c_uint32(_IN_TYPE_OF_SUMS))
        for number, matrix in zip(_ALIGNMENTS, product.matrices, strict=True):
            self._set("MatmulPreference", made, number, ctypes.c_uint32(matrix.alignment))
        return made

    def _create(self, kind: str, *arguments: int) -> int:
        made = ctypes.c_void_p()
        _check(getattr(library(), f"cublasLt{kind}Create")(ctypes.byref(made), *arguments), f"make a {kind}")
        self._made.append((kind, made.value or 0))
        return made.value or 0

    @staticmethod
    def _set(kind: str, made: int, number: int, value: Any) -> None:
        code = getattr(library(), f"cublasLt{kind}SetAttribute")(made, number, ctypes.byref(value), ctypes.sizeof(value))
        _check(code, f"set attribute {number} of a {kind}")


def _freed(found: ctypes.CDLL, made: Sequence[tuple[str, int]]) -> None:
    for kind, address in made:
        getattr(found, f"cublasLt{kind}Destroy")(address)


@functools.lru_cache(maxsize=1024)
def _prepared(product: Product) -> _Prepared:
    return _Prepared(product)


@functools.lru_cache(maxsize=4096)
def algorithms(product: Product, most: int, device: int) -> tuple[Algorithm, ...]:
    """What the heuristic proposes for this product, the best first; nothing where the library has no kernel for it."""
    ready, results, count = _prepared(product), (_Result * most)(), ctypes.c_int()
    with _lock, _on(device):
        code = library().cublasLtMatmulAlgoGetHeuristic(
            _handle(device), ready.operation, *ready.layouts, ready.preference(product), most, results, ctypes.byref(count)
        )
    if code:  # CUBLAS_STATUS_NOT_SUPPORTED, or INVALID_VALUE for strides that it has no kernel for
        return ()
    return tuple(
        Algorithm(tuple(result.algorithm), result.workspace, _told(result.algorithm))
        for result in results[: count.value]
        if result.state == 0
    )


def _told(words: Any) -> str:
    """The numbers that the library gives the parts of an algorithm: "id 66 tile 24 splits 1 ..."."""
    found = []
    for name, (number, size) in _CONFIG.items():
        buffer, written = ctypes.create_string_buffer(size), ctypes.c_size_t()
        if library().cublasLtMatmulAlgoConfigGetAttribute(words, number, buffer, size, ctypes.byref(written)) == 0:
            found.append(f"{name} {struct.unpack('<I' if size == 4 else '<H', buffer.raw)[0]}")
    return " ".join(found)


class Replay:
    """A product with one of its algorithms, ready to be started: all that the library is told of it is made once. Called with the
    addresses of A, B, D and of a workspace of `algorithm.workspace` bytes, a stream, and the addresses of C and of the bias,
    where the product has them. Raises LaunchFailed where the library refuses."""

    def __init__(self, product: Product, algorithm: Algorithm, device: int) -> None:
        self.algorithm, self._device, self._ready = algorithm, device, _prepared(product)
        self._multiply, self._handle = library().cublasLtMatmul, _handle(device)
        self._words = (ctypes.c_uint64 * 8)(*algorithm.words)
        self._one = ctypes.byref(self._ready.one)
        self._share = self._one if product.c is not None else ctypes.byref(self._ready.zero)
        """Of C."""

    def __call__(self, a: int, b: int, d: int, workspace: int, stream: int, c: int = 0, bias: int = 0) -> None:
        with _on(self._device), self._ready.lock if bias else contextlib.nullcontext():
            if bias:
                self._ready.set_bias(bias)
            layout_a, layout_b, layout_c, layout_d = self._ready.layouts
            code = self._multiply(
                self._handle, self._ready.operation, self._one, a, layout_a, b, layout_b, self._share, c or d, layout_c,
                d, layout_d, self._words, workspace, self.algorithm.workspace, stream,
            )  # fmt: skip
        if code:
            _check(code, f"multiply with algorithm {self.algorithm.told or self.algorithm.text}")


__all__ = ["COMPUTE_32F", "COMPUTE_32I", "COMPUTE_TF32", "MOST_WORKSPACE", "TYPES", "Algorithm", "Matrix", "Product",
           "Replay", "algorithms", "library", "reset", "version"]  # fmt: skip
