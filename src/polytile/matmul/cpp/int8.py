"""What products of int8 put in place of the other types' loads and multiply-adds: four k in one lane, sums in int32.

The instruction for it (VNNI) multiplies signed by unsigned bytes. B is therefore read as b + 128, which is b with its
highest bit turned, and sums begin at -128 times the sum of their row of A:

    sum a·b = sum a·(b + 128) - 128 · sum a

Every step is exact modulo 2**32, as ATen's sums are. Without the instruction the same sums are made of four products
of 32 bits.
"""

from __future__ import annotations

MAC = """\
// c += the four products of signed bytes of x and unsigned bytes of b, in each lane.
static inline void mac(V& c, V x, V b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) >= 16) {
    asm("vpdpbusd %1, %2, %0" : "+v"(c) : "v"(x), "v"(b));
    return;
  }
#elif defined(__AVXVNNI__)
  if constexpr (sizeof(V) == 16 || sizeof(V) == 32) {
    asm("{vex} vpdpbusd %1, %2, %0" : "+x"(c) : "x"(x), "x"(b));
    return;
  }
#endif
  for (int up = 0; up < 32; up += 8) c += ((V)((U32)x << up) >> 24) * (V)((U32)b << up >> 24);
}
static inline V to_b(V x) { return (V)((U32)x ^ 0x80808080u); }
static inline T to_b(T x) { return T(unsigned(x) ^ 0x80808080u); }
static inline V product_with_128(V x) {
  V c = {};
  mac(c, x, (V)(U32{} + 0x80808080u));
  return c;
}
"""

# As the register tile reads A and B: element and columns take four k (zeros past the last), steps_of L times four.
ELEMENT = """\
typedef unsigned char U8U __attribute__((vector_size(L), aligned(1), may_alias));
typedef T VBYTES __attribute__((vector_size(4 * L), aligned(1), may_alias));
static inline V steps_of(const S* p) { return (V)*(const VBYTES*)p; }
static inline T element(const S* p, long stride, long left) {
  unsigned x = 0;
  for (long i = 0; i < 4 && i < left; ++i) x |= unsigned((unsigned char)p[i * stride]) << 8 * i;
  return T(x);
}
static inline V columns(const S* p, long stride, long left) {
  U32 x = {};
  for (long i = 0; i < 4; ++i)
    if (i < left) x |= __builtin_convertvector(*(const U8U*)(p + i * stride), U32) << 8 * i;
  return (V)x;
}
"""

CORRECT = """\
// What the sums of a tile's rows begin at, in front of its steps.
static void correct(PA* tile, long rows, long steps) {
  for (long i = 0; i < rows; i += L) {
    V sums = {};
    for (long q = 1; q <= steps; ++q) sums -= product_with_128(load(tile + q * rows + i));
    for (long j = i; j < least(rows, i + L); ++j) tile[j] = sums[j - i];
  }
}
"""

# Form dot reads both operands along k; its sums begin with the row's correction.
FETCH = """\
static inline V fetch(const S* p) { return steps_of(p); }
static inline V fetch_n(const S* p, long n) {
  alignas(64) S row[W] = {};
  for (long i = 0; i < n; ++i) row[i] = p[i];
  return fetch(row);
}
static inline V start(const S* a, long k) {
  V sums = {};
  for (long p = 0; p + W <= k; p += W) sums -= product_with_128(fetch(a + p));
  sums -= product_with_128(fetch_n(a + k / W * W, k % W));
  T total = 0;
  for (long i = 0; i < L; ++i) total += sums[i];
  return broadcast(total);
}
"""
