"""The flash kernel: tiles of rows against blocks of keys, whose scores stay in the L2 cache.

A unit of work is a run of rows of one item, a key head with its query heads one after another. Its thread packs each block of
keys and values once for all of these rows, and loops over tiles of rows:

    scores[rows, keys]  = queries · panels of keys           register tiles, MR rows by NV vectors
    weights, base       = online softmax of each row
    sums[rows, :]       = sums · factor + weights · panels of values

Blocks of keys to which no row of a unit attends are never read, and products stop at the last key to which a row of the tile
attends. Threads take units from a shared counter, those with the most keys first.

Legal for everything that the problem describes. Moves q and out once, and packs keys and values once per unit. No scores reach
memory. Elsewhere: FlashAttention; oneDNN and ATen: flash attention for CPUs.
"""

from __future__ import annotations

from polytile.attention.cpp import packing, tiles
from polytile.attention.cpp.common import TYPES, WEIGHTS, call, entry, opening
from polytile.attention.problem import AttentionProblem
from polytile.matmul.cpp import common as matmul
from polytile.matmul.cpp import unroll
from polytile.problem import Config

BLOCKS = """\
constexpr long MR = {mr}, NV = {nv}, NR = NV * L, ROWS = {rows}, KEYS = {keys};
"""

WORK = """\
constexpr long UNIT_BYTES = 256 << 10;             // of a unit's queries and sums: they stay in the second-level cache
constexpr long FEWEST_ROWS = 64;                   // for which keys are copied

struct Scratch { PA* queries; PB* keys; PB* values; T* scores; T* sums; Row* rows; };

// The places of a thread's scratch memory from `memory` on; the end of it.
static char* lay_out(const Call& c, long chunk, char* memory, Scratch& s) {
  const long steps = ceil_div(c.D, STEP), width = ceil_div(c.Dv, L) * L, keys = least(KEYS, ceil_div(c.Mkv, NR) * NR);
  const auto take = [&](long bytes) { char* at = memory; memory += (bytes + 64 + 63) / 64 * 64; return at; };
  s.queries = (PA*)take(chunk * steps * sizeof(PA));
  s.keys = (PB*)take(steps * keys * sizeof(PB));
  s.values = (PB*)take(ceil_div(keys, STEP) * width * sizeof(PB));
  s.scores = (T*)take(least(ROWS, chunk) * KEYS * sizeof(T));
  s.sums = (T*)take(chunk * width * sizeof(T));
  s.rows = (Row*)take(chunk * sizeof(Row));
  return memory;
}

// Rows [i, i + rows) of a unit that begins at row r0, against the keys [n, n + count), of which they see the first `seen`.
static void block(const Call& c, const Scratch& s, long item, long r0, long i, long rows, long n, long count, long seen) {
  const long steps = ceil_div(c.D, STEP), width = ceil_div(c.Dv, L) * L, wide = ceil_div(seen, L) * L;
  for (long j = 0; j < seen; j += NR)
    multiply(s.queries + i * steps, steps, rows, s.keys + j * steps, ceil_div(least(NR, seen - j), L), NR, steps,
             s.scores + j, KEYS, false);
  for (long r = 0; r < rows; ++r) {
    T* x = s.scores + r * KEYS;
    const Span own = span(c, item, r0 + i + r, r0 + i + r + 1);
    const float factor = weigh(c, item, r0 + i + r, n, own, wide, x, (Weight*)x, s.rows[i + r]);
    if (factor == 1.0f) continue;
    T* sums = s.sums + (i + r) * width;
    for (long j = 0; j < width; j += L) store(sums + j, load(sums + j) * broadcast(factor));
  }
  for (long j = 0; j < c.Dv; j += NR) {
    const long vectors = ceil_div(least(NR, c.Dv - j), L);
    multiply((const PA*)s.scores, KEYS, rows, s.values + j * ceil_div(count, STEP), vectors, vectors * L, ceil_div(seen, STEP),
             s.sums + i * width + j, width, true);
  }
}

static void unit(const Call& c, const Scratch& s, long item, long r0, long r1) {
  const long width = ceil_div(c.Dv, L) * L, blocks = ceil_div(r1 - r0, ROWS);
  const Span all = span(c, item, r0, r1);
  const auto begin = [&](long k) { return (r1 - r0) * k / blocks; };
  pack_queries(c, item, r0, r1, s.queries);
  for (long i = 0; i < (r1 - r0) * width; i += L) store(s.sums + i, V{});
  for (long i = 0; i < r1 - r0; ++i) s.rows[i] = {NONE, 0.0f};
  for (long n = all.low / KEYS * KEYS; n < all.high; n += KEYS) {
    const long count = least(KEYS, all.high - n);
    pack_keys(c, item, n, count, s.keys);
    pack_values(c, item, n, count, s.values);
    for (long k = 0; k < blocks; ++k) {
      const long i = begin(k), j = begin(k + 1);
      const Span some = span(c, item, r0 + i, r0 + j);
      const long seen = least(count, some.high - n);
      if (seen > 0 && some.low < n + count) block(c, s, item, r0, i, j - i, n, count, seen);
    }
  }
  for (long i = 0; i < r1 - r0; ++i) finish(c, item, r0 + i, s.sums + i * width, s.rows[i]);
}

// How many rows a unit has: as many as stay in the cache, fewer where threads would wait for one another.
static long chunk_of(const Call& c, long threads) {
  const long row = (ceil_div(c.D, STEP) + ceil_div(c.Dv, L) * L) * sizeof(T), fits = most(FEWEST_ROWS, UNIT_BYTES / row);
  long chunks = ceil_div(c.rows, fits);
  if (c.items * chunks % threads && c.items * chunks < 4 * threads)
    chunks = most(chunks, least(ceil_div(4 * threads, c.items), ceil_div(c.rows, FEWEST_ROWS)));
  return chunks > 1 ? ceil_div(ceil_div(c.rows, chunks), MR) * MR : c.rows;
}

static long run(const Call& c, long threads) {
  const long chunk = chunk_of(c, threads), chunks = ceil_div(c.rows, chunk), units = c.items * chunks;
  threads = least(threads, units);
  Scratch none;
  const long bytes = lay_out(c, chunk, nullptr, none) - (char*)nullptr;
  char* memory = (char*)malloc(threads * bytes + 64);
  if (!memory) return NO_MEMORY;
  long next = 0;
  pt::parallel(threads, [&](long thread, long) {
    Scratch s;
    lay_out(c, chunk, (char*)(((unsigned long)memory + 63) / 64 * 64) + thread * bytes, s);
    for (long u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
      const long r0 = (chunks - 1 - u / c.items) * chunk, item = u % c.items;
      const Call& own = of_sequence(c, item / c.Hkv);
      if (r0 < own.rows) unit(own, s, item, r0, least(own.rows, r0 + chunk));
    }
  });
  free(memory);
  return 0;
}
"""


def flash(problem: AttentionProblem, config: Config, name: str, lanes: int) -> str:
    """The translation unit, without the prelude, that exports `name`."""
    pairs = bool(config.get("pairs"))
    mr, nv = int(config["mr"]), int(config["nv"])
    return "".join(
        (
            opening(problem, lanes),
            BLOCKS.format(mr=mr, nv=nv, rows=config["rows"], keys=config["keys"]),
            TYPES,
            matmul.PAIRS if pairs else matmul.MAC,
            packing.PAIRS if pairs else packing.SINGLES,
            tiles.tiles(mr, nv),
            call(problem),
            WEIGHTS,
            unroll.SHUFFLE_MACRO,
            unroll.shuffles(lanes),
            unroll.transpose(lanes, lanes, "transpose"),
            packing.PACK,
            WORK,
            entry(problem, name),
        )
    )
