"""Which ways there are to schedule a loop on a GPU: the configs of every loop kernel, in canonical order.

plain        pointwise; blocks x (the vector axis), y, z
persistent   whole rows in registers, read once; r (and r1) hold the row, x rows a program
looped       block after block along the row, read once for each pass
split        `splits` programs a row, block after block; combined by the last program, or by a finalise launch with `gathers`
             columns a program
cluster      `splits` programs that run at the same time hold a row in registers, r of it each; or x columns; read once
sums         row loop with column reduction: whole rows, `programs` programs for all of them; long rows in `parts` of r, or r of
             them by each of the `splits` programs of a cluster
stripes      the same, column-parallel: r columns a program, all rows of them, x at a time; then the points
scatter      segment sums by atomics, by blocks as in plain
leaders      segment sums by first occurrence, for points that seldom share a row: x columns of a point a program, which looks at
             `many` indices at once
seekers      owner-computes segment sums, for few points: x columns of a row a program, which looks at `many` indices at once
sorted       sorted segment reduction: x columns of a row a program, y points at once; clusters of `chunks` programs, which have
             `many` points each, sort those of `rows` rows

Blocks are powers of two; `warps` of 32 threads work on one; `stages` blocks of a loop are under way at once, one where none is
given. A row is what one point of the parallel axes reduces or scans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from polytile.codegen.triton.cluster import clustered
from polytile.codegen.triton.cluster_column_reduction import can_exchange
from polytile.codegen.triton.column_parallel import is_column_parallel
from polytile.codegen.triton.column_reduction import has_column_sums
from polytile.codegen.triton.generate import nest_for
from polytile.codegen.triton.segment_sums import has_segment_sums, table_of
from polytile.codegen.triton.split import splittable
from polytile.cost import triton_loops as prior
from polytile.cost import triton_segments as segments_prior
from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.ir.program import Axis
from polytile.problem import Config, Scalar
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import INT32_REACH
from polytile.schedule.nest import Form, Nest

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

PLAIN_1 = ((256, 1), (256, 2), (512, 2), (512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8))
"""(x, warps) of loops with one axis: 4 to 16 elements a thread, two to eight vectors of 16 bytes."""
PLAIN_2 = (
    (256, 1, 2), (512, 1, 4), (1024, 1, 4), (2048, 1, 8), (256, 4, 4), (128, 8, 4), (64, 16, 4), (32, 32, 4), (64, 32, 4),
    (32, 64, 4), (64, 64, 4), (64, 64, 8), (16, 64, 4), (8, 128, 4), (4, 256, 4), (2, 512, 4), (512, 4, 4), (1024, 4, 8),
)  # fmt: skip
"""(x, y, warps) of loops with two axes or more: long rows first, then squares, which serve transposes, then short rows."""
PLAIN_3 = ((32, 8, 4, 4), (16, 16, 4, 4), (8, 8, 16, 4), (4, 16, 16, 4), (16, 4, 16, 4))
"""(x, y, z, warps) besides PLAIN_2 of loops with three axes or more."""

ROWS = tuple(1 << k for k in range(4, 16))
"""Row lengths r of persistent reductions: up to 32768, 64 values a thread of 16 warps."""
ELEMENTS = (8, 16, 32)
"""Values a thread holds of a whole row, those but the last of several rows; 64 too where the row leaves no choice."""
LOOPED = ((1, 512, 4), (1, 1024, 4), (1, 2048, 4), (1, 2048, 8), (1, 4096, 8), (1, 4096, 16), (1, 8192, 16), (8, 128, 4))
"""(x, r, warps)"""
AHEAD = ((1024, 4, 3), (2048, 4, 3), (2048, 8, 3), (4096, 8, 3))
"""(r, warps, stages) of split rows whose loads are some blocks ahead, by way of shared memory: 0.87 of the time of others in
the gradient of a layer norm of 64×131072."""
LOOPED_2 = (
    (1, 1024, 4), (1, 2048, 8), (2, 512, 4), (4, 256, 4), (8, 128, 4), (16, 64, 4), (64, 16, 4), (4, 1024, 8), (16, 256, 8),
    (64, 64, 8), (256, 16, 8),
)  # fmt: skip
"""(r1, r, warps) of loops with two reduced axes or more."""
COLUMNS = (
    (16, 32, 4), (16, 64, 4), (32, 16, 4), (32, 32, 4), (32, 64, 4), (32, 128, 8), (64, 32, 4), (64, 64, 4), (64, 64, 8),
    (128, 16, 4), (128, 32, 4), (128, 64, 8), (256, 8, 4), (256, 16, 4), (256, 32, 8), (512, 8, 4), (512, 8, 8),
)  # fmt: skip
"""(x, r, warps) of reductions across rows of memory: 4 to 32 values a thread, runs of 32 bytes or more."""
RESIDENT_COLUMNS = ((16, 512, 8), (32, 512, 8), (64, 512, 16), (16, 1024, 8), (16, 1024, 16), (32, 1024, 16), (16, 2048, 16))
RESIDENT_RUN = 64
"""(x, r, warps) of longer columns held whole, which are read once: 32 or 64 values a thread, the latter in some 115 registers;
and bytes of a row that a block has at least. By 32 a batch norm of 2048×4096 bfloat16 took 20.3 µs, 17.8 shared by programs."""
PACKED_COLUMNS, PACKED_WARPS = ((32, 512, 4), (32, 1024, 8)), 16
"""(x, r, warps) of columns of 16 bits held whole that are made floats anew for each pass, 128 values a thread in 128 registers;
and warps of all programs on a multiprocessor."""
COLUMNS_AHEAD = ((16, 64, 4, 3), (32, 32, 4, 3), (64, 32, 4, 3), (64, 16, 4, 4), (128, 16, 4, 3))
"""(x, r, warps, stages), split or not, with loads ahead: 0.85 of the time of others in a batch norm of 8192×4096."""
SPLITS = (4, 8, 16, 32, 64, 128, 256)
SPLIT_ROWS = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16))
SPLIT_COLUMNS = ((16, 128, 4), (32, 64, 4), (32, 128, 8), (64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 32, 4), (128, 64, 8),
                 (256, 16, 4))  # fmt: skip
SUM_POINTS, SUM_ELEMENTS, SUM_STAGES = (512, 1024, 2048, 4096, 8192), (8, 16), (1, 3)
"""Points of a block of rows beside which columns are added up, values a thread holds of each of them, blocks under way: at 16
values a row, its weight and two sums take 128 registers."""
SUM_WARPS = {8: (16, 32), 16: (16,)}
"""Warps of all programs on a multiprocessor, by the values that a thread holds."""
SUM_PARTS = ((2048, 4, 16), (4096, 2, 16), (2048, 8, 32), (4096, 4, 16), (4096, 4, 32), (8192, 2, 16))
"""(r, parts, warps) of rows that are read again for each pass: 16 or 32 values of each sum a thread."""
SUM_SHARE, SUM_CLUSTERS = (8192, 16), ((2, 1.0), (4, 7 / 8), (8, 7 / 8))
"""(r, warps) of longer rows, which clusters hold: 16 values of a row, its weight and each sum a thread; and (splits, share of the
multiprocessors that have programs). Of its 132 an H100 has clusters of four or eight on 120 at once: the gradient of a layer norm
of 512×32768 bfloat16 took 72.5 µs with 128 programs, 51.1 with 112. Clusters of sixteen take as long as column-parallel programs
for 64×131072."""
COLUMN_PARALLEL = ((1, 512, 2), (2, 512, 4), (4, 256, 4), (8, 128, 4), (2, 1024, 4), (4, 512, 4), (8, 256, 4), (16, 128, 4))
"""(x, r, warps)"""
FINALISED_SPLITS, FINALISED = (64, 128, 256, 512), 8
FINALISED_COLUMNS = ((32, 64, 4), (64, 32, 4), (64, 64, 8), (128, 16, 4))
"""(x, r, warps) of columns that a launch of their own puts together, FINALISED columns a program. With the last program of 256
doing it, batch norms of 131072×64 take 224 registers a thread, which leaves a multiprocessor two programs; without it 72."""
CLUSTERS, CLUSTERED = (2, 4, 8, 16), 90
"""Programs of a cluster: eight may always be, sixteen on an H100; the capability from which on devices have clusters."""
CLUSTER_ROWS = ((4096, 4), (4096, 8), (8192, 4), (8192, 8), (8192, 16), (16384, 8), (16384, 16))
"""(r, warps): 16 to 64 values a thread."""
CLUSTER_COLUMNS = ((16, 512, 8), (16, 1024, 8), (32, 256, 8), (32, 512, 8), (32, 1024, 8))
CLUSTER_WARPS = {(16, 128): (24,), (16, 256): (16,), (32, 128): (32,), (32, 256): (16,)}
"""(x, r, warps); and warps of all programs on a multiprocessor, two programs at least, by the bits of an element and the bytes
that a thread holds: 80, 128, 64 and 128 registers a thread."""
FIRST_OCCURRENCE, MANY = ((128, 1), (512, 2), (1024, 4)), (128, 1024)
"""(x, warps), a vector of 16 bytes or two a thread, and how many indices at once."""
OWNER_COMPUTES = ((64, 1, 128), (1024, 4, 128), (2048, 4, 128), (1024, 8, 512), (2048, 4, 1024), (2048, 8, 512), (4096, 8, 1024),
           (4096, 16, 1024))  # fmt: skip
"""(x, warps, many)"""
SORTED = ((256, 4, 1), (256, 8, 1), (512, 4, 2), (512, 4, 4), (1024, 4, 4), (2048, 2, 4))
SORTING = ((32, 1024, 1), (64, 256, 4), (64, 512, 4), (64, 512, 8), (32, 1024, 8), (32, 2048, 8), (128, 2048, 8), (64, 2048, 16))
"""(x, y, warps): a thread has 4 to 16 columns of every point, so that none has to be told what others add up; (rows, many,
chunks)."""
SEGMENT_SUMS = ("scatter", "leaders", "seekers", "sorted")
FINISHED = 64
"""Values a thread may hold of what the programs of a row have left."""


def configs(kernel: LoopKernel, nest: Nest, device: DeviceFacts) -> tuple[Config, ...]:
    """All configs of `kernel`, whose layout is `nest`, that fit on the device."""
    if has_segment_sums(kernel.loop):
        configs = _segment_sums(table_of(kernel.loop) is not None, device)
    elif has_column_sums(kernel.loop):
        configs = _column_reductions(kernel, device) if nest.form is Form.ROW and not nest.inner else iter(())
    elif nest.form is Form.COLUMN:
        configs = itertools.chain(_columns(nest), _resident_columns(kernel, nest))
    else:
        configs = (_rows if nest.form is Form.ROW else _plain)(nest)
    if device.capability >= CLUSTERED and not has_segment_sums(kernel.loop) and not has_column_sums(kernel.loop):
        configs = itertools.chain(configs, _clusters(kernel, nest_for(kernel, "cluster")[1]))
    most = device.threads_per_block // device.warp
    splits = nest.form is not Form.POINTWISE and not has_column_sums(kernel.loop) and splittable(nest_for(kernel, "split")[1])
    return tuple(c for c in configs if int(c["warps"]) <= most and (splits or c["variant"] != "split"))


def _plain(nest: Nest) -> Iterator[Config]:
    if len(nest.loop.axes) <= 1:
        yield from (Config.of(variant="plain", x=x, warps=w) for x, w in PLAIN_1)
        return
    yield from (Config.of(variant="plain", x=x, y=y, warps=w) for x, y, w in PLAIN_2)
    if len(nest.loop.axes) > 2:
        yield from (Config.of(variant="plain", x=x, y=y, z=z, warps=w) for x, y, z, w in PLAIN_3)


def _segment_sums(rows: bool, device: DeviceFacts) -> Iterator[Config]:
    yield from (Config.of(variant="scatter", x=x, y=y, warps=w) for x, y, w in PLAIN_2)
    for (x, warps), many in itertools.product(FIRST_OCCURRENCE if rows else (), MANY):
        yield Config.of(variant="leaders", x=x, warps=warps, many=many)
    for x, warps, many in OWNER_COMPUTES if rows else ():
        yield Config.of(variant="seekers", x=x, warps=warps, many=many)
    for (x, y, warps), (row, many, chunks) in itertools.product(SORTED if rows else (), SORTING):
        if chunks == 1 or device.capability >= CLUSTERED:
            yield Config.of(variant="sorted", x=x, y=y, warps=warps, rows=row, many=many, chunks=chunks)


def _rows(nest: Nest) -> Iterator[Config]:
    if nest.inner:
        yield from _nested_rows(nest)
        return
    for r in ROWS:
        for x, warps in whole_rows(r):
            if x == 1 or nest.outer:
                yield Config.of(variant="persistent", x=x, r=r, warps=warps)
    for x, r, warps in LOOPED:
        if x == 1 or nest.outer:
            yield Config.of(variant="looped", x=x, r=r, warps=warps)
    for splits, (r, warps) in itertools.product(SPLITS, SPLIT_ROWS):
        yield Config.of(variant="split", r=r, warps=warps, splits=splits)
    for splits, (r, warps, stages) in itertools.product(SPLITS, AHEAD):
        yield Config.of(variant="split", r=r, warps=warps, splits=splits, stages=stages)


def _column_reductions(kernel: LoopKernel, device: DeviceFacts) -> Iterator[Config]:
    for r, points, each in itertools.product(ROWS[:-2], SUM_POINTS, SUM_ELEMENTS):
        x, warps = points // r, points // (32 * each)
        if not 1 <= x <= 128 or not 1 <= warps <= 16:
            continue
        for resident, stages in itertools.product(SUM_WARPS[each], SUM_STAGES):
            if warps <= resident:
                programs = device.sms * (resident // warps)
                yield Config.of(variant="sums", x=x, r=r, warps=warps, programs=programs, stages=stages)
        if points >= 2048:
            yield Config.of(variant="sums", x=x, r=r, warps=warps, programs=1)
    for r, parts, warps in SUM_PARTS:
        yield Config.of(variant="sums", x=1, r=r, parts=parts, warps=warps, programs=device.sms)
    if device.capability >= CLUSTERED and can_exchange(nest_for(kernel, "sums")[1]):
        yield from _cluster_column_reductions(device)
    blocks = COLUMN_PARALLEL if is_column_parallel(nest_for(kernel, "stripes")[1]) else ()
    for (x, r, warps), stages in itertools.product(blocks, SUM_STAGES):
        yield Config.of(variant="stripes", x=x, r=r, warps=warps, stages=stages)


def _cluster_column_reductions(device: DeviceFacts) -> Iterator[Config]:
    r, warps = SUM_SHARE
    for (splits, share), stages in itertools.product(SUM_CLUSTERS, SUM_STAGES):
        programs = int(device.sms * share) // splits * splits
        yield Config.of(variant="sums", x=1, r=r, warps=warps, splits=splits, programs=programs, stages=stages)


def whole_rows(r: int) -> Iterator[tuple[int, int]]:
    """(x, warps) of blocks of x whole rows of length r: several rows a program while a row has at most 1024 points."""
    for x in (1, 2, 4, 8, 16, 32, 64, 128) if r <= 1024 else (1,):
        for warps in (1, 2, 4, 8, 16, 32):
            held = x * r // (32 * warps)
            several = held in ELEMENTS[:-1] and 512 <= x * r <= 8192 and warps in (2, 4, 8)
            several = several or (held in ELEMENTS[1:] and 512 <= x * r and warps in (1, 2))
            if several if x > 1 else held in ELEMENTS:
                yield x, warps
    if r == ROWS[-1]:
        yield 1, 16
    if r < 256:
        yield 1, 1


def _clusters(kernel: LoopKernel, nest: Nest) -> Iterator[Config]:
    if clustered(nest) and nest.form is Form.COLUMN:
        yield from _clustered_columns(kernel, nest)
        return
    for splits, (r, warps) in itertools.product(CLUSTERS if clustered(nest) else (), CLUSTER_ROWS):
        yield Config.of(variant="cluster", x=1, r=r, warps=warps, splits=splits)


def _clustered_columns(kernel: LoopKernel, nest: Nest) -> Iterator[Config]:
    held = _resident_bytes(kernel, nest)
    for splits, (x, r, warps) in itertools.product(CLUSTERS if held else (), CLUSTER_COLUMNS):
        each = x * r * sum(held) // (32 * warps)
        for resident, rest in (divmod(n, warps) for n in CLUSTER_WARPS.get((8 * min(held), each), ())):
            if resident > 1 and not rest and x * min(held) >= RESIDENT_RUN:
                yield Config.of(variant="cluster", x=x, r=r, warps=warps, splits=splits, resident=resident)


def _nested_rows(nest: Nest) -> Iterator[Config]:
    if len(nest.inner) == 1:
        for r1, r in itertools.product((2, 4, 8, 16, 32, 64, 128, 256), (4, 16, 32, 64, 128, 256, 512, 1024, 2048)):
            if 256 <= r1 * r <= 16384:
                yield Config.of(variant="persistent", r=r, r1=r1, warps=max(1, min(16, r1 * r // 512)))
    for r1, r, warps in LOOPED_2:
        yield Config.of(variant="looped", r=r, r1=r1, warps=warps)
    for along, splits, (r1, r, warps) in itertools.product(("r1", "r"), SPLITS, LOOPED_2[:7]):
        yield Config.of(variant="split", r=r, r1=r1, warps=warps, splits=splits, along=along)


def _columns(nest: Nest) -> Iterator[Config]:
    if len(nest.inner) == 1:
        for r, x, each in itertools.product((2, 4, 8, 16, 32, 64, 128, 256, 512), (32, 64, 128, 256, 512, 1024), (16, 32)):
            warps = r * x // (32 * each)
            if 512 <= r * x <= 16384 and warps in (1, 2, 4, 8, 16) and not (each == 16 and warps > 8):
                yield Config.of(variant="persistent", x=x, r=r, warps=warps)
    for x, r, warps in COLUMNS:
        yield Config.of(variant="looped", x=x, r=r, warps=warps)
    for x, r, warps, stages in COLUMNS_AHEAD:
        yield Config.of(variant="looped", x=x, r=r, warps=warps, stages=stages)
    for splits, (x, r, warps) in itertools.product(SPLITS, SPLIT_COLUMNS):
        if splits * x <= 32 * warps * FINISHED:
            yield Config.of(variant="split", x=x, r=r, warps=warps, splits=splits)
    for splits, (x, r, warps) in itertools.product(FINALISED_SPLITS, FINALISED_COLUMNS):
        yield Config.of(variant="split", x=x, r=r, warps=warps, splits=splits, gathers=FINALISED)
    for splits, (x, r, warps, stages) in itertools.product(SPLITS, COLUMNS_AHEAD):
        if splits * x <= 32 * warps * FINISHED:
            yield Config.of(variant="split", x=x, r=r, warps=warps, splits=splits, stages=stages)


def _resident_columns(kernel: LoopKernel, nest: Nest) -> Iterator[Config]:
    if len(nest.inner) != 1 or nest.passes == 1:
        return
    held = _resident_bytes(kernel, nest)
    for x, r, warps in RESIDENT_COLUMNS:
        if x * min(held, default=1) >= RESIDENT_RUN:
            yield Config.of(variant="persistent", x=x, r=r, warps=warps)
    for x, r, warps in PACKED_COLUMNS if held == [2] else ():
        yield Config.of(variant="persistent", x=x, r=r, warps=warps, resident=PACKED_WARPS // warps)


def _resident_bytes(kernel: LoopKernel, nest: Nest) -> list[int]:
    """Bytes of the elements that are read at every point."""
    return [kernel.storage(n.buffer).itemsize for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]


def valid(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int]) -> bool:
    """Whether `config` gives right results at these sizes: a persistent one must hold the whole row. Later calls of a regime
    go to it unasked, so it must hold at the regime's largest sizes too."""
    if config["variant"] == "sorted":
        return _sorts(config, *segments_prior.extent(kernel, size))
    down = config["variant"] == "looped" and nest.form is Form.COLUMN
    if config["variant"] not in ("persistent", "sums", "cluster") and not down:
        return True
    values = {s: size[s.name] for s in kernel.symbols}
    rows = [sizes.evaluate(a.size, values) for a in row_axes(nest)]
    held = [int(config.get(name, 1) or 1) for name in ("r", "r1")] + [1] * len(rows)
    held[0] *= int(config.get("parts", 1) or 1) * int(config.get("splits", 1) or 1)
    shorter = config["variant"] != "persistent" or (nest.form is Form.COLUMN and held[0] >= RESIDENT_COLUMNS[0][1])
    if shorter and rows[0] <= held[0] // 2 and held[0] > ROWS[0]:
        return False  # right, but never worth its time: there is one of half the length
    return down or all(n <= block for n, block in zip(rows, held, strict=False))


