// logaddexp: log(exp(a) + exp(b)).
// gives: logaddexp
namespace pt {
namespace {

// Does not overflow; equal infinities give that infinity.
template <class T, int L> PT_FN V<T, L> logaddexp(V<T, L> a, V<T, L> b) {
  const V<T, L> high = maximum(a, b), low = minimum(a, b);
  return select(isinf(high) & (high == low), high, high + log1p(exp(low - high)));
}

}  // namespace
}  // namespace pt
