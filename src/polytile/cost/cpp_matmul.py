"""The analytical cost model of products on a CPU: predicted seconds of a config at given sizes.

It sums the fork of the threads, the slower of register-tile cycles and of reading the operands, the initial copies, and the final
stores. A register tile of m rows by v vectors needs, per step,

    max(m * v / 2 (two FMAs a cycle), (m + v) / 2 (two loads a cycle), 4 (latency of an FMA)) cycles,

and a streamed update of depth u needs max(m * u / 2, (u + m) / 2, 1.6 m (stores)) per vector of columns and u steps. Reading
costs the bytes over the bandwidth of the memory level that holds the operand; each block of `mc` rows reads B once more.

Tiles of AMX take, per 16 steps, the slower of their products (a cycle for each row of A, 10 at least) and of their loads.

Known wrong: operands are assumed to be in cache if they fit. A model with more weights than the last-level cache holds finds each
of them in memory. At M = 1..8 and 1024 x 1024 the time is then 3-4 times the prediction, and `stream` and `dot`, which read B in
long runs, beat `tile_direct` by more than predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from polytile.matmul.cpp import amx
from polytile.matmul.cpp.common import ACCUMULATOR_BYTES
from polytile.matmul.cpp.forms import stream_depth
from polytile.matmul.cpp.machine import Machine
from polytile.matmul.cpp.spec import ELEMENT_BYTES, GemmConfig, GemmSpec, converts, k_per_lane, widens

# Cycles to copy one vector of B to a panel, and of A to a tile: measured on Zen 5 at 768 x 768 with the source in L2/L3.
COPY_B_CYCLES = {"n": 5.0, "k": 8.0, "any": 40.0}
COPY_A_CYCLES = {"k": 10.0, "m": 14.0, "any": 40.0}
FINISH_CYCLES = 2.0  # for one vector of accumulators: from registers through the epilogue to memory
STORE_CYCLES = 1.6  # to load, update and store one vector of accumulators in the stream form (measured at M = 8)
TILE_CYCLES = 30.0  # to set up one register tile
SIDE_BY_SIDE_CYCLES = {2: 1.5, 4: 3.0}
"""Cycles to interleave rows of a B that is read in place, by the number of k per lane: for one vector and step, repeated in each
row tile."""
WIDEN_PAIRS_CYCLES = 5.0  # to convert two vectors of packed int8 to pairs of bfloat16 (4 Mi numbers: 80 us of two threads)
NIBBLE_CYCLES = 0.5  # to look up one vector of pairs of 4-bit numbers, in each row tile
WIDEN_CYCLES = 1.0  # to convert one vector of bfloat16 or int8 to float32
# Slowdown of reading B by panels from distant rows, and from rows that map to the same cache sets.
SCATTERED, SCATTERED_SAME_SETS = 1.2, 1.6
WORKSPACE_SECONDS = 5e-8
AMX_LEAST_CYCLES = 10.0  # of a product of two tiles; one with 16 rows of A takes 16
AMX_LOAD_CYCLES = 9.0  # to load a tile from the first-level cache, which overlaps with products
COPY_AMX_CYCLES = {"k": 4.0, "m": 8.0, "any": 60.0}  # to copy 64 bytes of A along k, by its layout
AMX_ROW_CYCLES = 1.0  # to add up 64 bytes of a row of int8


@dataclass(frozen=True)
class _Shape:
    """The problem in the units of the formulas: vectors of `lanes` columns, `together` k per lane, balanced rows per tile.
    `in_place` is the cycles to convert one vector of an unpacked B for multiplication, `unpacking` of one of 4-bit numbers."""

    batch: int
    m: int
    n: int
    k: int
    lanes: int
    together: int
    vectors: int
    row_tiles: int
    rows: float
    in_place: float
    unpacking: float


def _shape(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], machine: Machine) -> _Shape:
    lanes = max(machine.vector_bytes // ACCUMULATOR_BYTES[spec.accumulator], 1)
    m, n = sizes["M"], sizes["N"]
    tiles, together = max(ceil(m / config.mr), 1), k_per_lane(spec, config)
    nibbles = spec.nibbles_from is not None and converts(spec, config)
    if nibbles and spec.dtype == "bfloat16" and spec.a_layout == "k" and lanes == 16:
        together = 2  # narrow_panels.py multiplies pairs where the machine has instructions for them
    in_place = 0.0
    if config.form in ("tile_direct", "stream") or (config.form == "small" and spec.b_layout == "n"):
        in_place = SIDE_BY_SIDE_CYCLES.get(together, WIDEN_CYCLES if spec.stored_b != spec.accumulator else 0.0)
    unpacking = NIBBLE_CYCLES * nibbles
    vectors = ceil(n / lanes)
    return _Shape(sizes.get("batch", 1), m, n, sizes["K"], lanes, together, vectors, tiles, m / tiles, in_place, unpacking)


def tile_cycles(rows: float, vectors: int) -> float:
    """Cycles of one step along K in a register tile of `rows` x `vectors`."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0)