def _sorts(config: Config, points: int, rows: int) -> bool:
    """Whether a cluster holds so many points, and none that holds fewer would do; what its programs tell each other of so many
    rows needs no numbers of 64 bits, which the table may do without."""
    held, told = int(config["chunks"]) * int(config["many"]), 2 * int(config["chunks"]) * rows
    fewer = [chunks * many for own, many, chunks in SORTING if own == config["rows"] and chunks * many < held]
    return max(fewer, default=-1) < points <= held and told <= INT32_REACH


def cost(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call."""
    if config["variant"] in SEGMENT_SUMS:
        return segments_prior.cost(kernel, config, size, device)
    return prior.cost(kernel, config, size, device)


def traits(config: Config) -> tuple[tuple[str, Scalar], ...]:
    """What the prior's errors go with (links/prior.py): whether loads of a shared row are ahead, whether a block has several
    rows, and what becomes of sums by an index. Of 345 regimes whose near candidates were all measured on an H100 the best of six
    took 1.0033 times as long as the best of all by the ranking alone, 1.0030 with no more than four of a kind. Of 293 choices of
    the grid 7 are not among the six (benchmarks.gpu.chosen). Where it is wrong: a softmax of 33×306322 has its fastest in fifth
    and eighth place, and one of the other kind, which is slower, is tried instead of the fifth."""
    variant = str(config["variant"])
    if variant == "split":
        return (("stages", int(config.get("stages", 1) or 1)),)
    if variant == "plain" and config.get("y"):
        return (("rows", min(2, int(config["y"]))),)
    return (("variant", variant),) if variant in SEGMENT_SUMS else ()


def row_axes(nest: Nest) -> list[Axis]:
    """The reduced axes, the innermost first, as blocks r, r1, ... cover them."""
    return list(reversed((*nest.inner, *((nest.vec,) if nest.form is Form.ROW else ()))))
