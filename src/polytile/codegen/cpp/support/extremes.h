// extremes: a maximum or minimum together with its index.
// gives: arg_update arg_across
namespace pt {
namespace {

// The winner of two (value, index) pairs, lane by lane: NaN wins over any number, ties go to the lower index.
template <bool Max, class T, int L> PT_FN void arg_update(V<T, L>& v, V<i64, L>& i, V<T, L> x, V<i64, L> at) {
  const auto better = (Max ? x > v : x < v) | ((x != x) & (v == v));
  const auto tie = (x == v) | ((x != x) & (v != v));
  const V<i64, L> take = mask_to<i64>(better) | (mask_to<i64>(tie) & (at < i));
  v = select(take, x, v);
  i = select(take, at, i);
}
template <class T> struct Extreme { T value; i64 index; };
template <bool Max, class T, int L> PT_FN Extreme<T> arg_across(V<T, L> v, V<i64, L> i) {
  if constexpr (L == 1) return {v[0], i[0]};
  else {
    V<T, L / 2> best = low(v);
    V<i64, L / 2> at = low(i);
    arg_update<Max, T, L / 2>(best, at, high(v), high(i));
    return arg_across<Max, T, L / 2>(best, at);
  }
}

}  // namespace
}  // namespace pt
