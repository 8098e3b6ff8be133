"""Launches of compiled Triton kernels by polytile's launcher (runtime/triton_launch.c).

Triton's own launcher asks the driver for each tensor's address and goes through two more functions in Python. This one reads
addresses from the tensors, as calls of generated kernels do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import sympy

from polytile.autotuner.isolated import FORMATS, WARP
from polytile.errors import DeviceError
from polytile.runtime import native
from polytile.runtime.cuda import driver
from polytile.runtime.cuda.launch import INT64, NOTHING, TENSOR, Launch, Plan
from polytile.runtime.formula import encode

NUMBERS = {"fp32": "f", "fp64": "d"} | {kind: "i" for kind in FORMATS if not kind.startswith("fp")}
"""The letter in triton_launch.c of numbers of each Triton type."""
GRID = sympy.symbols("x y z", integer=True, nonnegative=True)
PLACES = {symbol: place for place, symbol in enumerate(GRID)}


class Launcher(NamedTuple):
    """polytile's launcher of a compiled kernel. C reads the first four, of which two are those of a native entry (launch.py)."""

    address: int
    handle: int
    letters: bytes
    device_type: int
    plan: Plan

    def launch(self, values: tuple[Any, ...], grid: Any) -> int | None:
        """Launch the kernel with arguments in the order of the parameters. Returns 0 if it has, minus the driver's error if that
        refused, and None for arguments that are not as the letters say."""
        code: int | None = native.module().launch_triton(self, values, grid)
        return code


def launcher_of(kernel: Any, names: Sequence[str], device: int, device_type: int) -> Launcher | None:
    """A launcher of a compiled kernel with the parameters `names`, on one device. None if Triton has to launch the kernel: if it
    has memory of its own, several blocks per program, launch attributes, or arguments other than tensors and numbers."""
    letters = _letters(kernel, names)
    if letters is None or not _is_plain(kernel.metadata):
        return None
    tensors, numbers = itertools.count(), itertools.count(len(GRID))
    passed = [letter for letter in letters if letter != "-"]
    parameters = [(TENSOR, next(tensors)) if letter == "p" else (INT64, next(numbers)) for letter in passed]
    parameters += [(NOTHING, 0)] * 2  # the kernel's own memory and that of its profile
    x, y, z = (encode(symbol, PLACES) for symbol in GRID)
    metadata = kernel.metadata
    threads = WARP * metadata.num_warps
    launch = Launch(driver.Function(kernel.function), threads, metadata.shared, tuple(parameters), (x, y, z))
    try:
        plan = Plan(metadata.name, device, [launch])
    except DeviceError:
        return None
    return Launcher(plan.address, plan.handle, "".join(letters).encode(), device_type, plan)


def _letters(kernel: Any, names: Sequence[str]) -> list[str] | None:
    """For each parameter the letter of its type. None if one is of another type, or if the kernel does not tell."""
    signature = getattr(getattr(kernel, "src", None), "signature", {})
    letters = [_letter(signature.get(name)) for name in names]
    return None if None in letters else [letter for letter in letters if letter is not None]


def _letter(kind: Any) -> str | None:
    if not isinstance(kind, str):
        return None
    return "-" if kind == "constexpr" else "p" if kind.startswith("*") else NUMBERS.get(kind)


def _is_plain(metadata: Any) -> bool:
    """Whether a launch is no more than a grid, threads, shared memory and arguments."""
    others = "global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl"
    return not any(getattr(metadata, name, 0) for name in others) and getattr(metadata, "num_ctas", 1) == 1
