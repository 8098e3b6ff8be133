"""The backward kernel: blocks of keys against tiles of rows, whose scores are computed again and stay in the L2 cache.

A unit of work is a range of keys of one item, a key head with its query heads one after another. For each block of its keys and
each tile of rows that sees some of them,

    p[rows, keys]   = exp(mask(scale · q · kᵀ) - lse)                              register tiles, MR rows by NV vectors
    ds[rows, keys]  = p · (grad · vᵀ - delta) · slope,    delta = Σ_d grad · out - grad_lse
    dv[keys, :]    += pᵀ · grad,    dk[keys, :] += dsᵀ · q,    dq[rows, :] += ds · k

`slope` is the derivative of a score by its product, where scores are expressions. If the gradient of the scores is wanted, for
that of a bias, p · (grad · vᵀ - delta) is stored too. A unit takes rows in chunks of bounded size, and adds up dk, dv and dq in
memory of its own. If there are few items, an item has several units, and their sums for dq are added in the order of the keys.
How many is a matter of the sizes alone, so the number of threads does not change any bit of the result.

A row without keys, whose lse is -inf, has no gradient.

Legal for what the forward kernel `flash` takes, except pages. Costs five products of tiles where the forward kernel has two.
Elsewhere: FlashAttention-2, which has the same loops and adds up dq by atomics.
"""

from __future__ import annotations

from polytile.attention.cpp import packing, tiles
from polytile.attention.cpp.common import TYPES, call, entry, opening
from polytile.attention.problem import AttentionProblem
from polytile.attention.scores import scores_of
from polytile.matmul.cpp import common as matmul
from polytile.matmul.cpp import unroll
from polytile.problem import Config

BLOCKS = """\
constexpr long MR = {mr}, NV = {nv}, NR = NV * L, ROWS = {rows}, KEYS = {keys};
constexpr long STRIDE = KEYS + L;                  // between rows of a tile: not a power of two, as columns are read
"""

# How a tile's gradients are stored for the products: floats in place, or pairs of bfloat16 along rows (dk, dv) and keys (dq).
SINGLES = """\
static inline void store_pair(T* p, const Floats* x) { pt::store(p, x[0]); }
static inline void store_row(T*, Floats) {}
"""
PAIRS = """\
static inline void store_pair(T* p, const Floats* x) {
  const U32 low = __builtin_convertvector(rounded(x[0]), U32), high = __builtin_convertvector(rounded(x[1]), U32);
  store((unsigned*)p, (V)(low | high << 16));
}
static inline void store_row(pt::bf16* p, Floats x) { store_weights(p, x); }
"""

KEPT = """\
// Where the gradient of the score of row r of an item and key n is kept.
static inline S* kept_at(const Call& c, long item, long r, long n) {
  const long b = item / c.Hkv, h = head_of(c, item, r), m = r % c.Mq;
  return c.dscores + b * c.dscores_stride_b + h * c.dscores_stride_h + m * c.dscores_stride_m + n;
}
"""
NOT_KEPT = "static inline S* kept_at(const Call&, long, long, long) { return nullptr; }\n"

NO_SLOPE = "static inline Floats slope(const Call&, Floats x, const At&, long, long) { return x; }\n"
GRAD_LSE = """\
static inline float grad_lse_at(const Call& c, long b, long h, long m) {
  return c.grad_lse[b * c.grad_lse_stride_b + h * c.grad_lse_stride_h + m * c.grad_lse_stride_m];
}
"""
NO_GRAD_LSE = "static inline float grad_lse_at(const Call&, long, long, long) { return 0.0f; }\n"

ROWS = """\
static inline const S* grad_at(const Call& c, long item, long r) {
  return c.grad + item / c.Hkv * c.grad_stride_b + head_of(c, item, r) * c.grad_stride_h + r % c.Mq * c.grad_stride_m;
}
// Rows of a product's left operand, along the sums, and of its right operand, a step of rows after the other. Without pairs
// these are the same memory.
struct Operand { PA* left; PB* right; long left_m, width; };

template <class At> static void pack(const At& at, long stride, long length, long count, const Operand& out) {
  for (long r = 0; r < count; r += STEP) {
    const S* p = at(r);
    const long next = r + 1 < count ? at(r + 1) - p : 0;
    for (long i = 0; i < out.width; i += L)
      store(out.right + r / STEP * out.width + i, columns(p + i * stride, next, stride, count - r, length - i));
  }
  for (long r = 0; STEP > 1 && out.left && r < count; ++r)
    for (long d = 0; d < out.left_m; d += L)
      store(out.left + r * out.left_m + d, steps_of(at(r) + STEP * d * stride, stride, length - STEP * d));
}
"""

