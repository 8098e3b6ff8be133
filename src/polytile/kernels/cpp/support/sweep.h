// sweep: accumulation along the vector axis.
// gives: sweep keep
namespace pt {
namespace {

// In a partial vector the lanes past the end become `other`.
template <class T, int L, class Tail> PT_FN V<T, L> keep(Tail, V<T, L> v, T other, long n) {
  if constexpr (Tail::partial) return select(first_n<T, L>(n), v, V<T, L>(other)); else return v;
}

// Runs f(tail, position, count, accumulator) over [first, last) with U independent accumulators, merged into `total`
// after every block of elements, so that rounding errors grow with the block and not with the row.
template <int L, int U, class Acc, class F> PT_FN void sweep(long first, long last, Acc& total, F f) {
  constexpr long block = 8192;
  for (long at = first; at < last; at += block) {
    const long stop = smaller(at + block, last);
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

}  // namespace
}  // namespace pt
