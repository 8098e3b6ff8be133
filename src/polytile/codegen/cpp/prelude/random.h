// random: counter-based random numbers, Philox 4x32 with 10 rounds: key = seed, counter = (offset, 0, 0).
// needs: convert log memory trig
// gives: philox_words philox_uniform philox_run philox_normal philox_int
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Words and formulas are those of
// ir/philox.py; four consecutive uniform numbers share the words of one counter.
namespace pt {
namespace {

// Both halves of a·b for 32-bit lanes.
template <int L> struct Product { V<u32, L> high, low; };

#if defined(PT_GCC_X86)
PT_FN Raw<u64, 2> even_products(Raw<u64, 2> a, Raw<u64, 2> b) {
  return (Raw<u64, 2>)__builtin_ia32_pmuludq128((Ints4)a, (Ints4)b);
}
#if PT_WIDTH >= 32
PT_FN Raw<u64, 4> even_products(Raw<u64, 4> a, Raw<u64, 4> b) {
  return (Raw<u64, 4>)__builtin_ia32_pmuludq256((Ints8)a, (Ints8)b);
}
#endif
#if PT_WIDTH >= 64
PT_FN Raw<u64, 8> even_products(Raw<u64, 8> a, Raw<u64, 8> b) {
  return (Raw<u64, 8>)__builtin_ia32_pmuludq512_mask((Ints16)a, (Ints16)b, Longs8{}, u8(-1));
}
#endif
#else
template <class R> PT_FN R even_products(R a, R b) { return (a & 0xffffffffUL) * (b & 0xffffffffUL); }
#endif

template <int L> PT_FN Product<L> multiply(V<u32, L> a, u32 b) {
  if constexpr (wide<u32, L>) {
    const Product<L / 2> lo = multiply(a.lo, b), hi = multiply(a.hi, b);
    return {{lo.high, hi.high}, {lo.low, hi.low}};
  } else {
    using Wide = Raw<u64, sizeof(a) / 8>;
    using Reg = typename V<u32, L>::Inner;
    const Wide x = (Wide)a.n, factor = u64(b) - Wide{};
    const Wide even = even_products(x, factor), odd = even_products(x >> 32, factor);
    const Wide upper = 0xffffffff00000000UL - Wide{};
    return {V<u32, L>((Reg)((even >> 32) | (odd & upper))), V<u32, L>((Reg)((even & ~upper) | (odd << 32)))};
  }
}

template <int L> struct Words { V<u32, L> w[4]; };

template <int L> PT_FN Words<L> philox_words(alone<V<i64, L>> seed, V<i64, L> offset) {
  using U = V<u32, L>;
  const V<i64, L> half(32l);
  U key0 = cast<u32>(seed), key1 = cast<u32>(seed >> half);
  U c0 = cast<u32>(offset), c1 = cast<u32>(offset >> half), c2(0u), c3(0u);
  PT_UNROLL for (int round = 0; round < 10; ++round) {
    const Product<L> p = multiply(c0, 0xD2511F53u), q = multiply(c2, 0xCD9E8D57u);
    c0 = q.high ^ c1 ^ key0, c1 = q.low, c2 = p.high ^ c3 ^ key1, c3 = p.low;
    key0 += U(0x9E3779B9u), key1 += U(0xBB67AE85u);
  }
  return {{c0, c1, c2, c3}};
}

// The upper 24 bits as an integer, exact.
template <int L> PT_FN V<float, L> upper_bits(V<u32, L> word) { return cast<float>(as<i32>(word >> V<u32, L>(8u))); }

// In [0, 1), 24 bits.
template <int L> PT_FN V<float, L> philox_uniform(alone<V<i64, L>> seed, V<i64, L> offset) {
  using U = V<u32, L>;
  const Words<L> four = philox_words<L>(seed, offset >> V<i64, L>(2l));
  const U place = cast<u32>(offset) & U(3u);
  const U low = select(place == U(0u), four.w[0], four.w[1]), high = select(place == U(2u), four.w[2], four.w[3]);
  return upper_bits(select(place < U(2u), low, high)) * V<float, L>(0x1p-24f);
}
// words[k]: the word of number first + k, for the numbers of C counters. Not inlined, since it is long.
template <int C> __attribute__((noinline)) void philox_block(i64 seed, i64 counter, u32* words) {
  const Words<C> four = philox_words<C>(V<i64, C>(seed), iota<i64, C>() + V<i64, C>(counter));
  const V<u32, C> even0 = zip<0>(four.w[0], four.w[2]), even1 = zip<1>(four.w[0], four.w[2]);
  const V<u32, C> odd0 = zip<0>(four.w[1], four.w[3]), odd1 = zip<1>(four.w[1], four.w[3]);
  store<u32>(words, zip<0>(even0, odd0)), store<u32>(words + C, zip<1>(even0, odd0));
  store<u32>(words + 2 * C, zip<0>(even1, odd1)), store<u32>(words + 3 * C, zip<1>(even1, odd1));
}
// philox_uniform of the offsets first, first + 1, ...: all numbers of a counter at once.
template <int L> PT_FN V<float, L> philox_run(i64 seed, i64 first) {
  static_assert(L >= 4, "a run is as long as the words of a counter");
  alignas(64) u32 words[2 * L];
  philox_block<L / 4>(seed, first >> 2, words);
  if (first & 3) philox_block<L / 4>(seed, (first >> 2) + L / 4, words + L);
  return upper_bits(load<u32, L>(words + (first & 3))) * V<float, L>(0x1p-24f);
}
// Standard normal, by the Box-Muller transform.
template <int L> PT_FN V<float, L> philox_normal(alone<V<i64, L>> seed, V<i64, L> offset) {
  using F = V<float, L>;
  const Words<L> words = philox_words<L>(seed, offset);
  const F u = (upper_bits(words.w[0]) + F(1.0f)) * F(0x1p-24f), v = upper_bits(words.w[1]) * F(0x1p-24f);
  return sqrt(F(-2.0f) * log(u)) * cos(F(6.28318530717958647693f) * v);
}
// 63 random bits, never negative.
template <int L> PT_FN V<i64, L> philox_int(alone<V<i64, L>> seed, V<i64, L> offset) {
  const Words<L> words = philox_words<L>(seed, offset);
  return (cast<i64>(words.w[1] & V<u32, L>(0x7fffffffu)) << V<i64, L>(32l)) | cast<i64>(words.w[0]);
}
// philox_int<i32, L>: never negative, 31 bits; philox_int<i64, L>: 63 bits.
template <class T, int L> PT_FN V<T, L> philox_int(alone<V<i64, L>> seed, V<i64, L> offset) {
  if constexpr (same<T, i32>) return as<i32>(philox_words<L>(seed, offset).w[0] & V<u32, L>(0x7fffffffu));
  else return philox_int<L>(seed, offset);
}

}  // namespace
}  // namespace pt
