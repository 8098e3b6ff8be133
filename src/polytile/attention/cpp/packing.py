"""Copies queries, keys and values to the layout that the products read: as float32, or as bfloat16 in pairs of k.

A lane holds one element, or a pair: neighbours along d for queries and keys, one column of neighbouring rows for values. STEP is
the number of elements per lane. Keys are panels [steps of d][NR keys], values are panels [steps of keys][up to NR columns].
"""

from __future__ import annotations

SINGLES = """\
constexpr long STEP = 1;
typedef float PA;
typedef float PB;
// L steps of n elements, `stride` apart; zeros follow them.
static inline V steps_of(const S* p, long stride, long n) { return some<float>(p, stride, n).n; }
// One step of L of the n columns from p on. There are `left` rows.
static inline V columns(const S* p, long row, long stride, long left, long n) { return some<float>(p, stride, n).n; }
static inline void store_weights(T* p, Floats x) { pt::store(p, x); }
typedef T Weight;
"""

PAIRS = """\
constexpr long STEP = 2;
typedef unsigned PA;
typedef unsigned PB;
typedef pt::V<pt::u32, L> Lanes;
static inline V steps_of(const S* p, long stride, long n) {
  if (stride == 1 && n >= 2 * L) return load((const unsigned*)p);
  alignas(64) unsigned row[L] = {};
  for (long i = 0; i < least(n, 2 * L); ++i) row[i / 2] |= unsigned(p[i * stride].bits) << 16 * (i % 2);
  return load((const unsigned*)row);
}
static inline V columns(const S* p, long row, long stride, long left, long n) {
  const Lanes low = some<pt::u32>((const pt::u16*)p, stride, n);
  if (left < 2) return (V)low.n;
  return (V)(low | some<pt::u32>((const pt::u16*)(p + row), stride, n) << Lanes(16u)).n;
}
typedef unsigned short Half __attribute__((vector_size(2 * L)));
static inline Half rounded(Floats x) {
  Half half;
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
  asm("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(x.n));
#else
  pt::bf16 row[L];
  pt::store(row, x);
  __builtin_memcpy(&half, row, sizeof(half));
#endif
  return half;
}
static inline void store_weights(pt::bf16* p, Floats x) {
  const Half half = rounded(x);
  __builtin_memcpy(p, &half, sizeof(half));
}
typedef pt::bf16 Weight;
"""

PACK = """\
// Rows [r0, r1) of an item's queries.
static void pack_queries(const Call& c, long item, long r0, long r1, PA* out) {
  const long steps = ceil_div(c.D, STEP);
  for (long r = r0; r < r1; ++r, out += steps) {
    const S* q = query_at(c, item, r);
    for (long d = 0; d < steps; d += L) {
      const V v = steps_of(q + STEP * d * c.q_stride_d, c.q_stride_d, c.D - STEP * d);
      __builtin_memcpy(out + d, &v, sizeof(PA) * least(L, steps - d));
    }
  }
}

// Panels [steps of d][NR rows] of `count` rows; columns past them repeat the last one.
template <class At> static void pack_panels(const At& at, long stride, long length, long count, PB* out) {
  const long steps = ceil_div(length, STEP);
  for (long j = 0; j < count; j += NR, out += steps * NR)
    for (long i = 0; i < least(NR, count - j); i += L) {
      const S* row[L];
      for (long u = 0; u < L; ++u) row[u] = at(least(j + i + u, count - 1));
      for (long d = 0; d < steps; d += L) {
        V block[L];
        for (long u = 0; u < L; ++u) block[u] = steps_of(row[u] + STEP * d * stride, stride, length - STEP * d);
        transpose(block);
        for (long u = 0; u < least(L, steps - d); ++u) store(out + (d + u) * NR + i, block[u]);
      }
    }
}
static void pack_keys(const Call& c, long item, long n, long count, PB* out) {
  pack_panels([&](long j) { return keys_at(c, item, n + j); }, c.k_stride_d, c.D, count, out);
}

// Values of keys [n, n + count) of an item; columns past the last one are zeros.
static void pack_values(const Call& c, long item, long n, long count, PB* out) {
  const long steps = ceil_div(count, STEP);
  for (long s = 0; s < steps; ++s) {
    const S* v = values_at(c, item, n + STEP * s);
    const long row = STEP * s + 1 < count ? values_at(c, item, n + STEP * s + 1) - v : 0;
    for (long j = 0; j < c.Dv; j += NR) {
      const long width = ceil_div(least(NR, c.Dv - j), L) * L;
      for (long i = j; i < j + width; i += L)
        store(out + j * steps + s * width + i - j,
              columns(v + i * c.v_stride_d, row, c.v_stride_d, count - STEP * s, c.Dv - i));
    }
  }
}
"""
