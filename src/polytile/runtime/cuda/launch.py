"""Turns loaded GPU kernels into native entries: a plan for launch.c.

    plan = Plan("softmax_1f0c", 0, [Launch(function, 128, 0, parameters, grid)], [Scratch(formula, True)])
    NativeEntry.of_plan(plan)      # address: the C launcher; threads: plan.handle, passed in their place

A call costs about 2 us of host time, nearly all of it in the driver. Run-time checks on the device write their number
into a word of pinned memory, which is read before the plan's next launch and by `synchronise`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

import torch

from polytile.errors import DeviceError
from polytile.runtime import compile as compiler
from polytile.runtime import native
from polytile.runtime.cuda import driver, hip, products
from polytile.runtime.cuda.native_plan import FormulaPointer, NativePlan
from polytile.runtime.formula import Formula
from polytile.runtime.symbols import addresses

SOURCES = tuple(Path(__file__).parent / name for name in ("graphs.h", "../formula.c", "launch.h", "launch.c"))
TENSOR, INT32, INT64, SCRATCH, ERROR_WORD, NOTHING, DESCRIPTOR = range(7)
"""Kinds of parameters: a tensor's address, a 32-bit integer, a 64-bit integer, a scratch buffer's address, the address
of the run-time checks' word, a null pointer, and a tensor descriptor by value. All but the word and the null pointer
have an index."""
LITERAL = 7
"""A number by value; its bits take the place of the index. Only trials in a worker support it
(tuning/isolation/device.py), not launch.c."""
MOST_DESCRIBED = 6
"""Maximum number of descriptors per launch."""
MOST_AXES = 4
"""Maximum rank of a descriptor."""

OVERLAPPING = 12030
"""CUDA version of the first driver that records overlapping launches in graphs."""

_DRIVER_FUNCTIONS = (
    "cuLaunchKernelEx",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamGetCaptureInfo_v2",
    "cuMemsetD8Async",
)
_TORCH_FUNCTIONS = (
    "aoti_torch_get_current_cuda_stream",
    "aoti_torch_empty_strided",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
)
_NEW_HANDLE = "aoti_torch_new_tensor_handle"
DESCRIBE = "cuTensorMapEncodeTiled"
"""Makes a descriptor. Drivers before CUDA 12 lack it."""


@dataclass(frozen=True)
class Descriptor:
    """A tensor whose blocks the hardware copies (TMA), contiguous along its last axis.

    Attributes
    ----------
    tensor : int
        Position of its tensor.
    type : int
        The driver's element type.
    bytes : int
        Bytes per element.
    swizzle : int
        The driver's swizzle mode of copies.
    block : tuple of int
        The shape of one copy.
    shape : tuple of Formula
        The shape of the tensor.
    strides : tuple of Formula
        The strides in elements of all axes but the last.
    """

    tensor: int
    type: int
    bytes: int
    swizzle: int
    block: tuple[int, ...]
    shape: tuple[Formula, ...]
    strides: tuple[Formula, ...]


Code = TypeVar("Code")
"""A kernel: loaded, or in the form that another process loads."""
Other = TypeVar("Other")


@dataclass(frozen=True)
class Launch(Generic[Code]):
    """One launch of a kernel.

    Attributes
    ----------
    function : Code
        The kernel.
    threads : int
        Threads per block.
    shared : int
        Bytes of dynamic shared memory.
    parameters : tuple of (int, int)
        (kind, index) of each parameter.
    grid : tuple of Formula
        The launch grid's three dimensions, as formulas of the call's integers.
    overlaps : bool
        Whether its programs wait for the preceding kernel on the stream themselves, so they may start before it has
        ended.
    descriptors : tuple of Descriptor
        The launch's tensor descriptors.
    cluster : int
        Blocks per cluster: that many consecutive programs run at the same time.
    """

    function: Code
    threads: int
    shared: int
    parameters: tuple[tuple[int, int], ...]
    grid: tuple[Formula, Formula, Formula]
    overlaps: bool = False
    descriptors: tuple[Descriptor, ...] = ()
    cluster: int = 1

    def with_function(self, function: Other) -> Launch[Other]:
        """The same launch of another form of the kernel."""
        return Launch(**{**vars(self), "function": function})


@dataclass(frozen=True)
class Scratch:
    """Device memory for one call; its size in bytes is a formula. `zeroed` memory is all zero before the first launch,
    and the kernels leave it so."""

    bytes: Formula
    zeroed: bool = False


class _Parameter(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Descriptor(ctypes.Structure):
    _fields_ = [
        ("sizes", FormulaPointer * MOST_AXES),
        ("strides", FormulaPointer * (MOST_AXES - 1)),
        ("tensor", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("block", ctypes.c_uint32 * MOST_AXES),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("grid", FormulaPointer * 3),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("descriptors", ctypes.POINTER(_Descriptor)),
        ("count", ctypes.c_int32),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("overlaps", ctypes.c_int32),
        ("cluster", ctypes.c_int32),
    ]


class _Scratch(ctypes.Structure):
    _fields_ = [("bytes", ctypes.POINTER(ctypes.c_int64)), ("zeroed", ctypes.c_int32)]


class _PlanHead(ctypes.Structure):
    """The first members of a LaunchPlan (launch.h). The rest belongs to C and starts as zeros."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("launches", ctypes.POINTER(_Launch)),
        ("scratch", ctypes.POINTER(_Scratch)),
        ("error", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("launch_count", ctypes.c_int32),
        ("scratch_count", ctypes.c_int32),
    ]