CHANGES = """\
// A row before a block of keys: where it stands, how many of the keys it may see, and whether a mask hides some of those.
struct Line { At at; Row row; long seen; bool hides; S* kept; };

static void row_of(const Call& c, long item, long r, Row& row) {
  const long b = item / c.Hkv, h = head_of(c, item, r), m = r % c.Mq;
  const S *grad = grad_at(c, item, r), *out = c.out + b * c.out_stride_b + h * c.out_stride_h + m * c.out_stride_m;
  Floats sum(0.0f);
  for (long d = 0; d < c.Dv; d += L) sum = pt::mad(some<float>(grad + d, 1, c.Dv - d), some<float>(out + d, 1, c.Dv - d), sum);
  const float log = c.saved[b * c.saved_stride_b + h * c.saved_stride_h + m * c.saved_stride_m];
  row = {log == NONE ? 0.0f : log, pt::hsum(sum) - grad_lse_at(c, b, h, m)};
}

// Vector j of a row: the weights p of the products x, and the gradient of the products from that of the weights, g.
static inline void differentiate(const Call& c, const Line& line, long j, Floats x, Floats g, Floats& p, Floats& ds) {
  const long n = line.seen - j;
  p = ds = Floats(0.0f);
  if (n <= 0) return;
  Floats s = x * Floats(c.scale);
  if constexpr (CHANGED) s = changed(c, s, line.at, j, n);
  if (line.hides) s = shown(c, s, line.at, j, n);
  if (n < L) s = pt::select(pt::first_n<float, L>(n), s, Floats(NONE));
  const bool plain = !CHANGED && !line.hides && n >= L;
  p = pt::exp(plain ? pt::mad(x, Floats(c.scale), Floats(-line.row.log)) : s - Floats(line.row.log));
  ds = p * (g - Floats(line.row.delta));
  if constexpr (KEEPS) pt::store_n(line.kept + j, ds, least(n, L));
  if constexpr (SLOPED) ds = pt::select(s == Floats(NONE), Floats(0.0f), ds * slope(c, x * Floats(c.scale), line.at, j, n));
}

// Makes the products of rows [i, i + rows) of the chunk with the keys [n, n + count), in tiles of `wide` columns, p and ds.
static void change(const Call& c, const Scratch& s, long item, long i, long rows, long n, long count, long wide) {
  for (long r = 0; r < rows; r += STEP) {
    Line lines[STEP];
    for (long u = 0; u < least(STEP, rows - r); ++u) {
      const long row = s.first + i + r + u;
      const Span own = span(c, item, row, row + 1);
      const long seen = most(0, least(count, own.high - n));
      const bool hides = MASKED && (own.all_low > n || own.all_high < n + seen);
      lines[u] = {at_of(c, item, row, n), s.rows[i + r + u], seen, hides, kept_at(c, item, row, n)};
    }
    T *x = s.scores + r * STRIDE, *g = s.changes + r * STRIDE;
    for (long j = 0; j < wide; j += L) {
      Floats p[STEP], ds[STEP];
      for (long u = 0; u < STEP; ++u) {
        p[u] = ds[u] = Floats(0.0f);
        if (r + u < rows) differentiate(c, lines[u], j, load(x + u * STRIDE + j), load(g + u * STRIDE + j), p[u], ds[u]);
        store_row((Weight*)(s.along_keys + (r + u) * (STRIDE / STEP)) + j, ds[u]);
      }
      store_pair(x + j, p);
      store_pair(g + j, ds);
    }
  }
}
"""

SCRATCH = """\
struct Row { float log, delta; };                  // a log-sum-exp, and delta
// A thread's memory. `first` is the row with which the chunk begins, whose rows are in queries, grads and rows.
struct Scratch {
  long first;
  Operand queries, grads, keys;
  PB *key_panels, *value_panels;
  PA* along_keys;
  T *scores, *changes, *dk, *dv;
  Row* rows;
};
"""

