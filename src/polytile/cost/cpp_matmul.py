"""The analytical prior for products on a CPU: predicted seconds of a config at given sizes.

It adds: the fork of the threads; the multiplication, the slower of register-tile cycles and of reading the
operands; what is copied first; and what is written at the end. A register tile of m rows by v vectors needs, per step,

    max(m * v / 2 (two FMAs a cycle), (m + v) / 2 (two loads a cycle), 4 (latency of an FMA)) cycles,

a streamed update of depth u max(m * u / 2, (u + m) / 2, 1.6 m (stores)) per vector of columns and u steps.
Reading costs the bytes over the bandwidth of the level that holds the operand; a block of `mc` rows reads B once more.

Where it is wrong: it takes the operands to be in cache if they fit. A model that runs through more weights than the
last cache holds finds each of them in memory: at M = 1..8 and 1024 x 1024 the time is 3-4 times what is predicted, and
`stream` and `dot`, which read B in long runs, beat `tile_direct` by more than predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from polytile.matmul.cpp.common import ACCUMULATOR_BYTES
from polytile.matmul.cpp.forms import stream_depth
from polytile.matmul.cpp.machine import Machine
from polytile.matmul.cpp.spec import ELEMENT_BYTES, GemmConfig, GemmSpec, k_per_lane, widens

# Cycles to copy one vector of B into a panel, and one of A into a tile: measured on Zen 5 at 768 x 768 with the
# source in L2/L3.
COPY_B_CYCLES = {"n": 5.0, "k": 8.0, "any": 40.0}
COPY_A_CYCLES = {"k": 10.0, "m": 14.0, "any": 40.0}
FINISH_CYCLES = 2.0  # for one vector of sums: out of the registers, to the epilogue, to memory
STORE_CYCLES = 1.6  # for one vector of sums loaded, updated and stored again by the stream form (measured at M = 8)
TILE_CYCLES = 30.0  # to set one register tile up
SIDE_BY_SIDE_CYCLES = {2: 1.5, 4: 3.0}
"""To bring rows of a B that is read in place side by side, by k in a lane: for one vector and step, in each tile of rows anew."""
WIDEN_PAIRS_CYCLES = 5.0  # to make two vectors of kept int8 one of pairs of bfloat16 (4 Mi numbers: 80 us of two threads)
WIDEN_CYCLES = 1.0  # the same to make one vector of bfloat16 or int8 one of float32
# How much slower B is read a panel at a time from rows far apart, and where all rows fall into the same cache sets.
SCATTERED, SCATTERED_SAME_SETS = 1.2, 1.6
WORKSPACE_SECONDS = 5e-8


@dataclass(frozen=True)
class _Shape:
    """The problem in the units the formulas need: vectors of `lanes` columns, `together` k in a lane, balanced rows of a tile.
    `in_place`: cycles to make one vector of a B that is not copied what is multiplied."""

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


def _shape(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], machine: Machine) -> _Shape:
    lanes = max(machine.vector_bytes // ACCUMULATOR_BYTES[spec.accumulator], 1)
    m, n = sizes["M"], sizes["N"]
    tiles, together = max(ceil(m / config.mr), 1), k_per_lane(spec, config)
    in_place = 0.0
    if config.form in ("tile_direct", "stream") or (config.form == "small" and spec.b_layout == "n"):
        in_place = SIDE_BY_SIDE_CYCLES.get(together, WIDEN_CYCLES if spec.stored_b != spec.accumulator else 0.0)
    return _Shape(sizes.get("batch", 1), m, n, sizes["K"], lanes, together, ceil(n / lanes), tiles, m / tiles, in_place)


def tile_cycles(rows: float, vectors: int) -> float:
    """Cycles of one step of K in a register tile of `rows` x `vectors`."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0)


