"""The analytical prior for loops: predicted seconds of a config at given sizes.

    t = CALL + fork + barriers + (sweeps · SWEEP + max(work / rate, bytes / bandwidth)) / speedup

`work` is the multiply-adds of all passes by the table of operations, loads and stores by how they reach memory; `rate` is two
vector multiply-adds a cycle. `bytes` is what each tensor argument moves, each pass again unless the row stays in cache, at the
bandwidth of the level of the memory hierarchy that holds the footprint. A sweep is one run along the vector axis. `speedup`:
threads that find work. The constants and where they come from, what they get right and where they are wrong:
docs/cpu-loops.md. They rank candidates and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polytile.ir import expr, ops, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.program import Store
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.cpp.keeping import kept_values
from polytile.kernels.cpp.tiled import turned
from polytile.kernels.nest import Form, Nest
from polytile.kernels.variants import extent
from polytile.problem import Config

CLOCK = 4.0e9  # Hz; two vector multiply-adds a cycle
CALL = 0.05e-6  # s of a kernel that does nothing
FORK = 1.5e-6  # s to start and join threads that are awake
BARRIER = 0.7e-6  # s
SWEEP = 4.0e-9  # s of a run along the vector axis beside its vectors
LEVELS = ((512 << 10, 60e9), (16 << 20, 30e9), (1 << 62, 12e9))  # (bytes up to, bytes/s of one thread)
BY_LANE = {"strided": 4.0, "turned": 1.2, "gathered": 4.0, "scattered": 8.0}  # multiply-adds of a vector for each lane
CONTIGUOUS = 1.0  # multiply-adds of a vector


def loop_cost(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int], lanes: int) -> float:
    """Seconds of one call; see the module's formula."""
    e = extent(kernel, size)
    threads, variant = int(config["threads"]), str(config["variant"])
    passes = max(1, nest.passes)
    compute = e.points * pass_work(nest, variant, lanes) / (2 * lanes * CLOCK)
    footprint = sum(tensor_bytes(kernel, size).values())
    again = 1.0 + (0.3 if _row_in_cache(e.row) else 1.0) * (passes - 1)
    memory = footprint * (again if nest.form is not Form.POINTWISE else 1.0) / bandwidth(footprint)
    length = sizes.evaluate(nest.vec.size, {s: size[s.name] for s in kernel.symbols})
    sweeps = passes * e.points / max(1, length)
    rows = e.points / max(1, length) if nest.form is Form.COLUMN else e.rows
    items = rows if nest.form is Form.ROW and variant != "split" else max(1, e.points // 1024)
    speedup = max(1.0, min(items / -(-items // threads) if items else 1.0, threads))
    overhead = CALL + (FORK if threads > 1 else 0.0)
    if variant == "split":
        overhead += (e.rows if nest.form is Form.ROW else -(-length // (4 * lanes))) * passes * BARRIER
    return overhead + (sweeps * SWEEP + max(compute, memory)) / speedup


def _row_in_cache(points: int) -> bool:
    return points * 4 <= LEVELS[0][0]


def bandwidth(footprint: float) -> float:
    """Bytes a second of one thread over data of this many bytes."""
    return next(rate for limit, rate in LEVELS if footprint <= limit)


def pass_work(nest: Nest, variant: str, lanes: int) -> float:
    """Multiply-adds of a vector over all passes: values are computed again in each pass unless kept."""
    kept = set(kept_values(nest)) if variant in ("persistent", "split") else set()
    found = turned(nest) if variant == "tiled" else None
    tiles = set(found[1]) if found else set()
    total, before = 0.0, set[Node]()
    for k in range(max(1, nest.passes)):
        done = kept & before
        nodes = set(nest.nodes_in(k, stop=done)) if nest.loop.reduced else set(nest.needed)
        total += sum(CONTIGUOUS if n in done else _work(nest, n, tiles, lanes) for n in nodes)
        total += sum(_access(nest, s, lanes) for s in (nest.stores_in(k) if nest.loop.reduced else nest.loop.stores))
        total += len(nest.reduces_in(k))
        before |= nodes
    return total


def _work(nest: Nest, node: Node, tiles: Iterable[Node], lanes: int) -> float:
    if not nest.is_vector(node):
        return 0.0
    if isinstance(node, Load):
        return BY_LANE["turned"] * lanes if node in tiles else _access(nest, node, lanes)
    return ops.definition(node.name).cost if isinstance(node, Op) else 1.0


def _access(nest: Nest, access: Load | Store, lanes: int) -> float:
    """Multiply-adds that a load or store of one vector costs."""
    stride = sizes.coefficient(access.index, nest.vec.symbol)
    if stride is None or any(nest.is_vector(i) for i in access.indirect):
        return lanes * BY_LANE["gathered" if isinstance(access, Load) else "scattered"]
    return CONTIGUOUS if stride in (0, 1) else lanes * BY_LANE["strided"]


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
