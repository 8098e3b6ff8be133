// every: loads lanes S elements apart, for a constant S, by S contiguous vectors and S - 1 shuffles instead of L loads.
// gives: vload_every
namespace pt {
namespace {

// Whether shuffles beat scalar loads: with many vectors or narrow lanes, a shuffle of two takes several operations.
template <class B, int L, int S>
constexpr bool every_shuffles = S <= L && S <= (PT_WIDTH >= 64 ? 8 : PT_WIDTH >= 32 ? 4 : 2) && (PT_WIDTH >= 32 || sizeof(B) >= 4);

// The element at which vector K starts. The last vector of a full row of lanes ends with the last lane, since nothing behind that
// lane may be read.
template <bool Whole, int K, int S, int L> constexpr int every_start = Whole && K == S - 1 ? S * (L - 1) + 1 - L : K * L;
// Takes the lanes whose element is in vector K from it, from number N on; keeps the lanes of earlier vectors.
template <bool Whole, int K, int S, int L, int N> constexpr int every_from(int lane) {
  const int element = S * lane;
  if (lane >= L || element / L > K) return lane;
  return element / L == K ? N + element - every_start<Whole, K, S, L> : K == 1 ? element : lane;
}
template <bool Whole, int K, int S, class B, int L, int... I>
PT_FN V<B, L> every_picked(V<B, L> earlier, V<B, L> next, Lanes<I...>) {
  return {__builtin_shufflevector(earlier.n, next.n, every_from<Whole, K, S, L, raw_lanes<B, L>>(I)...)};
}
// The lanes of vector K and those after it, out of `count` elements unless whole.
template <bool Whole, int K, int S, class B, int L> PT_FN V<B, L> every_rest(V<B, L> earlier, const B* p, long count) {
  if constexpr (K == S) return earlier;
  else {
    constexpr int start = every_start<Whole, K, S, L>;
    V<B, L> next;
    if constexpr (Whole) next = load_lanes<B, L>(p + start);
    else next = load_lanes_n<B, L>(p + start, count < start ? 0 : count - start);
    return every_rest<Whole, K + 1, S>(every_picked<Whole, K, S>(earlier, next, Up<raw_lanes<B, L>>{}), p, count);
  }
}
template <class B, int L, int... I> PT_FN V<B, L> every_reversed(V<B, L> v, Lanes<I...>) {
  return {__builtin_shufflevector(v.n, v.n, (I < L ? L - 1 - I : I)...)};
}
template <class B, int L, int S> PT_FN V<B, L> load_every(const B* p) {
  if constexpr (wide<B, L>) return {load_every<B, L / 2, S>(p), load_every<B, L / 2, S>(p + S * (L / 2))};
  else if constexpr (S == -1) return every_reversed(load_lanes<B, L>(p + 1 - L), Up<raw_lanes<B, L>>{});
  else if constexpr (every_shuffles<B, L, S>) return every_rest<true, 1, S>(load_lanes<B, L>(p), p, 0);
  else return load_at<B, L>(p, [](long i) __attribute__((always_inline)) { return i * S; });
}
template <class B, int L, int S> PT_FN V<B, L> load_every_n(const B* p, long n) {
  if constexpr (wide<B, L>) {
    constexpr long h = L / 2;
    return {load_every_n<B, h, S>(p, n < h ? n : h), load_every_n<B, h, S>(p + S * h, n < h ? 0 : n - h)};
  } else if constexpr (S == -1) {
#if defined(PT_AVX512)
    V<B, L> v;
    move_masked<false>(v, p + 1 - L, n <= 0 ? 0 : low_bits(L) & ~low_bits(n < L ? L - n : 0));
    return every_reversed(v, Up<raw_lanes<B, L>>{});
#endif
  } else {
    const long count = n > 0 ? S * (n - 1) + 1 : 0;
    return every_rest<false, 1, S>(load_lanes_n<B, L>(p, count), p, count);
  }
}

// Lane i holds element S * i, for the first n lanes.
template <class T, int L, int S, class Tail, class P> PT_FN V<T, L> vload_every(Tail, const P* p, long n) {
  using B = stored<P>;
  constexpr int lanes = wide<B, L> ? PT_WIDTH / int(sizeof(B)) : L;
  constexpr bool reversed = S == -1 && PT_WIDTH >= 64, picked = S > 1 && every_shuffles<B, lanes, S>;
  if constexpr (!Tail::partial) return from_storage<T, P>(load_every<B, L, S>((const B*)p));
  else if constexpr (has_masked_moves<B, lanes> && (reversed || picked))
    return from_storage<T, P>(load_every_n<B, L, S>((const B*)p, n));
  else return load_strided_n<T, L>(p, S, n);
}

}  // namespace
}  // namespace pt