def _tile_compute(s: _Shape, c: GemmConfig) -> float:
    panels, rest = divmod(s.vectors, c.nv)
    steps = s.k / s.together
    per_step = panels * tile_cycles(s.rows, c.nv) + rest * tile_cycles(s.rows, 1)
    per_step += (s.in_place + s.unpacking) * s.vectors
    each = TILE_CYCLES * (panels + rest) * max(1, ceil(s.k / c.kc)) + FINISH_CYCLES * s.rows * s.vectors
    return s.batch * s.row_tiles * (per_step * steps + each)


def _amx_compute(s: _Shape, c: GemmConfig) -> float:
    blocks, panels, rest = ceil(s.k / (s.together * amx.STEPS)), *divmod(s.vectors, c.nv)
    product = min(max(AMX_LEAST_CYCLES, s.m), float(amx.HEIGHT))
    pairs, single = divmod(ceil(s.m / amx.HEIGHT), 2) if c.mr > amx.HEIGHT else (0, ceil(s.m / amx.HEIGHT))

    def width(vectors: int) -> float:
        """Cycles of a panel of so many vectors over all rows and 16 steps."""
        two, one = (max(h * vectors * product, (h + vectors) * AMX_LOAD_CYCLES) for h in (2, 1))
        return pairs * two + single * one

    each = TILE_CYCLES * (pairs + single) * (panels + rest) * max(1, ceil(s.k / c.kc)) + FINISH_CYCLES * s.m * s.vectors
    return s.batch * (blocks * (panels * width(c.nv) + rest * width(1)) + each)


def _dot_compute(s: _Shape, c: GemmConfig) -> float:
    width = s.together * s.lanes
    groups, vectors = ceil(s.n / c.nv), ceil(s.k / width)
    across = 1.5 * s.rows * (3 * c.nv + 4) * max(1, ceil(s.k / c.kc))
    ragged = TILE_CYCLES if s.k % width else 0.0
    each = across + ragged + FINISH_CYCLES * s.rows * c.nv / s.lanes + TILE_CYCLES / 2
    return s.batch * s.row_tiles * groups * (vectors * tile_cycles(s.rows, c.nv) + each)


def _stream_compute(s: _Shape, c: GemmConfig) -> float:
    depth = stream_depth(ceil(s.rows), c.unroll)
    per_vector = max(s.rows * depth / 2, (depth + s.rows) / 2, s.rows * STORE_CYCLES) + s.in_place * depth
    updates = ceil(s.k / depth)
    return s.batch * s.row_tiles * (updates * (s.vectors * per_vector + TILE_CYCLES / 2) + s.vectors * s.rows * FINISH_CYCLES)


COMPUTE = {"dot": _dot_compute, "stream": _stream_compute}


