"""The worker's GPU: a context of its own, which a faulty kernel may ruin, and memory for one kernel's arguments at a time.

Part of the worker's program (child.py), so nothing but the standard library is imported; CUDA's driver is called through
ctypes. What a kernel computes is not looked at here, only whether it comes to an end, and where it writes: so arguments of
floating-point numbers hold one harmless number, and only others, which may be positions, hold what the caller's hold.

    {"do": "place", "blocks": [{"bytes", "lead", "offset": offset in the shared memory | null}]}
    {"do": "launch", "scratch": [[bytes, zeroed]], "integers", "tensors": [[block, offset] | null], "seconds", "threads",
     "launches": [{"image": offset in the shared memory, "symbol", "threads", "shared", "grid": [x, y, z],
                   "parameters": [[kind, index]],
                   "descriptors": [{"tensor", "type", "swizzle", "block", "sizes", "strides": bytes}],
                   "cluster"}]}
    {"do": "clear"}

The answer to "launch" is {"code": the run-time check that failed or 0, "seconds", "beside": number of a block | null}.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GUARD = 1 << 16
"""Bytes before and after each block that no kernel may touch."""

GUARD_BYTE, NUMBER_BYTE = 0x5C, 0x3C
"""0x3C in every byte is 0.0115 in float32 and bfloat16, 1.06 in float16, 1.5e-18 in float64."""

TENSOR, INT32, INT64, SCRATCH, ERROR_WORD, NOTHING, DESCRIPTOR, LITERAL = range(8)
"""Kinds of parameters, as in runtime/cuda/launch.py."""
FETCH_128_BYTES = 2

NOT_READY = 600
DYNAMIC_SHARED, LARGE_CLUSTERS = 8, 14
CLUSTER = 4
"""The attribute of a launch that says how many blocks are a cluster."""
POLL_SECONDS = 50e-6

MAP_BYTES, MAP_ALIGNMENT = 128, 64
ADDRESS, ADDRESS_OUT, SIZE, INT, UNSIGNED = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (UNSIGNED,),
    "cuDeviceGet": (ADDRESS_OUT, INT),
    "cuDevicePrimaryCtxRetain": (ADDRESS_OUT, INT),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuMemAlloc_v2": (ADDRESS_OUT, SIZE),
    "cuMemFree_v2": (ADDRESS,),
    "cuMemsetD8_v2": (ADDRESS, ctypes.c_ubyte, SIZE),
    "cuMemcpyHtoD_v2": (ADDRESS, ctypes.c_void_p, SIZE),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ADDRESS, SIZE),
    "cuModuleLoadData": (ADDRESS_OUT, ctypes.c_void_p),
    "cuModuleUnload": (ctypes.c_void_p,),
    "cuModuleGetFunction": (ADDRESS_OUT, ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, INT, INT),
    "cuLaunchKernelEx": (ctypes.c_void_p,) * 4,
    "cuStreamQuery": (ctypes.c_void_p,),
    "cuGetErrorName": (INT, ADDRESS_OUT),
    "cuGetErrorString": (INT, ADDRESS_OUT),
}


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, of a cluster's three dimensions."""

    _fields_ = [("id", INT), ("unused", INT), ("value", UNSIGNED * 16)]


class How(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", UNSIGNED * 3), ("block", UNSIGNED * 3), ("shared", UNSIGNED), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)), ("count", UNSIGNED),
    ]  # fmt: skip


class DeviceError(Exception):
    """What the driver says went wrong, in its own words."""