WORK = """\
constexpr long UNITS = 32;                         // that there are at least, where an item has several
constexpr long MOST_BYTES = 256 << 20;             // of the sums for dq, where items have several units
constexpr long CHUNK_BYTES = 4 << 20;              // of a chunk's queries, gradients and sums

// How many units an item has, how many rows a chunk has, and of how many keys dk and dv are kept: of a block, or of all keys of a
// unit where chunks add to them one after the other.
struct Plan { long parts, chunk, kept; };

static inline long whole(long n) { return ceil_div(n, L) * L; }

// The places of a thread's scratch memory from `memory` on; the end of it.
static char* lay_out(const Call& c, const Plan& plan, char* memory, Scratch& s) {
  const long keys = least(KEYS, ceil_div(c.Mkv, NR) * NR);
  const auto take = [&](long bytes) { char* at = memory; memory += (bytes + 64 + 63) / 64 * 64; return at; };
  const auto operand = [&](long rows, long length, bool left) {
    Operand o{nullptr, nullptr, whole(ceil_div(length, STEP)), whole(length)};
    o.right = (PB*)take(ceil_div(rows, STEP) * o.width * sizeof(PB));
    o.left = STEP == 1 ? (PA*)o.right : left ? (PA*)take(rows * o.left_m * sizeof(PA)) : nullptr;
    return o;
  };
  s.queries = operand(plan.chunk, c.D, true);
  s.grads = operand(plan.chunk, c.Dv, true);
  s.keys = operand(keys, c.D, false);
  s.key_panels = (PB*)take(ceil_div(c.D, STEP) * keys * sizeof(PB));
  s.value_panels = (PB*)take(ceil_div(c.Dv, STEP) * keys * sizeof(PB));
  s.scores = (T*)take(ROWS * STRIDE * sizeof(T));
  s.changes = (T*)take(ROWS * STRIDE * sizeof(T));
  s.along_keys = STEP == 1 ? (PA*)s.changes : (PA*)take(ROWS * (STRIDE / STEP) * sizeof(PA));
  s.dk = (T*)take(plan.kept * whole(c.D) * sizeof(T));
  s.dv = (T*)take(plan.kept * whole(c.Dv) * sizeof(T));
  s.rows = (Row*)take(plan.chunk * sizeof(Row));
  return memory;
}

static inline void clear(T* p, long count) { for (long i = 0; i < count; i += L) store(p + i, V{}); }

// A row of a gradient: sums times a factor.
static inline void store_gradient(S* out, const T* sums, long length, float factor) {
  long j = 0;
  for (; j + L <= length; j += L) pt::store(out + j, Floats(load(sums + j)) * Floats(factor));
  if (j < length) pt::store_n(out + j, Floats(load(sums + j)) * Floats(factor), length - j);
}
static void store_queries(const Call& c, long item, long r, const T* sums) {
  S* dq = c.dq + item / c.Hkv * c.dq_stride_b + head_of(c, item, r) * c.dq_stride_h + r % c.Mq * c.dq_stride_m;
  store_gradient(dq, sums, c.D, c.scale);
}

// Calls `multiply` with the first column and the number of vectors of each panel of `length` columns.
template <class Multiply> static inline void by_panels(long length, const Multiply& multiply) {
  for (long j = 0; j < length; j += NR) multiply(j, ceil_div(least(NR, length - j), L));
}

// Where sums are added up: for dq of the chunk's rows, and for dk and dv of the block's keys.
struct Sums { T *dq, *dk, *dv; };

// Rows [i, i + rows) of the chunk against the keys [n, n + count) of the block.
static void tile(const Call& c, const Scratch& s, const Sums& sums, long item, long i, long rows, long n, long count) {
  const long wide = whole(count), steps = ceil_div(rows, STEP);
  const Operand &q = s.queries, &g = s.grads, &k = s.keys;
  for (long j = 0; j < count; j += NR) {
    const long vectors = ceil_div(least(NR, count - j), L), d = ceil_div(c.D, STEP), dv = ceil_div(c.Dv, STEP);
    along_rows::multiply(q.left + i * q.left_m, q.left_m, rows, s.key_panels + j * d, vectors, NR, d,
                         s.scores + j, STRIDE, false);
    along_rows::multiply(g.left + i * g.left_m, g.left_m, rows, s.value_panels + j * dv, vectors, NR, dv,
                         s.changes + j, STRIDE, false);
  }
  change(c, s, item, i, rows, n, count, wide);
  by_panels(c.Dv, [&](long j, long vectors) {
    along_columns::multiply((const PA*)s.scores, STEP * STRIDE, count, g.right + i / STEP * g.width + j, vectors, g.width, steps,
                            sums.dv + j, g.width, true);
  });
  by_panels(c.D, [&](long j, long vectors) {
    along_columns::multiply((const PA*)s.changes, STEP * STRIDE, count, q.right + i / STEP * q.width + j, vectors, q.width, steps,
                            sums.dk + j, q.width, true);
    along_rows::multiply(s.along_keys, STRIDE / STEP, rows, k.right + j, vectors, k.width, ceil_div(count, STEP),
                         sums.dq + i * q.width + j, q.width, true);
  });
}

// The chunk's rows against the keys [n, n + count) of an item.
static void block(const Call& c, const Scratch& s, const Sums& sums, long item, long chunk, long n, long count) {
  const long tiles = ceil_div(chunk, ROWS), size = tiles ? ceil_div(ceil_div(chunk, tiles), STEP) * STEP : 0;
  pack_keys(c, item, n, count, s.key_panels);
  pack_panels([&](long j) { return values_at(c, item, n + j); }, c.v_stride_d, c.Dv, count, s.value_panels);
  pack([&](long j) { return keys_at(c, item, n + j); }, c.k_stride_d, c.D, count, s.keys);
  for (long i = 0, rows; i < chunk; i += rows) {
    rows = least(size, chunk - i);
    const Span some = span(c, item, s.first + i, s.first + i + rows);
    const long seen = least(count, some.high - n);
    if (seen > 0 && some.low < n + count) tile(c, s, sums, item, i, rows, n, seen);
  }
}

static void store_keys(const Call& c, const Sums& sums, long item, long n, long count) {
  S* dk = c.dk + item / c.Hkv * c.dk_stride_b + item % c.Hkv * c.dk_stride_h + n * c.dk_stride_n;
  S* dv = c.dv + item / c.Hkv * c.dv_stride_b + item % c.Hkv * c.dv_stride_h + n * c.dv_stride_n;
  for (long j = 0; j < count; ++j) {
    store_gradient(dk + j * c.dk_stride_n, sums.dk + j * whole(c.D), c.D, c.scale);
    store_gradient(dv + j * c.dv_stride_n, sums.dv + j * whole(c.Dv), c.Dv, 1.0f);
  }
}

// Keys [n0, n1) of an item. The sums for dq of all its rows are left at `dq`, or of a chunk if it has no other unit.
static void unit(const Call& c, const Plan& plan, Scratch& s, T* dq, long item, long n0, long n1) {
  s.first = 0;
  do {
    const long rows = least(plan.chunk, c.rows - s.first), width = whole(c.D);
    pack([&](long r) { return query_at(c, item, s.first + r); }, c.q_stride_d, c.D, rows, s.queries);
    pack([&](long r) { return grad_at(c, item, s.first + r); }, 1, c.Dv, rows, s.grads);
    for (long r = 0; r < rows; ++r) row_of(c, item, s.first + r, s.rows[r]);
    Sums sums{dq + (plan.parts > 1 ? s.first * width : 0), s.dk, s.dv};
    clear(sums.dq, rows * width);
    for (long n = n0, count; n < n1; n += KEYS) {
      count = least(KEYS, n1 - n);
      if (plan.kept > KEYS) sums.dk = s.dk + (n - n0) * width, sums.dv = s.dv + (n - n0) * whole(c.Dv);
      if (s.first == 0) clear(sums.dk, count * width), clear(sums.dv, count * whole(c.Dv));
      block(c, s, sums, item, rows, n, count);
      if (s.first + rows == c.rows) store_keys(c, sums, item, n, count);
    }
    for (long r = 0; plan.parts == 1 && r < rows; ++r) store_queries(c, item, s.first + r, sums.dq + r * width);
    s.first += rows;
  } while (s.first < c.rows);
}

// Clears what is kept of gradients of scores, as tiles that no row sees are left out.
static void clear_kept(const Call& c, long item) {
  for (long r = 0; r < c.rows; ++r) __builtin_memset(kept_at(c, item, r, 0), 0, c.Mkv * sizeof(S));
}

static Plan plan_of(const Call& c) {
  const long blocks = ceil_div(c.Mkv, KEYS), row = (2 * whole(c.D) + whole(c.Dv)) * sizeof(T);
  const long fits = MOST_BYTES / most(1, c.items * c.rows * whole(c.D) * sizeof(T));
  const long parts = most(1, least(least(ceil_div(UNITS, c.items), blocks), fits));
  const long chunk = least(c.rows, most(1, CHUNK_BYTES / most(1, row) / ROWS) * ROWS);
  return {parts, chunk, chunk < c.rows ? ceil_div(blocks, parts) * KEYS : least(KEYS, ceil_div(c.Mkv, NR) * NR)};
}

// Adds what the units of an item have left for dq, `apart` from each other, in the order of the keys.
static void add_units(const Call& c, const Plan& plan, T* left, long apart, long item, long r0, long r1) {
  const long width = whole(c.D);
  for (long r = r0; r < r1; ++r) {
    T* sums = left + r * width;
    for (long part = 1; part < plan.parts; ++part)
      for (long j = 0; j < c.D; j += L) store(sums + j, load(sums + j) + load(sums + part * apart + j));
    store_queries(c, item, r, sums);
  }
}

static long run(const Call& c, long threads) {
  const Plan plan = plan_of(c);
  const long parts = plan.parts, units = c.items * parts, blocks = ceil_div(c.Mkv, KEYS), width = whole(c.D);
  threads = least(threads, units);
  Scratch none;
  const long bytes = lay_out(c, plan, nullptr, none) - (char*)nullptr;
  const long sums = (parts > 1 ? c.rows : plan.chunk) * width, kept = parts > 1 ? units : threads;
  char* memory = (char*)malloc(threads * bytes + kept * sums * sizeof(T) + 64);
  if (!memory) return NO_MEMORY;
  char* begin = (char*)(((unsigned long)memory + 63) / 64 * 64);
  T* left = (T*)(begin + threads * bytes);
  long next = 0;
  if constexpr (KEEPS && (CAUSAL || MASKED)) pt::parallel(threads, [&](long thread, long workers) {
    for (long item = thread; item < c.items; item += workers) clear_kept(c, item);
  });
  pt::parallel(threads, [&](long thread, long) {
    Scratch s;
    lay_out(c, plan, begin + thread * bytes, s);
    for (long u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
      const long item = u % c.items, part = u / c.items;
      const Call& own = of_sequence(c, item / c.Hkv);
      T* dq = left + (parts > 1 ? item * parts + part : thread) * sums;
      unit(own, plan, s, dq, item, blocks * part / parts * KEYS, least(own.Mkv, blocks * (part + 1) / parts * KEYS));
    }
  });
  if (parts > 1) pt::parallel(threads, [&](long thread, long workers) {
    for (long item = 0; item < c.items; ++item) {
      const Call& own = of_sequence(c, item / c.Hkv);
      add_units(own, plan, left + item * parts * sums, sums, item, own.rows * thread / workers,
                own.rows * (thread + 1) / workers);
    }
  });
  free(memory);
  return 0;
}
"""


