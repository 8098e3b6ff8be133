// support: what generated loops need beyond the prelude: full and partial vectors behind one name, accumulators, sweeps, scans.
namespace pt {
namespace {

#define PT_INLINE __attribute__((always_inline))

struct Full { static constexpr bool partial = false; };
struct Part { static constexpr bool partial = true; };

template <class T, int L> PT_FN V<T, L> splat(T x) { return V<T, L>(x); }
template <class T, int L, class M> PT_FN V<i32, L> as_mask(V<M, L> m) { return mask_to<i32>(m); }
template <class T, int L> PT_FN V<T, L> where(V<i32, L> m, V<T, L> a, V<T, L> b) { return select(m, a, b); }

template <class T, int L, class Tail, class S> PT_FN V<T, L> vload(Tail, const S* p, long n) {
  if constexpr (Tail::partial) return load_n<T, L>(p, n); else return load<T, L>(p);
}
template <class T, int L, class Tail, class S> PT_FN V<T, L> vload_strided(Tail, const S* p, long stride, long n) {
  if constexpr (Tail::partial) return load_strided_n<T, L>(p, stride, n); else return load_strided<T, L>(p, stride);
}
template <class T, int L, class Tail, class S> PT_FN V<T, L> vload_gather(Tail, const S* p, V<i64, L> index, long n) {
  if constexpr (Tail::partial) return gather_mask<T, L>(p, index, first_n<i64, L>(n)); else return gather<T, L>(p, index);
}
template <class T, int L, class Tail, class S>
PT_FN V<T, L> vload_masked(Tail, const S* p, V<i64, L> index, V<i32, L> mask, long n) {
  if constexpr (Tail::partial) mask = mask & first_n<i32, L>(n);
  return gather_mask<T, L>(p, index, mask);
}
template <class S, int L, class Tail, class T> PT_FN void vstore(Tail, S* p, V<T, L> v, long n) {
  if constexpr (Tail::partial) store_n<S, T, L>(p, v, n); else store<S, T, L>(p, v);
}
template <class S, int L, class Tail, class T> PT_FN void vstore_strided(Tail, S* p, V<T, L> v, long stride, long n) {
  if constexpr (Tail::partial) store_strided_n<S, T, L>(p, stride, v, n); else store_strided<S, T, L>(p, stride, v);
}
// Lane by lane, in lane order: where lanes may share an element.
template <int L, class Tail, class F> PT_FN void each_lane(Tail, V<i32, L> mask, long n, F f) {
  for (long k = 0; k < (Tail::partial ? n : L); ++k)
    if (mask[k]) f(k);
}
// In a partial vector the lanes past the end become `other`.
template <class T, int L, class Tail> PT_FN V<T, L> keep(Tail, V<T, L> v, T other, long n) {
  if constexpr (Tail::partial) return select(first_n<T, L>(n), v, V<T, L>(other)); else return v;
}

// Runs f(tail, position, count, accumulator) over [b, e) with U independent accumulators, merged into `total` after every
// block of elements so that rounding errors grow with the block and not with the row.
template <int L, int U, class Acc, class F> PT_FN void sweep(long b, long e, Acc& total, F f) {
  constexpr long block = 8192;
  for (long at = b; at < e; at += block) {
    const long stop = at + block < e ? at + block : e;
    long i = at;
    Acc c0;
    if constexpr (U == 4) {
      Acc c1, c2, c3;
      for (; i + 4 * L <= stop; i += 4 * L) {
        f(Full{}, i, L, c0);
        f(Full{}, i + L, L, c1);
        f(Full{}, i + 2 * L, L, c2);
        f(Full{}, i + 3 * L, L, c3);
      }
      c0.merge(c1);
      c2.merge(c3);
      c0.merge(c2);
    } else if constexpr (U == 2) {
      Acc c1;
      for (; i + 2 * L <= stop; i += 2 * L) {
        f(Full{}, i, L, c0);
        f(Full{}, i + L, L, c1);
      }
      c0.merge(c1);
    }
    for (; i + L <= stop; i += L) f(Full{}, i, L, c0);
    if (i < stop) f(Part{}, i, stop - i, c0);
    total.merge(c0);
  }
}

// One thread's share of [0, size) begins at a multiple of L; share number `workers` is the end.
template <int L> PT_FN long share(long size, long tid, long workers) {
  return tid >= workers ? size : size / L * tid / workers * L;
}

// The better of two (value, index) pairs, lane by lane: NaN beats everything, ties go to the lower index.
template <bool Max, class T, int L> PT_FN void arg_update(V<T, L>& v, V<i64, L>& i, V<T, L> x, V<i64, L> at) {
  const auto better = (Max ? x > v : x < v) | ((x != x) & (v == v));
  const auto tie = (x == v) | ((x != x) & (v != v));
  const V<i64, L> take = mask_to<i64>(better) | (mask_to<i64>(tie) & (at < i));
  v = select(take, x, v);
  i = select(take, at, i);
}
template <class T> struct arg_pair { T value; i64 index; };
template <bool Max, class T, int L> PT_FN arg_pair<T> arg_across(V<T, L> v, V<i64, L> i) {
  V<T, 1> best(v[0]);
  V<i64, 1> at(i[0]);
  for (int k = 1; k < L; ++k) arg_update<Max, T, 1>(best, at, V<T, 1>(v[k]), V<i64, 1>(i[k]));
  return {best[0], at[0]};
}

// Inclusive prefix of the first n lanes with a running carry.
template <class T, int L, class F> PT_FN V<T, L> scan_lanes(V<T, L> v, V<T, 1>& carry, long n, F combine) {
  for (long k = 0; k < n; ++k) {
    carry = combine(carry, V<T, 1>(v[k]));
    v[k] = carry[0];
  }
  return v;
}

// cummax and cummin: the later of equal extremes wins, and a NaN stays.
template <bool Max, class T, int L> PT_FN void scan_extreme(V<T, L>& v, V<i64, L>& i, V<T, L>& carry, V<i64, L>& at) {
  const auto take = (v != v) | ((carry == carry) & (Max ? v >= carry : v <= carry));
  v = select(take, v, carry);
  i = select(take, i, at);
  carry = v;
  at = i;
}
template <bool Max, class T, int L>
PT_FN void scan_extreme_lanes(V<T, L>& v, V<i64, L>& i, V<T, 1>& carry, V<i64, 1>& at, long n) {
  for (long k = 0; k < n; ++k) {
    V<T, 1> x(v[k]);
    V<i64, 1> p(i[k]);
    scan_extreme<Max, T, 1>(x, p, carry, at);
    v[k] = x[0];
    i[k] = p[0];
  }
}

// A thread's scratch memory, kept from call to call; 64-byte aligned.
extern "C" void* malloc(unsigned long);
extern "C" void free(void*);
struct scratch {
  char* block;
  long size;
  PT_FN void* room(long bytes) {
    if (bytes > size) {
      free(block);
      block = (char*)malloc(bytes + 64);
      size = bytes;
    }
    return (void*)(((unsigned long)block + 63) & ~63UL);
  }
};

// Python's index rule: a negative index counts from the end. One out of range sets `error` and becomes 0.
template <int L> PT_FN V<i64, L> check_index(V<i64, L> index, V<i64, L> size, long n, long number, long& error) {
  index = select(index < V<i64, L>(0L), index + size, index);
  const auto bad = (index < V<i64, L>(0L)) | (index >= size);
  if (__builtin_expect(hany(bad & first_n<i64, L>(n)), 0)) __atomic_store_n(&error, number, __ATOMIC_RELAXED);
  return select(bad, V<i64, L>{}, index);
}

template <class S, class T> PT_FN void add_plain(S* p, T x) { store<S, T, 1>(p, load<T, 1>(p) + V<T, 1>(x)); }

}  // namespace
}  // namespace pt
