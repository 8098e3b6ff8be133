"""The prior of sums by an index (scattered.py), in the terms of prior.py.

    scatter   the atomics as a loop of their own, and the whole table set to zero, read and stored by one more launch or two
    leaders   the table set to zero; every point looks at all indices up to the first of its row, which goes on to the end and
              reads what the others of the row have
    sorted    the launch that sorts; then rows, whose programs find out what falls on them and read it, some points at once

What is said of `leaders` and `sorted` is not fitted to times.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polytile.ir import sizes
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.triton import estimate, prior
from polytile.kernels.triton.scattered import Table, needs_scratch, size_of, table_of
from polytile.kernels.triton.sorted_sums import LISTED
from polytile.problem import Config

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

LOOK = 0.3e-6  # s in which a program looks at the next indices, which the nearest cache has, and finds the first of its row
FINISH = 1.1e-6  # s of another launch
REGISTERS = 48
SORT, FOUND, SORTED_REGISTERS = 1.5e-6, 1.0e-6, 72
"""s of the launch that sorts, and for each block of points its programs list; registers of a thread that adds up."""


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call."""
    values = {symbol: size[symbol.name] for symbol in kernel.symbols}
    written = sizes.evaluate(_size(kernel), values)
    (store,) = kernel.loop.stores
    own, wide = kernel.storage(store.buffer).itemsize, store.value.dtype.itemsize
    if config["variant"] == "scatter":
        passes = (wide, wide, own) if needs_scratch(kernel) else (own,)
        again = written * sum(passes) / _rate(device, written * wide)
        return prior.cost(kernel, config, size, device) + again + (len(passes) + 1) // 2 * FINISH
    table = _table(kernel)
    assert table is not None
    rows, points, columns = (sizes.evaluate(e, values) for e in (table.rows, table.points.size, table.along.size))
    if not rows or not columns:
        return device.launch_seconds
    if config["variant"] == "sorted":
        return _sorted(config, rows, points, columns, own, device)
    zeros, reached = written * own / _rate(device, written * own), min(rows, points)
    memory = (points + reached) * columns * own / _rate(device, written * own)
    threads, many = device.warp * int(config["warps"]), int(config["many"])
    programs, shared = points * -(-columns // int(config["x"])), max(1.0, points / rows)
    places = max(1, min(device.registers_per_sm // (REGISTERS * threads), device.blocks_per_sm))
    leader = -(-points // many) * LOOK + shared * (prior.MEMORY_LATENCY + LOOK) + prior.CACHE_LATENCY
    latency = leader * max(1.0, programs / (device.sms * places))
    return device.launch_seconds + estimate.START - estimate.HIDDEN + FINISH + zeros + (memory**3 + latency**3) ** (1 / 3)


def extent(kernel: LoopKernel, size: Mapping[str, int]) -> tuple[int, int]:
    """How many points are added up by one index, and to how many rows."""
    table = _table(kernel)
    assert table is not None
    values = {symbol: size[symbol.name] for symbol in kernel.symbols}
    return sizes.evaluate(table.points.size, values), sizes.evaluate(table.rows, values)


def _sorted(config: Config, rows: int, points: int, columns: int, itemsize: int, device: DeviceFacts) -> float:
    """Predicted seconds of `points` points of so many columns that fall on `rows` rows."""
    threads, chunks = device.warp * int(config["warps"]), -(-points // int(config["many"]))
    listed = points / rows / max(1, chunks) * int(config["rows"]) ** 2 / LISTED
    sort = SORT + FOUND * max(1.0, listed) * max(1.0, -(-rows // int(config["rows"])) * chunks / (2 * device.sms))
    moved = (points + rows) * columns * itemsize
    programs = rows * -(-columns // int(config["x"]))
    places = max(1, min(device.registers_per_sm // (SORTED_REGISTERS * threads), device.blocks_per_sm))
    wait = prior.MEMORY_LATENCY + prior.CACHE_LATENCY
    one = 3 * prior.CACHE_LATENCY + wait * -(-max(1, points // rows) // int(config["y"]))
    latency = one * max(1.0, programs / (device.sms * places))
    adding = max(estimate.PLACED * programs, ((moved / _rate(device, moved)) ** 3 + latency**3) ** (1 / 3))
    return device.launch_seconds + estimate.START - estimate.HIDDEN + FINISH + sort + adding


def _rate(device: DeviceFacts, held: float) -> float:
    """Bytes a second at which a table of so many bytes is gone over."""
    return device.bandwidth / (0.7 if held < estimate.KEPT * device.l2_bytes else 1.0)


@functools.lru_cache(maxsize=256)
def _table(kernel: LoopKernel) -> Table | None:
    return table_of(kernel.loop)


@functools.lru_cache(maxsize=256)
def _size(kernel: LoopKernel) -> sizes.Size:
    return size_of(kernel.loop)


__all__ = ["cost", "extent"]
