"""Eager's Bernoulli numbers at memory speed: torch's CPU generator, advanced by vectors (mersenne.c).

The numbers, and the generator's state after them, are those of `Tensor.bernoulli_`, which draws one at a time. Where
torch draws differently (on Intel processors with the MKL, from some size on), a comparison at first use detects it, and
`Tensor.bernoulli_` is called instead.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch

from polytile import locks
from polytile.errors import CacheError, CompileFailed, CompilerMissing
from polytile.runtime import compile as compiler
from polytile.runtime import toolchain

log = logging.getLogger("polytile")

FEWEST = 256
"""Number of draws from which reading and restoring the state (1 µs) pays off. torch takes 4.5 ns a draw."""

STATE_BYTES = 5056
"""Length in bytes of the state. mersenne.c reads its beginning."""

SAMPLE = 1500
"""Draws in the comparison: more than two rounds of the generator."""

Draw = Callable[[int, int, int, int], None]
"""(address of the state, address of the booleans, count, 53-bit bound)"""

_SIGNATURE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_ulonglong)
_LOCK = locks.lock()


def prepare() -> None:
    """Starts compiling mersenne.c unless it is compiled already."""
    _compilation()


def bernoulli_(tensor: torch.Tensor, p: float) -> torch.Tensor:
    """`tensor.bernoulli_(p)`: the same numbers in the same places, and the same generator state after them.

    Like `Tensor.bernoulli_`, it may run in several threads. A thread that draws from the default generator by other
    means at the same moment may see numbers that are drawn here too.
    """
    if tensor.device.type != "cpu" or tensor.dtype != torch.bool or tensor.numel() < FEWEST or not _is_dense(tensor):
        return tensor.bernoulli_(p)
    draw = _checked()
    if draw is None:
        return tensor.bernoulli_(p)
    with _LOCK:
        _fill(draw, torch.default_generator, tensor, p)
    return tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _fill(draw: Draw, generator: torch.Generator, tensor: torch.Tensor, p: float) -> None:
    state = generator.get_state()
    draw(state.data_ptr(), tensor.data_ptr(), tensor.numel(), math.ceil(p * 2.0**53))
    generator.set_state(state)


def _compilation() -> compiler.Compilation:
    source = (Path(__file__).parent / "mersenne.c").read_text(encoding="utf-8")
    return compiler.compile_c("mersenne", source, toolchain.find().native)


@functools.cache
def _checked() -> Draw | None:
    """The compiled function; None if it draws other numbers than torch, or if there is no compiler."""
    try:
        address = compiler.load(_compilation().result(), "polytile_bernoulli")
    except (CompilerMissing, CompileFailed, CacheError) as error:
        log.warning("torch itself draws the random numbers of dropout: %s", str(error).partition("\n")[0])
        return None
    draw: Draw = _SIGNATURE(address)
    with torch.device("cpu"):
        same = _as_torch(draw)
    if same:
        return draw
    log.info("torch itself draws the random numbers of dropout: its generator differs here from the one that polytile implements")
    return None


def _as_torch(draw: Draw) -> bool:
    """Whether `draw` gives torch's numbers and leaves torch's state behind."""
    one, other = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    if one.get_state().numel() != STATE_BYTES:
        return False
    for p in (0.3, 0.9):
        want, got = torch.empty(SAMPLE, dtype=torch.bool), torch.empty(SAMPLE, dtype=torch.bool)
        want.bernoulli_(p, generator=one)
        _fill(draw, other, got, p)
        if not torch.equal(want, got) or not torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=other)):
            return False
    return True