@dataclass(frozen=True)
class _Block:
    """Memory of one group of arguments: the allocation, where the arguments begin in it, and how it is filled."""

    whole: int
    start: int
    size: int
    host: int | None

    @property
    def guards(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(address, bytes) of the guards before and after."""
        return (self.whole, self.start - self.whole), (self.start + self.size, GUARD)


class Device:
    """Device number `index`, with a context. Raises DeviceError if the context cannot be created."""

    def __init__(self, library: str, index: int) -> None:
        try:
            self._driver = ctypes.CDLL(library)
            for name, arguments in FUNCTIONS.items():
                getattr(self._driver, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"the CUDA driver {library} cannot be used ({error})") from None
        self._blocks: list[_Block] = []
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._ask("cuInit", 0)
        self._ask("cuDeviceGet", ctypes.byref(device), index)
        self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._ask("cuCtxPushCurrent_v2", context)

    def place(self, blocks: Sequence[dict[str, Any]], shared: int) -> None:
        """Makes room for the arguments, in place of earlier ones; `shared` is the address of the shared memory."""
        self.clear()
        for block in blocks:
            whole = self._allocate(GUARD + block["lead"] + block["bytes"] + GUARD)
            host = None if block["offset"] is None else shared + block["offset"]
            self._blocks.append(_Block(whole, whole + GUARD + block["lead"], block["bytes"], host))

    def clear(self) -> None:
        """Gives the arguments' memory back."""
        while self._blocks:
            self._ask("cuMemFree_v2", self._blocks.pop().whole)

    def launch(self, request: dict[str, Any], shared: int) -> dict[str, Any]:
        """Runs one kernel, all its launches, to the end. Raises DeviceError for what the driver reports, TimeoutError for one
        that is not done in time: the device may then not be used again."""
        for block in self._blocks:
            self._fill(block)
        modules: list[ctypes.c_void_p] = []
        owned: list[int] = []
        try:
            for one in request["launches"]:
                modules.append(ctypes.c_void_p())
                self._ask("cuModuleLoadData", ctypes.byref(modules[-1]), shared + one["image"])
            for size, zeroed in [*request["scratch"], (4, True)]:
                owned.append(self._allocate(max(16, size)))
                if zeroed:
                    self._ask("cuMemsetD8_v2", owned[-1], 0, max(16, size))
            begin = time.perf_counter()
            for module, one in zip(modules, request["launches"], strict=True):
                self._launch(module, one, self._values(one, request, owned))
            self._wait(request["seconds"])
            seconds, code = time.perf_counter() - begin, ctypes.c_int32()
            self._ask("cuMemcpyDtoH_v2", ctypes.byref(code), owned[-1], 4)
            beside = next((place for place, block in enumerate(self._blocks) if self._damaged(block)), None)
            return {"code": code.value, "seconds": seconds, "beside": beside}
        except TimeoutError:
            modules.clear()  # to give anything back would wait for the kernel; the process is ended instead
            owned.clear()
            raise
        finally:
            for module in modules:
                self._driver.cuModuleUnload(module)  # after a fault this fails too, and says nothing new
            for address in owned:
                self._driver.cuMemFree_v2(address)

    def _launch(self, module: ctypes.c_void_p, one: dict[str, Any], values: list[Any]) -> None:
        if 0 in one["grid"]:
            return
        function = ctypes.c_void_p()
        self._ask("cuModuleGetFunction", ctypes.byref(function), module, one["symbol"].encode())
        self._ask("cuFuncSetAttribute", function, DYNAMIC_SHARED, one["shared"])
        cluster = Attribute(CLUSTER, 0, (one["cluster"], 1, 1))
        if one["cluster"] > 1:
            self._ask("cuFuncSetAttribute", function, LARGE_CLUSTERS, 1)
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        how = How((*one["grid"],), (one["threads"], 1, 1), one["shared"], None, ctypes.pointer(cluster), one["cluster"] > 1)
        self._ask("cuLaunchKernelEx", ctypes.byref(how), function, pointers, None)

    def _values(self, one: dict[str, Any], request: dict[str, Any], owned: Sequence[int]) -> list[Any]:
        """What each parameter points to."""
        values: list[Any] = []
        for kind, index in one["parameters"]:
            if kind == TENSOR:
                values.append(ADDRESS(self._address(request, index)))
            elif kind == DESCRIPTOR:
                values.append(self._descriptor(one["descriptors"][index], request))
            elif kind in (INT32, INT64):
                values.append((ctypes.c_int32 if kind == INT32 else ctypes.c_int64)(request["integers"][index]))
            elif kind == SCRATCH:
                values.append(ADDRESS(owned[index]))
            elif kind == LITERAL:
                values.append(ADDRESS(index))
            else:
                values.append(ADDRESS(owned[-1] if kind == ERROR_WORD else 0))
        return values

    def _address(self, request: dict[str, Any], tensor: int) -> int:
        place = request["tensors"][tensor]
        return 0 if place is None else self._blocks[place[0]].start + place[1]

    def _descriptor(self, told: dict[str, Any], request: dict[str, Any]) -> Any:
        """A tensor map, which has to be aligned."""
        room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        made = (ctypes.c_char * MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % MAP_ALIGNMENT)
        rank, address = len(told["sizes"]), ADDRESS(self._address(request, told["tensor"]))
        sizes, strides = (ctypes.c_uint64 * rank)(*told["sizes"]), (ctypes.c_uint64 * (rank - 1))(*told["strides"])
        block, steps = (UNSIGNED * rank)(*told["block"]), (UNSIGNED * rank)(*[1] * rank)
        how = 0, told["swizzle"], FETCH_128_BYTES, 0
        self._ask("cuTensorMapEncodeTiled", made, told["type"], rank, address, sizes, strides, block, steps, *how)
        return made

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            code = self._driver.cuStreamQuery(None)
            if code != NOT_READY:
                self._check(code, "cuStreamQuery")
                return
            if time.monotonic() > until:
                raise TimeoutError(f"did not come to an end in {seconds:.3g} s")
            time.sleep(POLL_SECONDS)

    def _fill(self, block: _Block) -> None:
        for address, size in block.guards:
            self._ask("cuMemsetD8_v2", address, GUARD_BYTE, size)
        if block.host is None:
            self._ask("cuMemsetD8_v2", block.start, NUMBER_BYTE, block.size)
        else:
            self._ask("cuMemcpyHtoD_v2", block.start, block.host, block.size)

    def _damaged(self, block: _Block) -> bool:
        """Whether a guard was written to."""
        for address, size in block.guards:
            guard = ctypes.create_string_buffer(size)
            self._ask("cuMemcpyDtoH_v2", guard, address, size)
            if guard.raw.strip(bytes([GUARD_BYTE])):
                return True
        return False

    def _allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._ask("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def _ask(self, function: str, *arguments: Any) -> None:
        self._check(getattr(self._driver, function)(*arguments), function)

    def _check(self, code: int, function: str) -> None:
        if code:
            words = []
            for tell in (self._driver.cuGetErrorName, self._driver.cuGetErrorString):
                text = ctypes.c_char_p()
                if tell(code, ctypes.byref(text)) == 0 and text.value:
                    words.append(text.value.decode())
            raise DeviceError(f"{function}: {': '.join(words) or f'error {code}'}")