def backward(problem: AttentionProblem, config: Config, name: str, lanes: int) -> str:
    """The translation unit, without the prelude, that exports `name`. Rows of out, of its gradient, and of dq, dk and dv are
    dense."""
    pairs = bool(config.get("pairs"))
    mr, nv = int(config["mr"]), int(config["nv"])
    known = scores_of(problem)
    flags = {"CHANGED": known.score is not None, "SLOPED": known.slope is not None, "KEEPS": problem.changes}
    return "".join(
        (
            opening(problem, lanes),
            BLOCKS.format(mr=mr, nv=nv, rows=config["rows"], keys=config["keys"]),
            *[f"constexpr bool {flag} = {str(value).lower()};\n" for flag, value in flags.items()],
            TYPES,
            matmul.PAIRS if pairs else matmul.MAC,
            packing.PAIRS if pairs else packing.SINGLES,
            "namespace along_rows {\n",
            tiles.tiles(mr, nv),
            "}  // namespace along_rows\nnamespace along_columns {\n",
            tiles.tiles(mr, nv, "cols"),
            "}  // namespace along_columns\n",
            PAIRS if pairs else SINGLES,
            call(problem),
            NO_SLOPE if known.slope is None else "",
            KEPT if problem.changes else NOT_KEPT,
            GRAD_LSE if problem.lse else NO_GRAD_LSE,
            unroll.SHUFFLE_MACRO,
            unroll.shuffles(lanes),
            unroll.transpose(lanes, lanes, "transpose"),
            packing.PACK,
            ROWS,
            SCRATCH,
            CHANGES,
            WORK,
            entry(problem, name),
        )
    )
