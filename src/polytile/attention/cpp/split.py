"""The split kernel, for few rows and many keys: all threads read keys and values once, in place.

A unit of work is a part of the keys of one item (a key head, with the rows of all query heads that share it). Scores are dot
products along d; values are weighted by register tiles that read their rows in place:

    scores[rows, keys]  = queries · keysᵀ                    dot products, MR rows by COLUMNS keys
    weights, base       = online softmax of each row
    sums[rows, :]       = sums · factor + weights · values   register tiles, MR rows by NV vectors

If there are too few items for the threads, an item has several parts, whose results are combined in the order of the keys.

Legal where rows of keys and values are dense, for at most 32 rows of q per key head (configs.py). Moves keys and values once, and
copies nothing. Costs partial sums for each part. Elsewhere: Flash-Decoding; FlashInfer: split-KV.
"""

from __future__ import annotations

from polytile.attention.cpp import tiles
from polytile.attention.cpp.common import TYPES, WEIGHTS, call, entry, opening
from polytile.attention.problem import AttentionProblem
from polytile.matmul.cpp import common as matmul
from polytile.matmul.cpp import unroll
from polytile.problem import Config

BLOCKS = """\
constexpr long MR = {mr}, NV = {nv}, NR = NV * L, KEYS = {keys}, COLUMNS = {columns}, STRIDE = KEYS + L;
"""

# A vector of a row along d: one element per lane, or a pair.
SINGLES = """\
typedef T PA;
constexpr long W = L;
template <class P> static inline V fetch(const P* p) { return load(p); }
template <class P> static inline V fetch_n(const P* p, long n) { return some<float>(p, 1, n).n; }
static inline void copy_query(const S* p, long stride, long n, PA* out) {
  for (long d = 0; d < n; d += L) pt::store_n(out + d, some<float>(p + d * stride, stride, n - d), least(L, n - d));
}
"""
PAIRS = """\
using attention::load;
using attention::store;
using attention::value;
using attention::broadcast;
""" + matmul.PAIRS + """\
typedef S PA;
constexpr long W = 2 * L;
static inline V fetch(const S* p) { return (V)*(const U32U*)p; }
static inline V fetch_n(const S* p, long n) {
  alignas(64) S row[W] = {};
  __builtin_memcpy(row, p, n * sizeof(S));
  return fetch(row);
}
static inline void copy_query(const S* p, long stride, long n, PA* out) {
  for (long d = 0; d < n; ++d) out[d] = p[d * stride];
}
"""

