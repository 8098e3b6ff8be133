// polynomials: orthogonal ones, up one degree a step to the largest degree among the lanes.
// needs: arith
// gives: chebyshev_t chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he laguerre_l legendre_p
namespace pt {
namespace {

// From P of degree k (`last`) and k - 1 (`before`), 1 and `first` at the start, `next` makes P of degree k + 1. A lane is done
// at its own degree n, or when it is NaN.
template <class T, int L, class F> PT_FN V<T, L> by_degrees(V<T, L> n, V<T, L> first, F next) {
  V<T, L> before(T(1)), last = select(n < V<T, L>(T(1)), before, first);
  i64 k = 1;
  PT_NO_UNROLL for (auto left = (n > V<T, L>(T(1))) & (last == last); hany(left); ++k) {
    const V<T, L> following = next(V<T, L>(T(k)), before, last);
    before = select(left, last, before), last = select(left, following, last);
    left = (n > V<T, L>(T(k + 1))) & (last == last);
  }
  return last;
}

#define PT_POLYNOMIAL(name, first, following)                                                \
  template <class T, int L> PT_FN V<T, L> name(V<T, L> x, alone<V<T, L>> n) {                \
    const V<T, L> one(T(1)), two(T(2));                                                      \
    return by_degrees<T, L>(n, first, [&](V<T, L> k, V<T, L> p, V<T, L> q) { return following; }); \
  }                                                                                          \
  PT_SCALAR2(name)
PT_POLYNOMIAL(chebyshev_t, x, two * x * q - p)
PT_POLYNOMIAL(chebyshev_u, two * x, two * x * q - p)
PT_POLYNOMIAL(chebyshev_v, two * x - one, two * x * q - p)
PT_POLYNOMIAL(chebyshev_w, two * x + one, two * x * q - p)
PT_POLYNOMIAL(hermite_h, two * x, two * (x * q - k * p))
PT_POLYNOMIAL(hermite_he, x, x * q - k * p)
PT_POLYNOMIAL(laguerre_l, one - x, ((two * k + (one - x)) * q - k * p) / (k + one))
PT_POLYNOMIAL(legendre_p, x, ((two * k + one) * x * q - k * p) / (k + one))
#undef PT_POLYNOMIAL

}  // namespace
}  // namespace pt
