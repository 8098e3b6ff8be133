"""Which ways there are to schedule a loop, and on how many threads: the candidates of every loop kernel, in canonical order.

plain        pointwise: blocks of the vector axis, divided over threads
streamed     pointwise: plain, with non-temporal stores, for outputs too large for them
persistent   reduction: each row read from memory once, costly values cached in a scratch row for later passes
looped       reduction: every pass reads the row again
tiled        pointwise: squares of points, in which transposed operands are brought into order in registers
short        short rows: the lanes of a vector are rows, which are transposed on their way in and out
split        reduction or scan: all threads share each row (few long rows)
atomic       accumulation where threads may meet in one element
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.codegen.cpp.scatter import accumulates, owner_axis, scattered
from polytile.codegen.cpp.short import LONGEST, short_rows
from polytile.codegen.cpp.streaming import streamable, worth_streaming
from polytile.codegen.cpp.transposing_tile import tile_of_variant
from polytile.codegen.cpp.value_cache import cache_stores, cached_values
from polytile.ir import sizes
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.extent import extent
from polytile.schedule.nest import Form, Nest

SCRATCH_LIMIT = 1 << 20
"""Bytes of cached values a thread may hold: beyond the private caches caching costs more than computing."""

FEWEST = 16
"""Rows that are worth transposing."""

NARROW = 16
"""Elements of a pointwise row that fill a vector."""


def thread_counts(most: int) -> tuple[int, ...]:
    """1, then powers of four, then all: few enough to measure, dense enough to be within 2× of the best count."""
    counts = [1]
    while counts[-1] * 4 < most:
        counts.append(counts[-1] * 4)
    return tuple(dict.fromkeys([*counts, most]))


def configs(kernel: LoopKernel, nest: Nest, most: int) -> tuple[Config, ...]:
    """All configs of `kernel`, canonical order: fewer threads first, then the simpler variant."""
    if nest.form is Form.POINTWISE:
        return _pointwise(nest, most)
    serial = bool(scattered(nest.loop))
    whole_rows = (["persistent"] if cached_values(nest) else []) + ["looped"] + (["short"] if short_rows(nest) else [])
    configs = [Config.of(variant=v, threads=t) for t in thread_counts(1 if serial else most) for v in whole_rows]
    if most > 1 and not serial and _splits(nest):
        configs.append(Config.of(variant="split", threads=most))
    return tuple(configs)


def _pointwise(nest: Nest, most: int) -> tuple[Config, ...]:
    variants = ["plain", *(v for v in ("tiled", "short") if tile_of_variant(nest, v) is not None)]
    if not scattered(nest.loop) and streamable(nest):
        variants.append("streamed")
    configs = tuple(Config.of(variant=v, threads=t) for t in thread_counts(most) for v in variants)
    if not scattered(nest.loop) or owner_axis(nest.loop, nest.vec):
        return configs
    atomic = most > 1 and accumulates(nest.loop)
    return configs[:1] + ((Config.of(variant="atomic", threads=most),) if atomic else ())


def _splits(nest: Nest) -> bool:
    """Whether threads can share one row: a scan needs a single row axis and single-result prefix."""
    if not nest.scans:
        return True
    one = len(nest.scans) == 1 and nest.scans[0].kind in ("sum", "prod", "logsumexp")
    return nest.form is Form.ROW and not nest.inner and one and nest.passes == 1 and not nest.reduces_in(0)


LIMITED = ("persistent", "streamed", "short", "split")
"""Variants that make sense at some sizes alone, however many threads run them."""


def valid(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int]) -> bool:
    """Whether `config` makes sense at these sizes; the plain or looped variant on one thread always does."""
    threads, variant = int(config["threads"]), config["variant"]
    if threads == 1 and variant not in LIMITED:
        return True
    e = extent(kernel, size)
    if threads > 1 and e.points < 1024:
        return False
    if variant == "persistent":
        return (
            e.row * sum(n.dtype.itemsize for n in cached_values(nest).keys() - cache_stores(kernel, nest).keys())
            <= SCRATCH_LIMIT
        )
    if variant == "streamed":
        return worth_streaming(kernel, nest, size)
    if variant == "short" and nest.form is Form.POINTWISE:
        length = sizes.evaluate(nest.vec.size, {s: size[s.name] for s in kernel.symbols})
        return length < NARROW and e.points >= FEWEST * length
    if variant == "short":
        return e.row <= LONGEST and e.rows >= FEWEST
    if variant == "split":
        return e.row >= 1024 and e.rows <= 4096
    if nest.form is not Form.POINTWISE and threads > 1:
        return e.rows >= 2
    return True
