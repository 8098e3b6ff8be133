"""The analytical prior for loops: predicted seconds of a config at given sizes.

    t = max(work / compute rate, bytes / bandwidth) / speedup + fork

`work` is the multiply-adds of all passes by the ops table over the vector lanes; `bytes` what each tensor argument moves, each
pass again unless the row stays in cache; bandwidth by the level of the memory hierarchy that holds the footprint; `speedup` the
threads that find work. Constants are round numbers for an AVX-512 server core, not a fit;
they rank candidates and nothing more. Known wrong: strided and gathered accesses cost several times their bytes, and waking a
sleeping thread costs 15-40 µs that back-to-back calls never show.
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.ir import expr, ops, sizes
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.cpp.keeping import kept_values
from polytile.kernels.nest import Form, Nest
from polytile.kernels.variants import extent
from polytile.problem import Config

CLOCK = 3.0e9  # Hz; two vector multiply-adds a cycle
FORK = 1.5e-6  # s to start and join threads that are awake
BARRIER = 0.7e-6  # s
CALL = 0.3e-6  # s of a kernel that does nothing
LEVELS = ((512 << 10, 60e9), (16 << 20, 25e9), (1 << 62, 10e9))  # (bytes up to, bytes/s of one thread)


def loop_cost(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int], lanes: int) -> float:
    """Seconds of one call; see the module's formula."""
    e = extent(kernel, size)
    threads, variant = int(config["threads"]), config["variant"]
    cached = {id(n) for n in kept_values(nest)} if variant in ("persistent", "split") else set()
    compute = e.points * pass_work(nest, cached) / (2 * lanes * CLOCK)
    footprint = sum(tensor_bytes(kernel, size).values())
    again = 1.0 + (0.3 if _row_in_cache(e.row) else 1.0) * max(0, nest.passes - 1)
    memory = footprint * (again if nest.form is not Form.POINTWISE else 1.0) / bandwidth(footprint)
    items = e.rows if nest.form is not Form.POINTWISE and variant != "split" else max(1, e.points // 1024)
    speedup = items / -(-items // threads) if items else 1.0
    overhead = CALL + (FORK if threads > 1 else 0.0)
    if variant == "split":
        overhead += e.rows * nest.passes * BARRIER
    return max(compute, memory) / max(1.0, min(speedup, threads)) + overhead


def _row_in_cache(points: int) -> bool:
    return points * 4 <= LEVELS[0][0]


def bandwidth(footprint: float) -> float:
    """Bytes a second of one thread over data of this many bytes."""
    return next(rate for limit, rate in LEVELS if footprint <= limit)


def pass_work(nest: Nest, cached: set[int]) -> float:
    """Multiply-adds a point over all passes: values are computed again in each pass unless kept."""
    total, seen_before = 0.0, set()
    for k in range(max(1, nest.passes)):
        roots = [a for r in nest.reduces_in(k) for a in r.args] + [x for s in nest.stores_in(k) for x in s.roots]
        total += len(roots)
        stack, seen = list(roots), set()
        while stack:
            node = stack.pop()
            if id(node) in seen or not nest.in_pass(node):
                continue
            seen.add(id(node))
            if id(node) in cached and id(node) in seen_before:
                total += 1.0
                continue
            total += ops.definition(node.name).cost if isinstance(node, expr.Op) else 1.0
            stack.extend(node.children)
        seen_before |= seen
    return total


def tensor_bytes(kernel: LoopKernel, size: Mapping[str, int]) -> dict[str, float]:
    """Bytes of each tensor argument that the loop touches: the product of the axes its index varies with."""
    values = {s: size[s.name] for s in kernel.symbols}
    axes = {a.symbol: sizes.evaluate(a.size, values) for a in kernel.loop.axes + kernel.loop.reduced}
    touched: dict[str, float] = {}
    places = [(load.buffer, load.index) for load in expr.loads(*kernel.loop.roots)]
    places += [(s.buffer, s.index) for s in kernel.loop.stores]
    for buffer, index in places:
        points = 1.0
        for symbol in index.free_symbols & axes.keys():
            points *= axes[symbol]
        touched[buffer] = max(touched.get(buffer, 0.0), points * kernel.storage(buffer).itemsize)
    return touched
