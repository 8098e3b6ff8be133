// vectors: full and partial vectors by the same functions: `tail` is Full, or Part if only the first n lanes are active.
// gives: Full Part PT_INLINE splat where vload vload_strided vload_repeated vload_gather vload_where vload_gather_where vstore vstream
namespace pt {
namespace {

#define PT_INLINE __attribute__((always_inline))

struct Full { static constexpr bool partial = false; };
struct Part { static constexpr bool partial = true; };

PT_FN long smaller(long a, long b) { return a < b ? a : b; }
template <class T, int L> PT_FN V<T, L> splat(T x) { return V<T, L>(x); }
template <class T, int L> PT_FN V<T, L> where(V<i32, L> m, V<T, L> a, V<T, L> b) { return select(m, a, b); }

template <class T, int L, class Tail, class S> PT_FN V<T, L> vload(Tail, const S* p, long n) {
  if constexpr (Tail::partial) return load_n<T, L>(p, n); else return load<T, L>(p);
}
template <class T, int L, class Tail, class S> PT_FN V<T, L> vload_strided(Tail, const S* p, long stride, long n) {
  if constexpr (Tail::partial) return load_strided_n<T, L>(p, stride, n); else return load_strided<T, L>(p, stride);
}
// Lane i holds element i / R.
template <int R, class T, int L, int... I> PT_FN V<T, L> repeated(V<T, L> v, Lanes<I...>) {
  return {__builtin_shufflevector(v.n, v.n, (I / R)...)};
}
template <class T, int L, int R, class Tail, class S> PT_FN V<T, L> vload_repeated(Tail tail, const S* p, long n) {
  constexpr long h = L / 2;
  if constexpr (R >= L) return V<T, L>(load<T, 1>(p)[0]);
  else if constexpr (wide<T, L>) {
    if (n <= h) return {vload_repeated<T, h, R>(tail, p, n), V<T, h>{}};
    return {vload_repeated<T, h, R>(Full{}, p, h), vload_repeated<T, h, R>(tail, p + h / R, n - h)};
  } else return repeated<R>(load_n<T, L>(p, Tail::partial ? (n + R - 1) / R : L / R), Up<raw_lanes<T, L>>{});
}
template <class T, int L, class Tail, class S> PT_FN V<T, L> vload_gather(Tail, const S* p, V<i64, L> index, long n) {
  if constexpr (Tail::partial) return gather_mask<T, L>(p, index, first_n<i64, L>(n)); else return gather<T, L>(p, index);
}
template <int L, class Tail> PT_FN V<i32, L> live(Tail, V<i32, L> mask, long n) {
  if constexpr (Tail::partial) return mask & first_n<i32, L>(n); else return mask;
}
template <class T, int L, class Tail, class S>
PT_FN V<T, L> vload_gather_where(Tail tail, const S* p, V<i64, L> index, V<i32, L> mask, long n) {
  return gather_mask<T, L>(p, index, live(tail, mask, n));
}
// Contiguous from p[at]: usually all lanes are active, or none.
template <class T, int L, class Tail, class S>
PT_FN V<T, L> vload_where(Tail tail, const S* p, long at, V<i32, L> mask, long n) {
  if (hall(mask)) return vload<T, L>(tail, p + at, n);
  if (!hany(mask)) return V<T, L>{};
  return load_where<T, L>(p + at, live(tail, mask, n));
}

template <class S, int L, class Tail, class T> PT_FN void vstore(Tail, S* p, V<T, L> v, long n) {
  if constexpr (Tail::partial) store_n<S, T, L>(p, v, n); else store<S, T, L>(p, v);
}
template <class S, int L, class Tail, class T> PT_FN void vstream(Tail, S* p, V<T, L> v, long n) {
  if constexpr (Tail::partial) store_n<S, T, L>(p, v, n); else store_stream<S, T, L>(p, v);
}
template <class S, int L, class Tail, class T> PT_FN void vstore_strided(Tail, S* p, V<T, L> v, long stride, long n) {
  if constexpr (Tail::partial) store_strided_n<S, T, L>(p, stride, v, n); else store_strided<S, T, L>(p, stride, v);
}
template <class S, int L, class Tail, class T>
PT_FN void vstore_where(Tail tail, S* p, long at, V<T, L> v, V<i32, L> mask, long n) {
  if (hall(mask)) return vstore<S, L>(tail, p + at, v, n);
  if (hany(mask)) scatter_mask<S, T, L>(p, iota<i64, L>() + at, v, live(tail, mask, n));
}

// The number of elements from p up to the first aligned vector; 0 if `count` elements are too few to gain.
template <int L, class S> PT_FN long lead(const S* p, long count) {
  constexpr u64 bytes = L * sizeof(S) < PT_WIDTH ? L * sizeof(S) : PT_WIDTH;
  return count >= 8 * L ? long(-(u64)p & (bytes - 1)) / long(sizeof(S)) : 0;
}
// Calls f(tail, position, count) for the vectors of [first, last). The first one has `lead` elements unless that is 0.
template <int L, class F> PT_FN void each_vector(long first, long last, long lead, F f) {
  for (long i = first, n = lead;; n = last - i) {
    if (n > 0) f(Part{}, i, n), i += n;
    for (; i + L <= last; i += L) f(Full{}, i, L);
    if (i >= last) break;
  }
}
// The same for at most M elements: up to L of them are one vector.
template <int L, long M, class F> PT_FN void each_vector(long first, long last, long lead, F f) {
  if constexpr (M > L) each_vector<L>(first, last, lead, f); else if (first < last) f(Part{}, first, last - first);
}
// The end of a piece that starts at `from`: the first of the positions behind it.
template <class... P> PT_FN long next_cut(long from, long last, P... places) {
  ((last = places > from && places < last ? places : last), ...);
  return last;
}

// The start of a thread's share of [0, size), a multiple of L; the share of number `workers` starts at the end.
template <int L> PT_FN long share(long size, long thread, long workers) {
  return thread >= workers ? size : size / L * thread / workers * L;
}

}  // namespace
}  // namespace pt