WORK = """\
constexpr long PARTS = 4;                          // units for each thread, where items have several
typedef keys::PA Q;

struct Scratch { Q* queries; T* scores; S* values; T* sums; Row* rows; };
struct Part { T* sums; Row* rows; };               // what a part of an item leaves

static inline char* take(char*& memory, long bytes) {
  char* at = memory;
  memory += (bytes + 64 + 63) / 64 * 64;
  return at;
}
static inline Part part_at(char*& memory, const Call& c, long width) {
  T* sums = (T*)take(memory, c.rows * width * sizeof(T));
  return {sums, (Row*)take(memory, c.rows * sizeof(Row))};
}
static char* lay_out(const Call& c, long width, char* memory, Scratch& s) {
  s.queries = (Q*)take(memory, c.rows * c.D * sizeof(Q));
  s.scores = (T*)take(memory, c.rows * STRIDE * sizeof(T));
  s.values = (S*)take(memory, c.Dv % L ? KEYS * width * sizeof(S) : 0);
  return memory;
}

// Products of all rows with keys [n, n + count).
static void score(const Call& c, const Scratch& s, long item, long n, long count) {
  for (long i = 0; i < c.rows; i += MR) {
    const long rows = least(MR, c.rows - i);
    const Q* q = s.queries + i * c.D;
    const S* k = keys_at(c, item, n);
    T* out = s.scores + i * STRIDE;
    long j = 0;
    for (; j + COLUMNS <= count; j += COLUMNS, k += COLUMNS * c.k_stride_n)
      keys::DOT[rows - 1](q, c.D, k, c.k_stride_n, c.D, out + j, STRIDE);
    for (; j < count; ++j, k += c.k_stride_n) keys::DOT_ONE[rows - 1](q, c.D, k, c.k_stride_n, c.D, out + j, STRIDE);
  }
}

// Keys [n0, n1) of an item.
static void part(const Call& c, const Scratch& s, const Part& p, long width, long item, long n0, long n1) {
  for (long r = 0; r < c.rows; ++r) keys::copy_query(query_at(c, item, r), c.q_stride_d, c.D, s.queries + r * c.D);
  for (long i = 0; i < c.rows * width; i += L) store(p.sums + i, V{});
  for (long i = 0; i < c.rows; ++i) p.rows[i] = {NONE, 0.0f};
  for (long n = n0, count; n < n1; n += count) {
    count = least(least(KEYS, n1 - n), neighbours(c, n));
    const long wide = ceil_div(count, L) * L;
    score(c, s, item, n, count);
    for (long r = 0; r < c.rows; ++r) {
      T* x = s.scores + r * STRIDE;
      Span own = span(c, item, r, r + 1);
      own.high = least(own.high, n + count);
      const float factor = weigh(c, item, r, n, own, wide, x, x, p.rows[r]);
      if (factor == 1.0f) continue;
      for (long j = 0; j < width; j += L) store(p.sums + r * width + j, load(p.sums + r * width + j) * broadcast(factor));
    }
    const S* v = values_at(c, item, n);
    long stride = c.v_stride_n;
    if (c.Dv % L) {                                // no load may pass the end of a row
      for (long j = 0; j < count; ++j) __builtin_memcpy(s.values + j * width, v + j * stride, c.Dv * sizeof(S));
      v = s.values, stride = width;
    }
    for (long j = 0; j < c.Dv; j += NR)
      values::multiply(s.scores, STRIDE, c.rows, v + j, ceil_div(least(NR, c.Dv - j), L), stride, count, p.sums + j, width, true);
  }
}

// Adds what the part `p` left to what those before it left.
static void combine(const Call& c, const Part& all, const Part& p, long width) {
  for (long r = 0; r < c.rows; ++r) {
    Row& row = all.rows[r];
    const float high = p.rows[r].base > row.base ? p.rows[r].base : row.base, base = high == NONE ? 0.0f : high;
    const float own = power(row.base, base), its = power(p.rows[r].base, base);
    row = {high, row.total * own + p.rows[r].total * its};
    for (long j = r * width; j < (r + 1) * width; j += L)
      store(all.sums + j, load(all.sums + j) * broadcast(own) + load(p.sums + j) * broadcast(its));
  }
}

static long run(const Call& c, long threads) {
  const long width = ceil_div(c.Dv, L) * L, end = visible(c, 0, c.rows), blocks = most(1, ceil_div(end, KEYS));
  const bool whole = c.items % threads == 0 || c.items >= PARTS * threads;
  const long parts = whole ? 1 : least(ceil_div(PARTS * threads, c.items), blocks), units = c.items * parts;
  threads = least(threads, units);
  Scratch none;
  char *own = lay_out(c, width, nullptr, none), *left = nullptr;
  part_at(left, c, width);
  const long kept = parts > 1 ? units : threads;    // parts whose results are kept until all are there
  char* memory = (char*)malloc(threads * long(own) + kept * long(left) + 64);
  if (!memory) return NO_MEMORY;
  char* begin = (char*)(((unsigned long)memory + 63) / 64 * 64);
  const auto part_of = [&](long u) { char* at = begin + threads * long(own) + u * long(left); return part_at(at, c, width); };
  const auto finish_all = [&](const Call& own, long item, const Part& p) {
    for (long r = 0; r < own.rows; ++r) finish(own, item, r, p.sums + r * width, p.rows[r]);
  };
  long next = 0;
  pt::parallel(threads, [&](long thread, long) {
    Scratch s;
    lay_out(c, width, begin + thread * long(own), s);
    for (long u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
      const long item = u / parts, k = u % parts;
      const Part p = part_of(parts > 1 ? u : thread);
      const Call& own = of_sequence(c, item / c.Hkv);
      if (own.rows == 0) continue;
      const Span seen = span(own, item, 0, own.rows);
      const long low = seen.low / KEYS, some = ceil_div(seen.high, KEYS) - low;
      part(own, s, p, width, item, (low + some * k / parts) * KEYS, least(seen.high, (low + some * (k + 1) / parts) * KEYS));
      if (parts == 1) finish_all(own, item, p);
    }
  });
  for (long item = 0; parts > 1 && item < c.items; ++item) {
    const Part all = part_of(item * parts);
    const Call& own = of_sequence(c, item / c.Hkv);
    if (own.rows == 0) continue;
    for (long k = 1; k < parts; ++k) combine(own, all, part_of(item * parts + k), width);
    finish_all(own, item, all);
  }
  free(memory);
  return 0;
}
"""


def split(problem: AttentionProblem, config: Config, name: str, lanes: int) -> str:
    """The translation unit, without the prelude, that exports `name`. k and v have stride 1 along d."""
    pairs = bool(config.get("pairs"))
    mr, nv, columns = int(config["mr"]), int(config["nv"]), int(config["columns"])
    return "".join(
        (
            opening(problem, lanes),
            BLOCKS.format(mr=mr, nv=nv, keys=config["keys"], columns=columns),
            TYPES,
            "namespace keys {\n",
            PAIRS if pairs else matmul.MAC + SINGLES,
            unroll.SHUFFLE_MACRO,
            unroll.shuffles(lanes),
            _dots(mr, columns, lanes),
            "}  // namespace keys\nnamespace values {\ntypedef T PA;\ntypedef S PB;\n",
            matmul.MAC,
            tiles.tiles(mr, nv),
            "}  // namespace values\n",
            call(problem),
            "static inline void store_weights(T* p, Floats x) { pt::store(p, x); }\n",
            WEIGHTS,
            WORK,
            entry(problem, name),
        )
    )


def _dots(mr: int, columns: int, lanes: int) -> str:
    """Dot products of up to `mr` rows with `columns` keys, and with one."""
    rows = range(1, mr + 1)
    text = "".join(unroll.dot(m, n, lanes, 1) for n in (columns, 1) for m in rows)
    text += "typedef void (*Dot)(const PA*, long, const S*, long, long, T*, long);\n"
    for table, n in (("DOT", columns), ("DOT_ONE", 1)):
        text += f"static const Dot {table}[{mr}] = {{{', '.join(f'dot{m}x{n}' for m in rows)}}};\n"
    return text