def _units(s: _Shape, c: GemmConfig) -> int:
    """Number of work units of a form, which bounds the number of useful threads."""
    across = {"stream": s.vectors, "dot": s.row_tiles * s.vectors, "small": ceil(s.vectors / c.nv)}
    if c.form == "splitk":
        return max(s.k // 8, 1)
    return s.batch * across.get(c.form, s.row_tiles * ceil(s.vectors / c.nv))


def _imbalance(units: int, threads: int) -> float:
    """Time of the busiest thread relative to the average."""
    return ceil(units / threads) * threads / units


def _copies(spec: GemmSpec, s: _Shape, c: GemmConfig) -> float:
    """Cycles to copy operands into panels and tiles, over all threads."""
    panelled = c.form in ("tile_packed", "splitk") or (c.form == "small" and spec.b_layout != "n")
    cycles = COPY_B_CYCLES[spec.b_layout] * s.batch * s.k * s.vectors / (2 if s.together > 1 else 1) if panelled else 0.0
    if widens(spec, c):
        cycles += WIDEN_PAIRS_CYCLES * s.k / s.together * s.vectors
    if c.amx:
        return cycles + s.batch * s.m * s.k / (amx.LANES * s.together) * ceil(s.n / c.nc) * _amx_copy(spec, s, c)
    dot_copies = c.form == "dot" and (spec.a_layout != "k" or (spec.dtype == "bfloat16" and not c.pairs))
    in_place = c.form in ("small", "stream") or converts(spec, c)
    if not in_place and (c.pack_a or dot_copies or (s.together > 1 and c.form != "dot")):
        passes = 1 if c.form == "dot" else max(1, ceil(s.n / c.nc))
        cycles += COPY_A_CYCLES[spec.a_layout] * passes * s.batch * s.m * s.k / s.lanes
    return cycles


def _amx_copy(spec: GemmSpec, s: _Shape, c: GemmConfig) -> float:
    """Cycles for 64 bytes of A before they are multiplied."""
    copied = c.pack_a or spec.a_layout != "k" or s.k % (amx.STEPS * s.together) > 0
    return COPY_AMX_CYCLES[spec.a_layout] * copied + AMX_ROW_CYCLES * (spec.dtype == "int8")


def _reading(spec: GemmSpec, s: _Shape, c: GemmConfig, sizes: Mapping[str, int], machine: Machine, threads: int) -> float:
    """Seconds to read A and B."""
    element, in_a_byte = ELEMENT_BYTES[spec.stored_b], 2 if c.form == "tile_prepacked" and spec.nibbles_from is not None else 1
    b_bytes, a_bytes = s.k * s.n * element // in_a_byte, s.m * s.k * ELEMENT_BYTES[spec.dtype]
    items_b = s.batch if sizes.get("b_stride_b", 1) else 1
    bandwidth = machine.bandwidth(items_b * b_bytes + s.batch * a_bytes, threads)
    passes = s.row_tiles if c.form == "stream" else max(1, ceil(s.m / c.mc))
    scattered, apart = 1.0, sizes.get("b_stride_k", s.n) * element
    if c.form in ("tile_direct", "small") and spec.b_layout == "n" and s.n > 4 * c.nv * s.lanes:
        scattered = SCATTERED_SAME_SETS if apart % 4096 == 0 else SCATTERED if s.together == 1 else 1.0
    again = (passes - 1) * 0.25  # later passes find part of B in a nearer cache
    if (
        c.form == "tile_direct" and s.together > 1
    ):  # each row tile reads B again, from farther away if its rows map to the same cache sets
        again = (s.row_tiles - 1) * (1.0 if scattered == SCATTERED_SAME_SETS else 0.25)
    return s.batch * (b_bytes * scattered * (1 + again) + a_bytes) / bandwidth


@dataclass(frozen=True)
class _Parts:
    """Seconds of multiplication, of reading, of initial copies, and of starting, synchronising and combining threads. `apart`:
    reading B does not overlap with multiplication."""

    work: float
    reading: float
    copying: float
    meeting: float
    apart: bool
    used: int


def cost(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], threads: int, machine: Machine) -> float:
    """Predicted seconds of one call at `sizes` ("batch", "M", "N", "K", strides if known) with `threads` threads."""
    s = _shape(spec, config, sizes, machine)
    if not (s.batch and s.m and s.n):
        return 0.0
    parts = _parts(spec, config, s, sizes, threads, machine)
    # An unpacked B is widened or interleaved before it is multiplied: up to four rows take 1.7-4 times as long as when packed.
    seconds = parts.work + parts.reading if parts.apart else max(parts.work, parts.reading)
    return seconds + parts.copying + parts.meeting


def terms(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], threads: int, machine: Machine) -> dict[str, float]:
    """The terms of `cost` by name (Candidate.terms): seconds of its parts, threads with work, row tiles and vectors of columns,
    and the share of multiply-adds that is not tile padding."""
    s = _shape(spec, config, sizes, machine)
    if not (s.batch and s.m and s.n and s.k):
        return {}
    parts, panels = _parts(spec, config, s, sizes, threads, machine), ceil(s.vectors / config.nv)
    return {
        "loop_s": parts.work,
        "reading_s": parts.reading,
        "copying_s": parts.copying,
        "finish_s": parts.meeting,
        "used": parts.used,
        "row_tiles": s.row_tiles,
        "panels": panels,
        "useful": s.m * s.n / (s.row_tiles * config.mr * panels * config.nv * s.lanes),
    }


def _parts(spec: GemmSpec, config: GemmConfig, s: _Shape, sizes: Mapping[str, int], threads: int, machine: Machine) -> _Parts:
    used = max(1, min(threads, _units(s, config)))
    cycle = machine.cycle()
    compute = _amx_compute if config.amx else COMPUTE.get(config.form, _tile_compute)
    work = compute(s, config) * cycle / used * _imbalance(_units(s, config), used)
    meeting = 0.0 if config.form in ("small", "stream") else WORKSPACE_SECONDS
    if used > 1:
        barriers = ceil(s.k / config.kc) if config.form == "tile_packed" and s.batch < threads else 0
        barriers += 2 * s.batch if config.form == "splitk" else 0
        meeting += machine.fork_seconds + barriers * machine.barrier_seconds
    if config.form == "splitk":
        meeting += (used + 1) * s.m * s.n * ACCUMULATOR_BYTES[spec.accumulator] / (machine.l2_gbs * 1e9)
    reading, copying = _reading(spec, s, config, sizes, machine, used), _copies(spec, s, config) * cycle / used
    return _Parts(work, reading, copying, meeting, s.in_place > 0, used)
