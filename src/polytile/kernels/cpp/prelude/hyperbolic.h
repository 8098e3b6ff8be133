// hyperbolic: hyperbolic functions and their inverses.
// needs: log
// gives: tanh sinh cosh asinh acosh atanh
namespace pt {
namespace {

// float: x·P(x²)/Q(x²) (relative error 2^-29), 1 from 9.02 on. double: (e^2x - 1)/(e^2x + 1).
template <class T, int L> PT_FN V<T, L> tanh(V<T, L> x) {
  if constexpr (same<T, float>) {
    x = clamp_exponent(x, -9.02f, 9.02f);
    const V<T, L> z = x * x;
    const V<T, L> p = horner(z, -1.213725608e-11, 3.049550655e-8, 2.79701696e-5, 3.866478214e-3, 0.1367843878, 0.9999999986);
    const V<T, L> q = horner(z, 1.284763155e-6, 3.935371136e-4, 2.723906892e-2, 0.4701177079, 1);
    return x * p / q;
  } else {
    const V<T, L> a = lesser(V<T, L>(T(22)), abs(x)), e = expm1(a + a);
    return copysign(e / (e + V<T, L>(T(2))), x);
  }
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

// Above 2^30 the square would say nothing more (and at last overflow): log(2a).
template <class T, int L> PT_FN V<T, L> log1p_or_double(V<T, L> near, V<T, L> a) {
  const auto far = a > V<T, L>(T(0x1p30));
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
