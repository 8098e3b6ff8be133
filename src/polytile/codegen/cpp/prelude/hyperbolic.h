// hyperbolic: hyperbolic functions and their inverses.
// needs: log
// gives: tanh sinh cosh asinh acosh atanh
namespace pt {
namespace {

// -u/(u + 2) with u = e^-2|x| - 1 in (-1, 0].
template <class T, int L> PT_FN V<T, L> tanh(V<T, L> x) {
  const V<T, L> u = expm1_small(greater(V<T, L>(T(-40)), abs(x) * V<T, L>(T(-2))));
  return copysign(u / (u + V<T, L>(T(2))), x);
}

template <class T, int L> PT_FN V<T, L> cosh(V<T, L> x) {
  const V<T, L> h = exp_times(abs(x), T(-1));  // e^|x|/2
  return h + V<T, L>(T(0.25)) / h;
}
template <class T, int L> PT_FN V<T, L> sinh(V<T, L> x) {
  const V<T, L> a = abs(x), one(T(1)), h = exp_times(a, T(-1));
  const V<T, L> e = expm1(lesser(one, a)), near = V<T, L>(T(0.5)) * (e + e / (e + one));
  return copysign(select(a < one, near, h - V<T, L>(T(0.25)) / h), x);
}

// log(2a) for a so large that adding 1 to its square changes nothing, or the square overflows.
template <class T, int L> PT_FN V<T, L> log1p_or_double(V<T, L> near, V<T, L> a) {
  const auto far = a > V<T, L>(same<T, float> ? T(0x1p30) : T(0x1p60));
  return log1p(select(far, a, near)) + select(far, V<T, L>(T(0.69314718055994531)), V<T, L>(T(0)));
}
template <class T, int L> PT_FN V<T, L> asinh(V<T, L> x) {
  const V<T, L> a = abs(x), one(T(1)), square = a * a;
  return copysign(log1p_or_double(a + square / (one + sqrt(one + square)), a), x);
}
template <class T, int L> PT_FN V<T, L> acosh(V<T, L> x) {
  const V<T, L> one(T(1)), t = x - one;
  return select(x < one, V<T, L>(not_a_number<T>), log1p_or_double(t + sqrt(t * (t + V<T, L>(T(2)))), x));
}
template <class T, int L> PT_FN V<T, L> atanh(V<T, L> x) {
  const V<T, L> a = abs(x), one(T(1));
  return copysign(V<T, L>(T(0.5)) * log1p((a + a) / (one - a)), x);
}

PT_SCALAR1(tanh) PT_SCALAR1(sinh) PT_SCALAR1(cosh) PT_SCALAR1(asinh) PT_SCALAR1(acosh) PT_SCALAR1(atanh)

}  // namespace
}  // namespace pt
