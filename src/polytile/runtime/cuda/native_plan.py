"""The data that C code holds for one kernel, in a block of memory that Python allocates and fills (launch.h,
product.h).

A block begins with members that Python sets. The rest belongs to C and starts as zeros. Whatever the members point to
lives as long as the plan.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from polytile.runtime.formula import Formula

FormulaPointer = ctypes.POINTER(ctypes.c_int64)
"""C's view of a formula."""


class NativePlan:
    """A block of `size` bytes at `handle`. Once the plan is no longer used, the C function at `release` frees C's part
    of it."""

    def __init__(self, size: int, release: int) -> None:
        self._held: list[Any] = []
        self._block = self._hold((ctypes.c_uint64 * (size // 8 + 1))())
        self.handle = ctypes.addressof(self._block)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)
        weakref.finalize(self, _release, function, self._block, self._held).atexit = False

    def _hold(self, value: Any) -> Any:
        """Keeps `value` alive, since a pointer in the block refers to it."""
        self._held.append(value)
        return value

    def _code(self, formula: Formula) -> Any:
        return ctypes.cast(self._hold((ctypes.c_int64 * len(formula))(*formula)), FormulaPointer)


def _release(function: Any, block: Any, held: list[Any]) -> None:
    function(ctypes.addressof(block))
    held.clear()
