"""The analytical prior for loops: predicted seconds of a config at given sizes.

    t = CALL + fork + barriers + max(compute, bytes / bandwidth) / speedup
    compute = work / rate + sweeps · SWEEP + rows · (reductions · ACROSS + scalars / rate)

`work` is the multiply-adds of all vectors in all passes by the table of operations, loads and stores by how they reach memory;
`rate` is two vector multiply-adds a cycle. `bytes` is what each tensor argument moves, each pass again unless the row stays in
cache, at the bandwidth of the level of the memory hierarchy that holds the footprint. A sweep is one run along the vector axis;
where lanes are put together after it, each reduction costs ACROSS, and `scalars` are the values of a row outside its passes.
`speedup`: threads that find work. The constants and where they come from, what they get right and where they are wrong:
docs/cpu-loops.md. They rank candidates and nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polytile.ir import expr, ops, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.program import Store
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.cpp.columns import WIDTH
from polytile.kernels.cpp.keeping import kept_values
from polytile.kernels.cpp.short import short_rows
from polytile.kernels.cpp.squares import Squares, of_variant, tiled_squares
from polytile.kernels.nest import Form, Nest
from polytile.kernels.variants import Extent, extent
from polytile.problem import Config

CLOCK = 4.0e9  # Hz; two vector multiply-adds a cycle
CALL = 0.05e-6  # s of a kernel that does nothing
FORK = 3.0e-6  # s to start and join threads
BARRIER = 0.7e-6  # s
SWEEP = 1.5e-9  # s of a run along the vector axis beside its vectors
ACROSS = 2.5e-9  # s to put the lanes of one reduction together
LEVELS = ((1 << 20, 120e9), (24 << 20, 45e9), (1 << 62, 16e9))  # (bytes up to, bytes/s of one thread)
LINE = 64  # bytes
BY_LANE = {"strided": 2.0, "turned": 0.5, "gathered": 4.0, "scattered": 8.0}  # multiply-adds of a vector for each lane
CONTIGUOUS = 1.0  # multiply-adds of a vector
KEEPING = ("persistent", "split", "short")  # variants that do not compute costly values again


@dataclass(frozen=True)
class Layout:
    """How one pass goes through a loop: runs along the vector axis, vectors in all of them, pieces that threads divide."""

    sweeps: float
    vectors: float
    items: float


def loop_cost(kernel: LoopKernel, nest: Nest, config: Config, size: Mapping[str, int], lanes: int) -> float:
    """Seconds of one call; see the module's formula."""
    e, values = extent(kernel, size), {s: size[s.name] for s in kernel.symbols}
    threads, variant = int(config["threads"]), str(config["variant"])
    squares = of_variant(nest, variant)
    if squares is not None:
        nest = squares.nest
    passes = max(1, nest.passes)
    length = sizes.evaluate(nest.vec.size, values)
    layout = _layout(nest, variant, e, length, lanes)
    work = layout.vectors * pass_work(nest, variant, lanes, squares)
    if squares is not None:
        across = sizes.evaluate(squares.axis.size, values)
        work += _turning(squares.turned, across, length, lanes) * e.points / max(1, across * length)
    elif variant == "short":
        work += _turning(_turned_rows(nest), e.row, e.rows, lanes)
    compute = work / (2 * CLOCK) + passes * layout.sweeps * SWEEP
    if nest.form is Form.ROW and variant != "short":
        compute += e.rows * (len(nest.reduces) * ACROSS + _scalars(nest) / (2 * CLOCK))
    seconds = max(compute, _memory_seconds(kernel, nest, variant, e, size))
    items = max(1.0, layout.items)
    overhead = CALL + (FORK if threads > 1 else 0.0)
    if variant == "split":
        overhead += (e.rows if nest.form is Form.ROW else layout.sweeps) * passes * BARRIER
    return overhead + seconds / max(1.0, min(items / -(-items // threads), threads))


def _layout(nest: Nest, variant: str, e: Extent, length: int, lanes: int) -> Layout:
    vectors = -(-length // lanes)
    if nest.form is Form.ROW and variant == "short":
        groups = -(-e.rows // lanes)
        return Layout(groups, groups * e.row, groups)
    others = e.points / max(1, length)
    if nest.form is Form.COLUMN:
        tiles = -(-vectors // WIDTH) * e.rows / max(1, length)
        return Layout(tiles, vectors * others, e.points // 1024 if variant == "split" else tiles)
    whole = nest.form is Form.ROW and variant != "split"
    return Layout(others, vectors * others, e.rows if whole else e.points // 1024)


def _memory_seconds(kernel: LoopKernel, nest: Nest, variant: str, e: Extent, size: Mapping[str, int]) -> float:
    """What moves between the caches: every pass reads again what the private cache does not hold, and a lane that has a
    line to itself brings the whole line."""
    moved = tensor_bytes(kernel, size)
    footprint = sum(moved.values())
    if nest.form is not Form.POINTWISE:
        again = 0.0 if e.row * 4 <= LEVELS[0][0] else 1.0
        return footprint * (1.0 + again * (max(1, nest.passes) - 1)) / bandwidth(footprint)
    strided = tiled_squares(nest) if variant == "plain" and footprint > LEVELS[0][0] else None
    for load in strided.loads if strided else ():
        footprint += moved[load.buffer] * (LINE / kernel.storage(load.buffer).itemsize - 1)
    return footprint / bandwidth(footprint)


def bandwidth(footprint: float) -> float:
    """Bytes a second of one thread over data of this many bytes."""
    return next(rate for limit, rate in LEVELS if footprint <= limit)


def pass_work(nest: Nest, variant: str, lanes: int, squares: Squares | None = None) -> float:
    """Multiply-adds of a vector over all passes: values are computed again in each pass unless kept. What is turned is read
    from and written to tiles."""
    kept = set(kept_values(nest)) if variant in KEEPING else set()
    tiles = {*squares.loads, *squares.stores} if squares else set[Node | Store]()
    total, before = 0.0, set[Node]()
    for k in range(max(1, nest.passes)):
        stores = nest.stores_in(k) if nest.loop.reduced else nest.loop.stores
        made = kept & before
        nodes = set(nest.nodes_in(k, stop=made)) if nest.loop.reduced else set(nest.needed)
        total += sum(CONTIGUOUS if n in made or n in tiles else _work(nest, n, lanes) for n in nodes)
        total += sum(CONTIGUOUS if s in tiles else _access(nest, s, lanes) for s in stores)
        total += len(nest.reduces_in(k))
        before |= nodes
    return total


def _turning(accesses: int, across: int, along: int, lanes: int) -> float:
    """Multiply-adds of turning the squares of `accesses`, which lie along an axis of `across` elements in memory and have
    `along` in lanes."""
    return accesses * -(-along // lanes) * -(-across // lanes) * lanes * BY_LANE["turned"] * lanes


def _turned_rows(nest: Nest) -> int:
    found = short_rows(nest)
    return len(found.loads) + len(found.stores) if found is not None else 0


def _scalars(nest: Nest) -> float:
    """Multiply-adds of what is computed once for each row."""
    return sum(ops.definition(n.name).cost for n in nest.row_values if isinstance(n, Op))


def _work(nest: Nest, node: Node, lanes: int) -> float:
    if not nest.is_vector(node):
        return 0.0
    if isinstance(node, Load):
        return _access(nest, node, lanes)
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
