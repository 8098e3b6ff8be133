// sweep: accumulation along the vector axis.
// gives: sweep mask_tail
namespace pt {
namespace {

// Replaces the lanes past the end of a partial vector by `other`.
template <class T, int L, class Tail> PT_FN V<T, L> mask_tail(Tail, V<T, L> v, T other, long n) {
  if constexpr (Tail::partial) return select(first_n<T, L>(n), v, V<T, L>(other)); else return v;
}

// Calls f(tail, position, count, accumulator) over [first, last) with U independent accumulators. They are merged into
// `total` after every block of elements, so that rounding errors grow with the block and not with the row.
template <int L, int U, class Acc, class F> PT_FN void sweep(long first, long last, Acc& total, F f) {
  constexpr long block = 8192;
  for (long i = first; i < last;) {
    Acc part;
    const long stop = smaller(i + block, last);
    if constexpr (U == 4) {
      if (i + 4 * L <= stop) {
        Acc c1, c2, c3;
        for (; i + 4 * L <= stop; i += 4 * L) {
          f(Full{}, i, L, part);
          f(Full{}, i + L, L, c1);
          f(Full{}, i + 2 * L, L, c2);
          f(Full{}, i + 3 * L, L, c3);
        }
        part.merge(c1);
        c2.merge(c3);
        part.merge(c2);
      }
    } else if constexpr (U == 2) {
      if (i + 2 * L <= stop) {
        Acc c1;
        for (; i + 2 * L <= stop; i += 2 * L) {
          f(Full{}, i, L, part);
          f(Full{}, i + L, L, c1);
        }
        part.merge(c1);
      }
    }
    for (; i + L <= stop; i += L) f(Full{}, i, L, part);
    if (i < stop) f(Part{}, i, stop - i, part), i = stop;
    total.merge(part);
  }
}

}  // namespace
}  // namespace pt
