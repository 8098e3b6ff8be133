// scan: inclusive prefixes.
// gives: scan_lanes scan_extreme scan_extreme_lanes
namespace pt {
namespace {

// The prefix of the first n lanes, from a running carry on.
template <class T, int L, class F> PT_FN V<T, L> scan_lanes(V<T, L> v, V<T, 1>& carry, long n, F combine) {
  PT_NO_UNROLL for (long k = 0; k < n; ++k) {
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
  PT_NO_UNROLL for (long k = 0; k < n; ++k) {
    V<T, 1> x(v[k]);
    V<i64, 1> p(i[k]);
    scan_extreme<Max, T, 1>(x, p, carry, at);
    v[k] = x[0];
    i[k] = p[0];
  }
}

}  // namespace
}  // namespace pt
