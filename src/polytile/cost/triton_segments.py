"""The cost model of segment sums (codegen/triton/segment_sums.py), in the terms of triton_loops.py.

    atomic             the atomics as a loop; the whole table is zeroed, read and stored by one or two more launches
    first occurrence   the table is zeroed; every point scans the indices up to the first of its row, whose program continues to
                       the end and reads the row's other points; not fitted to measurements
    owner computes     every row scans all indices, and reads the points that belong to it
    sorted             a launch that sorts; then rows, whose programs look up their points and read several at once
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polytile.codegen.triton.segment_sums import Table, needs_scratch, points_of, size_of, table_of
from polytile.codegen.triton.sorted_segments import LISTED
from polytile.cost import roofline
from polytile.cost import triton_estimate as estimate
from polytile.cost import triton_loops as prior
from polytile.ir import sizes
from polytile.problem import Config
from polytile.runtime.cuda.driver import PORTABLE
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu.segments import Segments

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

LOOK = 0.3e-6  # s to scan the next indices, in the L1 cache, for the first of its row
FINISH = 1.1e-6  # s of a further launch
REGISTERS, SORTED_REGISTERS = 48, 72  # registers of a thread that searches points, and of one that sums a list
SOUGHT = 7.2e-9  # s of a warp per index that it scans concurrently with others
LOOKED = 0.1e-6  # s to load the next indices
FOLLOWED = 1.0e-6  # s to find and read the next point of a row
FETCHED = 1.1  # slowdown of rows read by index
CACHED = 0.5  # factor on memory time if the L2 cache has everything
SORT, SORTED_INDEX = 1.7e-6, 2.4e-9  # s of the sorting launch, and per index of a chunk at two programs per multiprocessor
BLOCK, COMPARED = 0.7e-6, 0.6e-6  # s per block of points that a program found, and per comparison of two blocks


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call."""
    values = {symbol: size[symbol.name] for symbol in kernel.symbols}
    written = sizes.evaluate(_size(kernel), values)
    (store,) = kernel.loop.stores
    own, wide = kernel.storage(store.buffer).itemsize, store.value.dtype.itemsize
    segments = Segments(config["variant"])
    if segments is Segments.ATOMIC:
        passes = (wide, wide, own) if needs_scratch(kernel) else (own,)
        again = written * sum(passes) / _rate(device, written * wide)
        points = prior.predicted(kernel, points_of(config), size, device, begun=0.0)
        return points + again + (len(passes) + 1) // 2 * FINISH
    table = _table(kernel)
    assert table is not None
    rows, points, columns = (sizes.evaluate(e, values) for e in (table.rows, table.points.size, table.along.size))
    if not rows or not columns:
        return device.launch_seconds
    if segments in (Segments.OWNER_COMPUTES, Segments.SORTED):
        predict = _owner_computes if segments is Segments.OWNER_COMPUTES else _sorted
        return device.launch_seconds + estimate.START - estimate.HIDDEN + predict(config, rows, points, columns, own, device)
    zeros, reached = written * own / _rate(device, written * own), min(rows, points)
    memory = (points + reached) * columns * own / _rate(device, written * own)
    threads, many = device.warp * int(config["warps"]), int(config["many"])
    programs, shared = points * -(-columns // int(config["x"])), max(1.0, points / rows)
    places = roofline.places(device, REGISTERS * threads)
    first = -(-points // many) * LOOK + shared * (prior.FITTED.memory_latency + LOOK) + prior.FITTED.cache_latency
    latency = first * max(1.0, programs / (device.sms * places))
    return device.launch_seconds + estimate.START - estimate.HIDDEN + FINISH + zeros + roofline.overlapping(3, memory, latency)


def extent(kernel: LoopKernel, size: Mapping[str, int]) -> tuple[int, int]:
    """The number of points per index set, and of rows to which they are summed."""
    table = _table(kernel)
    assert table is not None
    values = {symbol: size[symbol.name] for symbol in kernel.symbols}
    return sizes.evaluate(table.points.size, values), sizes.evaluate(table.rows, values)


def _owner_computes(config: Config, rows: int, points: int, columns: int, itemsize: int, device: DeviceFacts) -> float:
    """Predicted seconds if each of `rows` rows searches its own among `points` points with this many columns."""
    x, many, warps = int(config["x"]), int(config["many"]), int(config["warps"])
    registers = prior.FITTED.base_registers * device.warp * warps + 2 * (x + many)
    one = prior.FITTED.memory_latency + -(-points // many) * (LOOKED + many * SOUGHT / warps) + points / rows * FOLLOWED
    programs = rows * -(-columns // x)
    latency = one * max(1.0, programs / (device.sms * roofline.places(device, registers)))
    fetched = _fetched((points + rows) * columns * itemsize, device)
    return max(estimate.PLACED * programs, roofline.overlapping(3, fetched, latency))


def _sorted(config: Config, rows: int, points: int, columns: int, itemsize: int, device: DeviceFacts) -> float:
    """Predicted seconds if the points are sorted first."""
    own, chunks = int(config["rows"]), int(config["chunks"])
    listed = max(1.0, 1.2 * points / max(rows, own) * own / chunks / LISTED)
    together = -(-rows // own) * chunks / (2 * device.sms) * (2 if chunks > PORTABLE else 1)  # fewer run at once
    sort = SORT + max(0.5, together) * int(config["many"]) * SORTED_INDEX
    sort += max(1.0, together) * listed * (BLOCK + (listed + 1) / 2 * COMPARED)
    programs = rows * -(-columns // int(config["x"]))
    places = roofline.places(device, SORTED_REGISTERS * device.warp * int(config["warps"]))
    uneven = 1 + 0.5 / math.sqrt(max(1.0, programs / device.sms) * max(1.0, points / rows))
    wait = prior.FITTED.memory_latency + prior.FITTED.cache_latency
    one = 3 * prior.FITTED.cache_latency + wait * -(-max(1, points // rows) // int(config["y"]))
    latency = one * max(1.0, programs / (device.sms * places))
    adding = roofline.overlapping(3, uneven * _fetched((points + rows) * columns * itemsize, device), latency)
    return sort + max(estimate.PLACED * programs, adding)


def _fetched(moved: float, device: DeviceFacts) -> float:
    """Seconds to read and write indexed rows of this many bytes."""
    return FETCHED * moved / device.bandwidth * (CACHED + (1.0 - CACHED) * roofline.missing(moved, device))


def _rate(device: DeviceFacts, held: float) -> float:
    """Bandwidth in bytes/s of traversing a table of this many bytes."""
    return device.bandwidth / (0.7 if held < estimate.KEPT * device.l2_bytes else 1.0)


@functools.lru_cache(maxsize=256)
def _table(kernel: LoopKernel) -> Table | None:
    return table_of(kernel.loop)


@functools.lru_cache(maxsize=256)
def _size(kernel: LoopKernel) -> sizes.Size:
    return size_of(kernel.loop)
