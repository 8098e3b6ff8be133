// reduce: reductions across the lanes of one vector.
// needs: arith
// gives: hsum hprod hmax hmin hreduce
namespace pt {
namespace {

// Combines the lanes by f, an operation on two vectors, halving the vector until one lane is left: the same tree for
// every register width.
template <class T, int L, class F> PT_FN T hreduce(V<T, L> v, F f) {
  if constexpr (L == 1) return v[0];
  else return hreduce(f(low(v), high(v)), f);
}
template <class T, int L> PT_FN T hsum(V<T, L> v) {
  return hreduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
template <class T, int L> PT_FN T hprod(V<T, L> v) {
  return hreduce(v, [](auto a, auto b) __attribute__((always_inline)) { return a * b; });
}
// NaN if any lane is NaN.
template <class T, int L> PT_FN T hmax(V<T, L> v) {
  return hreduce(v, [](auto a, auto b) __attribute__((always_inline)) { return maximum(a, b); });
}
template <class T, int L> PT_FN T hmin(V<T, L> v) {
  return hreduce(v, [](auto a, auto b) __attribute__((always_inline)) { return minimum(a, b); });
}

}  // namespace
}  // namespace pt
