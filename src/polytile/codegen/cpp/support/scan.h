// scan: inclusive prefix scans.
// gives: scan_lanes scan_extreme scan_extreme_lanes
namespace pt {
namespace {

// Fills every second block of D lanes with the last lane of the preceding block; keeps the other blocks. One register.
template <int D, class R, int... I> PT_FN R raw_before(R v, Lanes<I...>) {
  return __builtin_shufflevector(v, v, (I & D ? (I & ~(D - 1)) - 1 : I)...);
}
template <int D, class T, int L> PT_FN V<T, L> before(V<T, L> v) { return {raw_before<D>(v.n, Up<raw_lanes<T, L>>{})}; }

// The prefix scan of all lanes: of pairs, then of four lanes from two pairs, and so on.
template <int D = 1, class T, int L, class F> PT_FN V<T, L> prefix(V<T, L> v, F combine) {
  if constexpr (wide<T, L>) {
    const V<T, L / 2> lo = prefix(v.lo, combine);
    return {lo, combine(V<T, L / 2>(lo[L / 2 - 1]), prefix(v.hi, combine))};
  } else if constexpr (D < L) {
    const auto second = (iota<int_of<T>, L>() & V<int_of<T>, L>(int_of<T>(D))) != V<int_of<T>, L>(0);
    return prefix<2 * D>(select(second, combine(before<D>(v), v), v), combine);
  } else return v;
}

// The prefix scan of the first n lanes, continuing from a running carry.
template <class T, int L, class F> PT_FN V<T, L> scan_lanes(V<T, L> v, V<T, 1>& carry, long n, F combine) {
  v = combine(V<T, L>(carry[0]), prefix(v, combine));
  carry = V<T, 1>(n == L ? v[L - 1] : v[n - 1]);
  return v;
}

// cummax and cummin: the later of equal extremes wins, and NaN propagates.
template <bool Max, class T, int L> PT_FN auto takes(V<T, L> v, V<T, L> carry) {
  return (v != v) | ((carry == carry) & (Max ? v >= carry : v <= carry));
}
template <bool Max, class T, int L> PT_FN void scan_extreme(V<T, L>& v, V<i64, L>& i, V<T, L>& carry, V<i64, L>& at) {
  const auto take = takes<Max>(v, carry);
  v = select(take, v, carry);
  i = select(take, i, at);
  carry = v;
  at = i;
}
template <bool Max, int D = 1, class T, int L> PT_FN void prefix_extreme(V<T, L>& v, V<i64, L>& i) {
  if constexpr (wide<T, L> || wide<i64, L>) {
    V<T, L / 2> lo = low(v), hi = high(v);
    V<i64, L / 2> lo_at = low(i), hi_at = high(i);
    prefix_extreme<Max>(lo, lo_at);
    prefix_extreme<Max>(hi, hi_at);
    V<T, L / 2> carry(lo[L / 2 - 1]);
    V<i64, L / 2> at(lo_at[L / 2 - 1]);
    scan_extreme<Max>(hi, hi_at, carry, at);
    v = join(lo, hi);
    i = join(lo_at, hi_at);
  } else if constexpr (D < L) {
    V<T, L> carry = before<D>(v);
    V<i64, L> at = before<D>(i);
    scan_extreme<Max>(v, i, carry, at);
    prefix_extreme<Max, 2 * D>(v, i);
  }
}
// New extremes are rare in a long row: a single comparison detects vectors without one.
template <bool Max, class T, int L>
PT_FN void scan_extreme_lanes(V<T, L>& v, V<i64, L>& i, V<T, 1>& carry, V<i64, 1>& at, long n) {
  V<T, L> all(carry[0]);
  V<i64, L> all_at(at[0]);
  if (!hany(takes<Max>(v, all))) {
    v = all;
    i = all_at;
    return;
  }
  prefix_extreme<Max>(v, i);
  scan_extreme<Max>(v, i, all, all_at);
  carry = V<T, 1>(v[n - 1]);
  at = V<i64, 1>(i[n - 1]);
}

}  // namespace
}  // namespace pt
