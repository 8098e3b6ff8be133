"""Products by libraries as native entries: plans for product.c, which calls cuBLASLt or ATen without Python.

    product = Product(a=Operand(0, dtype, strides), b=..., d=..., integers=13)
    plan = Plan(product, device, rank=0)               # cuBLASLt's first proposal; AtenPlan: ATen's own choice
    NativeEntry.of_product(plan, otherwise)            # `otherwise` runs the calls that the plan declines

A call costs about as much as the library's own C function. C code asks the heuristic once for each combination of a
call's integers and its tensors' alignment.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from polytile.errors import DeviceError, LaunchFailed
from polytile.runtime import compile as compiler
from polytile.runtime import native, pytorch
from polytile.runtime.cuda import cublaslt, driver
from polytile.runtime.cuda.cublaslt import COMPUTE_32I, MOST_WORKSPACE, TYPES, Algorithm
from polytile.runtime.cuda.native_plan import FormulaPointer, NativePlan
from polytile.runtime.formula import Formula
from polytile.runtime.program import number_or
from polytile.runtime.symbols import addresses

SOURCES = tuple(Path(__file__).parent / name for name in ("graphs.h", "../formula.c", "product.h", "product.c"))
LIBRARY_STATUS = 100000
"""A call returns a library's status s as -(LIBRARY_STATUS + s)."""
PROPOSALS = 6
"""Maximum number of proposals that a plan requests from the heuristic."""
ALIGNMENT = 16
"""Alignment in bytes. No algorithm needs more."""

_DRIVER = ("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")
_STREAM = "aoti_torch_get_current_cuda_stream"
_MEMORY = ("aoti_torch_empty_strided", "aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr",
           "aoti_torch_create_tensor_from_blob")  # fmt: skip
