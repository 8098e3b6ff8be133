"""Which ways there are to schedule a loop on a GPU: the configs of every loop kernel, in canonical order, where each is valid,
and what it is predicted to take.

Schedules of points, rows and columns are those of schedule/gpu/space.py. Segment sums (schedule/gpu/segments.py) have these
numbers:

atomic             blocks x, y of points
first occurrence   x columns of a point a program, which looks at `many` indices at once
owner computes     x columns of a row a program, which looks at `many` indices at once
sorted             x columns of a row a program, y points at once; clusters of `chunks` programs, which have `many` points each,
                   sort those of `rows` rows
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from polytile.codegen.triton.segment_sums import has_segment_sums, table_of
from polytile.cost import triton_loops as prior
from polytile.cost import triton_segments as segments_prior
from polytile.problem import Config, Scalar
from polytile.schedule.answers import Combine
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import INT32_REACH
from polytile.schedule.gpu.catalogue import schedule_of
from polytile.schedule.gpu.legality import fits, row_lengths
from polytile.schedule.gpu.segments import Segments
from polytile.schedule.gpu.space import CLUSTERED, POINTWISE_2, oversized, schedules
from polytile.schedule.nest import Nest

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

FIRST_OCCURRENCE, MANY = ((128, 1), (512, 2), (1024, 4)), (128, 1024)
"""(x, warps), a vector of 16 bytes or two a thread, and how many indices at once."""
OWNER_COMPUTES = ((64, 1, 128), (1024, 4, 128), (2048, 4, 128), (1024, 8, 512), (2048, 4, 1024), (2048, 8, 512), (4096, 8, 1024),
           (4096, 16, 1024))  # fmt: skip
"""(x, warps, many)"""
SORTED = ((256, 4, 1), (256, 8, 1), (512, 4, 2), (512, 4, 4), (1024, 4, 4), (2048, 2, 4))
SORTING = ((32, 1024, 1), (64, 256, 4), (64, 512, 4), (64, 512, 8), (32, 1024, 8), (32, 2048, 8), (128, 2048, 8), (64, 2048, 16))
"""(x, y, warps): a thread has 4 to 16 columns of every point, so that none has to be told what others add up; (rows, many,
chunks)."""


def configs(kernel: LoopKernel, nest: Nest, device: DeviceFacts) -> tuple[Config, ...]:
    """All configs of `kernel`, whose layout is `nest`, that fit on the device."""
    if not has_segment_sums(kernel.loop):
        return tuple(schedule.config for schedule in schedules(kernel, nest, device))
    most = device.threads_per_block // device.warp
    return tuple(c for c in _segment_sums(table_of(kernel.loop) is not None, device) if int(c["warps"]) <= most)


def _segment_sums(rows: bool, device: DeviceFacts) -> Iterator[Config]:
    """Those of a table, whose rows one index picks where `rows`."""
    yield from (Config.of(variant=Segments.ATOMIC.value, x=x, y=y, warps=w) for x, y, w in POINTWISE_2)
    for (x, warps), many in itertools.product(FIRST_OCCURRENCE if rows else (), MANY):
        yield Config.of(variant=Segments.FIRST_OCCURRENCE.value, x=x, warps=warps, many=many)
    for x, warps, many in OWNER_COMPUTES if rows else ():
        yield Config.of(variant=Segments.OWNER_COMPUTES.value, x=x, warps=warps, many=many)
    for (x, y, warps), (row, many, chunks) in itertools.product(SORTED if rows else (), SORTING):
        if chunks == 1 or device.capability >= CLUSTERED:
            yield Config.of(variant=Segments.SORTED.value, x=x, y=y, warps=warps, rows=row, many=many, chunks=chunks)


def valid(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int]) -> bool:
    """Whether `config` gives right results at these sizes and is worth trying there: rows that are held must fit. Later calls of
    a regime go to it unasked, so it must hold at the regime's largest sizes too."""
    segments = Segments.named(config)
    if segments is not None:
        return segments is not Segments.SORTED or _sorts(config, *segments_prior.extent(kernel, size))
    schedule = schedule_of(config)
    if schedule.combine is Combine.NOTHING or schedule.chunked:
        return True
    lengths = row_lengths(kernel, nest, size)
    return fits(schedule, lengths) and not oversized(nest, schedule, lengths)


def _sorts(config: Config, points: int, rows: int) -> bool:
    """Whether a cluster holds so many points, and none that holds fewer would do; what its programs count of so many rows needs
    no numbers of 64 bits, which the table may do without."""
    held, counts = int(config["chunks"]) * int(config["many"]), 2 * int(config["chunks"]) * rows
    fewer = [chunks * many for own, many, chunks in SORTING if own == config["rows"] and chunks * many < held]
    return max(fewer, default=-1) < points <= held and counts <= INT32_REACH


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call."""
    if Segments.named(config) is not None:
        return segments_prior.cost(kernel, config, size, device)
    return prior.cost(kernel, config, size, device)


def terms(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """What `cost` is made of, by name; nothing for sums by an index, whose model has other parts."""
    return {} if Segments.named(config) is not None else prior.terms(kernel, config, size, device)


def traits(config: Config) -> tuple[tuple[str, Scalar], ...]:
    """What the prior's errors go with (links/prior.py): whether loads of a shared row are ahead, whether a block has several
    rows, and what becomes of sums by an index. Of 345 regimes whose near candidates were all measured on an H100 the best of six
    took 1.0033 times as long as the best of all by the ranking alone, 1.0030 with no more than four of a kind. Of 293 choices of
    the grid 7 are not among the six (benchmarks.gpu.chosen). Where it is wrong: a softmax of 33×306322 has its fastest in fifth
    and eighth place, and one of the other kind, which is slower, is tried instead of the fifth."""
    segments = Segments.named(config)
    if segments is not None:
        return (("variant", segments.value),)
    schedule = schedule_of(config)
    if schedule.chunked:
        return (("stages", schedule.stages),)
    if schedule.combine is Combine.NOTHING and schedule.blocks.y:
        return (("rows", min(2, schedule.blocks.y)),)
    return ()