def _tile_compute(s: _Shape, c: GemmConfig) -> float:
    panels, rest = divmod(s.vectors, c.nv)
    steps = s.k / s.together
    per_step = panels * tile_cycles(s.rows, c.nv) + rest * tile_cycles(s.rows, 1)
    per_step += s.in_place * s.vectors
    each = TILE_CYCLES * (panels + rest) * max(1, ceil(s.k / c.kc)) + FINISH_CYCLES * s.rows * s.vectors
    return s.batch * s.row_tiles * (per_step * steps + each)


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
    """Into how many pieces the form can be divided: the bound on useful threads."""
    across = {"stream": s.vectors, "dot": s.row_tiles * s.vectors, "small": ceil(s.vectors / c.nv)}
    if c.form == "splitk":
        return max(s.k // 8, 1)
    return s.batch * across.get(c.form, s.row_tiles * ceil(s.vectors / c.nv))


def _imbalance(units: int, threads: int) -> float:
    """How much longer the busiest thread works than the average."""
    return ceil(units / threads) * threads / units


def _copies(spec: GemmSpec, s: _Shape, c: GemmConfig) -> float:
    """Cycles of copying operands into panels and tiles, all threads together."""
    panelled = c.form in ("tile_packed", "splitk") or (c.form == "small" and spec.b_layout != "n")
    cycles = COPY_B_CYCLES[spec.b_layout] * s.batch * s.k * s.vectors / (2 if s.together > 1 else 1) if panelled else 0.0
    if widens(spec, c):
        cycles += WIDEN_PAIRS_CYCLES * s.k / s.together * s.vectors
    dot_copies = c.form == "dot" and (spec.a_layout != "k" or (spec.dtype == "bfloat16" and not c.pairs))
    if c.form not in ("small", "stream") and (c.pack_a or dot_copies or (s.together > 1 and c.form != "dot")):
        passes = 1 if c.form == "dot" else max(1, ceil(s.n / c.nc))
        cycles += COPY_A_CYCLES[spec.a_layout] * passes * s.batch * s.m * s.k / s.lanes
    return cycles


def _reading(spec: GemmSpec, s: _Shape, c: GemmConfig, sizes: Mapping[str, int], machine: Machine, threads: int) -> float:
    """Seconds of reading A and B from where they lie."""
    element = ELEMENT_BYTES[spec.stored_b]
    b_bytes, a_bytes = s.k * s.n * element, s.m * s.k * ELEMENT_BYTES[spec.dtype]
    items_b = s.batch if sizes.get("b_stride_b", 1) else 1
    bandwidth = machine.bandwidth(items_b * b_bytes + s.batch * a_bytes, threads)
    passes = s.row_tiles if c.form == "stream" else max(1, ceil(s.m / c.mc))
    scattered, apart = 1.0, sizes.get("b_stride_k", s.n) * element
    if c.form in ("tile_direct", "small") and spec.b_layout == "n" and s.n > 4 * c.nv * s.lanes:
        scattered = SCATTERED_SAME_SETS if apart % 4096 == 0 else SCATTERED if s.together == 1 else 1.0
    again = (passes - 1) * 0.25  # later passes find part of B nearer
    if (
        c.form == "tile_direct" and s.together > 1
    ):  # each tile of rows reads B, where its rows fall into the same sets from afar
        again = (s.row_tiles - 1) * (1.0 if scattered == SCATTERED_SAME_SETS else 0.25)
    return s.batch * (b_bytes * scattered * (1 + again) + a_bytes) / bandwidth


@dataclass(frozen=True)
class _Parts:
    """Seconds: of multiplying, of reading, of copying operands first, of threads that start, meet and put sums together. `apart`:
    nothing is multiplied while B is read."""

    work: float
    reading: float
    copying: float
    meeting: float
    apart: bool
    used: int


def cost(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], threads: int, machine: Machine) -> float:
    """Predicted seconds of one call at `sizes` ("batch", "M", "N", "K", strides where known) with `threads` threads."""
    s = _shape(spec, config, sizes, machine)
    if not (s.batch and s.m and s.n):
        return 0.0
    parts = _parts(spec, config, s, sizes, threads, machine)
    # What is read in place is widened or brought side by side, then multiplied: up to four rows take 1.7-4 times as long as kept.
    seconds = parts.work + parts.reading if parts.apart else max(parts.work, parts.reading)
    return seconds + parts.copying + parts.meeting


def terms(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int], threads: int, machine: Machine) -> dict[str, float]:
    """What `cost` is made of, by name (Candidate.terms): seconds of its parts; threads that find work; tiles of rows and
    vectors of columns; the share of multiply-adds that is none of the tiles' overhang."""
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
    work = COMPUTE.get(config.form, _tile_compute)(s, config) * cycle / used * _imbalance(_units(s, config), used)
    meeting = 0.0 if config.form in ("small", "stream") else WORKSPACE_SECONDS
    if used > 1:
        barriers = ceil(s.k / config.kc) if config.form == "tile_packed" and s.batch < threads else 0
        barriers += 2 * s.batch if config.form == "splitk" else 0
        meeting += machine.fork_seconds + barriers * machine.barrier_seconds
    if config.form == "splitk":
        meeting += (used + 1) * s.m * s.n * ACCUMULATOR_BYTES[spec.accumulator] / (machine.l2_gbs * 1e9)
    reading, copying = _reading(spec, s, config, sizes, machine, used), _copies(spec, s, config) * cycle / used
    return _Parts(work, reading, copying, meeting, s.in_place > 0, used)