_PRODUCTS = ("mm_out", "bmm_out", "_int_mm_out")
_CUBLASLT = tuple(
    f"cublasLt{name}" for name in (
        "MatmulDescCreate", "MatmulDescSetAttribute", "MatmulDescDestroy", "MatrixLayoutCreate", "MatrixLayoutSetAttribute",
        "MatrixLayoutDestroy", "MatmulPreferenceCreate", "MatmulPreferenceSetAttribute", "MatmulPreferenceDestroy",
        "MatmulAlgoGetHeuristic", "Matmul",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """A batch of matrices in a call: the position of its tensor, the element type, and its strides (batch, row, column;
    in elements) as formulas of the call's integers."""

    tensor: int
    dtype: torch.dtype
    strides: tuple[Formula, Formula, Formula]


@dataclass(frozen=True)
class Product:
    """D = A · B + C + bias, in calls whose first integers are batch, M, N and K. C and the bias (the position of its
    tensor) are optional. The first `integers` integers of a call determine the algorithm."""

    a: Operand
    b: Operand
    d: Operand
    integers: int
    c: Operand | None = None
    bias: int | None = None
    compute: int = 0

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        return self.a, self.b, self.c, self.d


class _Operand(ctypes.Structure):
    _fields_ = [
        ("strides", FormulaPointer * 3),
        ("tensor", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("torch_type", ctypes.c_int32),
    ]


class _Head(ctypes.Structure):
    """The first members of a ProductPlan (product.h). The rest belongs to C and starts as zeros."""

    _fields_ = [
        ("api", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("fastest_at", ctypes.c_int64 * 4),
        ("most_workspace", ctypes.c_uint64),
        ("operands", _Operand * 4),
        ("bias", ctypes.c_int32),
        ("compute", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("integers", ctypes.c_int32),
        ("refusals", ctypes.c_int32),
        ("has_run", ctypes.c_int32),
    ]


class _Shape(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 3 * 4), ("alignment", ctypes.c_uint32 * 5)]


class _Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class AtenPlan(NativePlan):
    """How ATen is called for a product on device `device` (-1: on the CPU). Raises DeviceError if torch's C functions
    are not available."""

    symbol = "polytile_product_aten"

    def __init__(self, product: Product, device: int, rank: int = 0, fastest_at: Mapping[str, int] | None = None) -> None:
        library = loaded()
        self.device, self.address = device, library.address(self.symbol)
        size = ctypes.CFUNCTYPE(ctypes.c_size_t)(library.address("polytile_product_bytes"))()
        super().__init__(size, library.address("polytile_product_release"))
        head = self._head = _Head.from_buffer(self._block)
        head.api = ctypes.addressof(self._hold(self._functions()))
        head.context = driver.context(device) if device >= 0 else None
        head.handle = self._handle()
        measured_at = fastest_at or {}
        head.fastest_at = (ctypes.c_int64 * 4)(*[measured_at.get(name, -1) for name in ("batch", "M", "N", "K")])
        head.most_workspace, head.rank, head.integers = MOST_WORKSPACE, rank, product.integers
        head.operands = (_Operand * 4)(*map(self._operand, product.operands))
        head.bias = -1 if product.bias is None else product.bias
        head.compute, head.device = product.compute, device
        head.scale = TYPES[torch.int32 if product.compute == COMPUTE_32I else torch.float32]

    @property
    def refusals(self) -> int:
        """How often the library refused a proposal after others had run."""
        return int(self._head.refusals)

    def _functions(self) -> ctypes.Array[ctypes.c_void_p]:
        """The functions that product.c calls, in the order of its Api."""
        return (ctypes.c_void_p * 22)(*_of_torch(self.device), *[None] * len(_CUBLASLT))

    def _handle(self) -> int:
        return 0

    def _operand(self, operand: Operand | None) -> _Operand:
        if operand is None:
            return _Operand(tensor=-1)
        strides = (FormulaPointer * 3)(*map(self._code, operand.strides))
        return _Operand(strides, operand.tensor, TYPES.get(operand.dtype, -1), number_or(operand.dtype, -1))


class Plan(AtenPlan):
    """How cuBLASLt is called: by proposal number `rank` of its heuristic, or the last one if there are fewer. If
    `fastest_at` is given, other sizes use the first proposal. Raises DeviceError if cuBLASLt is missing or does not
    initialise."""

    symbol = "polytile_product_cublaslt"

    def _functions(self) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * 22)(*_of_torch(self.device), *addresses(cublaslt.library(), _CUBLASLT))

    def _handle(self) -> int:
        return cublaslt.handle(self.device)

    def proposals(self, sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Algorithm, ...]:
        """The heuristic's proposals for aligned tensors of these sizes (batch, M, N, K) and strides (of A, B, C and D)."""
        ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        shape, proposed = _Shape(), (_Proposal * PROPOSALS)()
        shape.sizes = (ctypes.c_int64 * 4)(*sizes)
        for k, own in enumerate(strides):
            shape.strides[k] = (ctypes.c_int64 * 3)(*own)
        shape.alignment = (ctypes.c_uint32 * 5)(*[ALIGNMENT] * 5)
        function = ask(loaded().address("polytile_product_proposals"))
        count = function(self.handle, ctypes.addressof(shape), ctypes.addressof(proposed))
        return tuple(Algorithm(tuple(one.algorithm), one.workspace) for one in proposed[:count])


@functools.lru_cache(maxsize=4096)
def proposals(
    product: Product, device: int, sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...]
) -> tuple[Algorithm, ...]:
    """cuBLASLt's proposals for a product at these sizes, best first; see Plan."""
    return _asked(product, device).proposals(sizes, strides)


@functools.lru_cache(maxsize=64)
def _asked(product: Product, device: int) -> Plan:
    return Plan(product, device)


def prepare() -> compiler.Compilation:
    """Starts compiling product.c, or finds it in the cache; returns at once."""
    return compiler.compile_c("cuda_product", "\n".join(path.read_text() for path in SOURCES))


@functools.cache
def loaded() -> compiler.Library:
    """product.c in this process. It has state: a second copy, from another cache directory, would not know the recorder."""
    return prepare().result()


def record(recorder: int) -> tuple[int, int]:
    """Registers the recorder of graphs.py, by its address, with cuBLASLt's calls. Returns the addresses of the kernels
    that use it."""
    library = loaded()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("polytile_record_products"))(recorder)
    return library.address(Plan.symbol), library.address(AtenPlan.symbol)


def reset() -> None:
    """Forgets the library and its proposals."""
    cublaslt.reset()
    for known in (loaded, proposals, _asked):
        known.cache_clear()


def _of_torch(device: int) -> list[int | None]:
    """Addresses of the driver's functions and of torch's stable C functions for a device."""
    kind = "cpu" if device < 0 else "hip" if pytorch.hip() is not None else "cuda"
    try:
        cpu, own = (ctypes.CDLL(native.library_path(f"torch_{part}")) for part in ("cpu", kind))
        before: list[int | None] = [None] * 4
        if device >= 0:
            before = [*addresses(driver.library(), _DRIVER), *addresses(own, (_STREAM,))]
        shim = "cpu" if device < 0 else "cuda"
        return [*before, *addresses(cpu, _MEMORY), *addresses(own, [f"aoti_torch_{shim}_{name}" for name in _PRODUCTS])]
    except (OSError, AttributeError) as error:
        raise DeviceError(f"torch {torch.__version__} lacks what products called from C need ({error}).") from error


def failed(name: str, code: int) -> LaunchFailed | None:
    """The error for a call's negative result, if a library returned it; else None."""
    if code > -LIBRARY_STATUS:
        return None
    return LaunchFailed(f"kernel {name!r}: cuBLASLt refused to multiply: status {-code - LIBRARY_STATUS}.")