class Plan(NativePlan):
    """How one kernel is launched on device `index`; see the module's docstring. Raises DeviceError if the driver or
    torch's C functions are not available."""

    def __init__(
        self, name: str, index: int, launches: Sequence[Launch[driver.Function]], scratch: Sequence[Scratch] = ()
    ) -> None:
        self.address, size, release = _launcher()
        super().__init__(size, release)
        self.name, self.index = name, index
        self._hold(tuple(launches))
        self._error: torch.Tensor | None = None
        head = _PlanHead.from_buffer(self._block)
        head.context = driver.context(index)
        head.launches = self._hold((_Launch * len(launches))(*map(self._launch, launches)))
        head.scratch = self._hold(
            (_Scratch * (len(scratch) + 1))(*[_Scratch(self._code(s.bytes), s.zeroed) for s in scratch])
        )
        head.device, head.launch_count, head.scratch_count = index, len(launches), len(scratch)
        if any(kind == ERROR_WORD for launch in launches for kind, _ in launch.parameters):
            self._error = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=torch.cuda.is_available())
            head.error = self._error.data_ptr()

    def synchronise(self) -> int:
        """Waits for the device. Returns the number of the run-time check that a launch failed, or 0."""
        if self._error is None:
            return 0
        torch.cuda.synchronize(self.index)
        code = int(self._error[0])
        self._error[0] = 0
        return code

    def _launch(self, launch: Launch[driver.Function]) -> _Launch:
        parameters = self._hold(
            (_Parameter * (len(launch.parameters) + 1))(*[_Parameter(*p) for p in launch.parameters])
        )
        grid = (FormulaPointer * 3)(*map(self._code, launch.grid))
        assert len(launch.descriptors) <= MOST_DESCRIBED
        described = self._hold((_Descriptor * MOST_DESCRIBED)(*map(self._descriptor, launch.descriptors)))
        overlaps = launch.overlaps and driver.version() >= OVERLAPPING
        count, threads, shared = len(launch.parameters), launch.threads, launch.shared
        numbers = count, threads, shared, overlaps, launch.cluster
        return _Launch(launch.function.handle, grid, parameters, described, *numbers)

    def _descriptor(self, one: Descriptor) -> _Descriptor:
        sizes = (FormulaPointer * MOST_AXES)(*map(self._code, reversed(one.shape)))
        strides = (FormulaPointer * (MOST_AXES - 1))(*map(self._code, reversed(one.strides)))
        block = (ctypes.c_uint32 * MOST_AXES)(*reversed(one.block))
        return _Descriptor(sizes, strides, one.tensor, one.type, one.bytes, one.swizzle, len(one.shape), block)


@functools.cache
def _launcher() -> tuple[int, int, int]:
    """Address of `polytile_launch`, size of a plan in bytes, and address of the function that releases a plan."""
    library = loaded()
    functions = (ctypes.c_void_p * (len(_DRIVER_FUNCTIONS) + len(_TORCH_FUNCTIONS) + 1))(*_functions())
    configure = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("polytile_configure"))
    configure(ctypes.addressof(functions))
    size = ctypes.CFUNCTYPE(ctypes.c_size_t)(library.address("polytile_plan_bytes"))()
    return library.address("polytile_launch"), int(size), library.address("polytile_release")


def prepare() -> compiler.Compilation:
    """Starts compiling the launcher in the background, so that it is ready by the first kernel; returns at once."""
    return compiler.compile_c("cuda_launch", "\n".join(path.read_text() for path in SOURCES))


@functools.cache
def loaded() -> compiler.Library:
    """The launcher of this process. It has state: a second copy, from another cache directory, would not know the recorder."""
    return prepare().result()


def record(recorder: int) -> tuple[int]:
    """Registers the recorder of graphs.py, by its address, with launches. Returns the addresses of the kernels that use it."""
    library = loaded()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("polytile_record_launches"))(recorder)
    return (library.address("polytile_launch"),)


def reset() -> None:
    """Forgets the loaded launcher; the next plan configures a new one."""
    for known in (loaded, _launcher):
        known.cache_clear()


def _functions() -> list[int]:
    """Addresses of the functions that launch.c calls, in the order of its Api."""
    cuda = driver.library()
    describe = addresses(cuda, [DESCRIBE]) if hasattr(cuda, DESCRIBE) else [0]
    return [*addresses(cuda, _DRIVER_FUNCTIONS), *torch_functions(), *describe]


def torch_functions() -> list[int]:
    """Addresses of torch's stable C functions: the current stream, and memory from its allocator. Raises DeviceError if
    torch lacks one of them."""
    kind = "hip" if hip.present() else "cuda"
    try:
        gpu, cpu = (ctypes.CDLL(native.library_path(f"torch_{part}")) for part in (kind, "cpu"))
        return [*addresses(gpu, _TORCH_FUNCTIONS[:1]), *addresses(cpu, _TORCH_FUNCTIONS[1:])]
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"torch {torch.__version__} lacks what launches need ({error}); install its build for CUDA or ROCm."
        ) from error


def new_handle() -> list[int]:
    """Address of torch's stable C function that makes a second handle of a tensor."""
    return addresses(native.torch_library(), [_NEW_HANDLE])


def failed(name: str, code: int) -> NoReturn:
    """Raises the error for a launch's negative result: OutOfMemoryError, DeviceLost or LaunchFailed."""
    if (refused := products.failed(name, code)) is not None:
        raise refused
    if code == -driver.OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"kernel {name!r}: there is no memory left for its scratch buffers.")
    raise driver.refusal(-code, f"kernel {name!r} could not be launched")
