// special: functions that are rare. All go lane by lane, float by way of double; none is fast.
// needs: arith
// gives: lgamma digamma i0 i0e i1 i1e hypot nextafter
namespace pt {
namespace {

PT_LIBM2(hypot)

#define PT_BY_DOUBLE(name, one)                                                                  \
  template <class T, int L> PT_FN V<T, L> name(V<T, L> v) {                                      \
    return each([](T x) __attribute__((always_inline)) { return T(one(double(x))); }, v);        \
  }

// As torch has it: at 0 infinite with the other sign, NaN at the other poles. Reflection below 0, then upwards to 10, where the
// asymptotic series in 1/x² begins.
inline __attribute__((noinline)) double digamma_of(double x) {
  constexpr double pi = 3.14159265358979323846;
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  double y = 0;
  if (x < 0) {
    const double whole = __builtin_trunc(x);
    if (x == whole) return __builtin_nan("");
    y = -pi / __builtin_tan(pi * (x - whole));
    x = 1 - x;
  }
  for (; x < 10; x += 1) y -= 1 / x;
  const double z = 1 / (x * x);  // Bernoulli numbers over 2k
  const double s = z * (1. / 12 - z * (1. / 120 - z * (1. / 252 - z * (1. / 240 - z * (1. / 132 - z * (691. / 32760 - z / 12))))));
  return x == __builtin_inf() ? x : y + __builtin_log(x) - 0.5 / x - s;
}

// The modified Bessel function of order 0 or 1, times e^-|x|: its power series up to 20, its asymptotic one above.
template <int Order> inline __attribute__((noinline)) double bessel_i_scaled(double x) {
  const double a = x < 0 ? -x : x;
  double sum = 1, term = 1;
  if (a <= 20) {
    const double z = a * a / 4;
    for (double k = 1; term > 1e-18 * sum; k += 1) sum += term *= z / (k * (k + Order));
    sum *= __builtin_exp(-a) * (Order == 1 ? a / 2 : 1);
  } else if (a < __builtin_inf()) {
    for (double k = 1; k < 40 && (term > 1e-18 || term < -1e-18); k += 1)
      sum += term *= ((2 * k - 1) * (2 * k - 1) - 4 * Order * Order) / (8 * a * k);
    sum *= 0.39894228040143267794 / __builtin_sqrt(a);  // 1/sqrt(2π)
  } else sum = a == a ? 0 : a;
  return Order == 1 ? __builtin_copysign(sum, x) : sum;
}
template <int Order> inline __attribute__((noinline)) double bessel_i(double x) {
  const double a = x < 0 ? -x : x;
  if (a == __builtin_inf()) return Order == 1 ? x : a;
  if (a < 700) return __builtin_exp(a) * bessel_i_scaled<Order>(x);
  return __builtin_exp(a / 2) * bessel_i_scaled<Order>(x) * __builtin_exp(a / 2);  // e^a alone would overflow first
}

PT_BY_DOUBLE(lgamma, __builtin_lgamma)
PT_BY_DOUBLE(digamma, digamma_of)
PT_BY_DOUBLE(i0, bessel_i<0>)
PT_BY_DOUBLE(i1, bessel_i<1>)
PT_BY_DOUBLE(i0e, bessel_i_scaled<0>)
PT_BY_DOUBLE(i1e, bessel_i_scaled<1>)
#undef PT_BY_DOUBLE

// The next number from a towards b: numbers of one sign are ordered as their bits are.
template <class T, int L> PT_FN V<T, L> nextafter(V<T, L> a, alone<V<T, L>> b) {
  using I = V<int_of<T>, L>;
  const V<T, L> zero(T(0));
  const I bits = as<int_of<T>>(a), outwards = as<int_of<T>>(a < b) ^ as<int_of<T>>(a < zero);  // -1: away from 0
  const V<T, L> least = copysign(as<T>(I(int_of<T>(1))), b), moved = as<T>(bits - (outwards | I(int_of<T>(1))));
  return select(a == b, b, select((a != a) | (b != b), a + b, select(a == zero, least, moved)));
}

// sqrt(a² + b²) without overflow on the way: float in double.
template <class T, int L> PT_FN V<T, L> hypot(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (!same<T, float>) return libm_hypot<T, L>(a, b);
  else {
    const V<double, L> x = cast<double>(a), y = cast<double>(b);
    return select(isinf(a) | isinf<T, L>(b), V<T, L>(infinity<T>), cast<float>(sqrt(x * x + y * y)));
  }
}

PT_SCALAR1(lgamma) PT_SCALAR1(digamma) PT_SCALAR1(i0) PT_SCALAR1(i0e) PT_SCALAR1(i1) PT_SCALAR1(i1e)
PT_SCALAR2(hypot) PT_SCALAR2(nextafter)

}  // namespace
}  // namespace pt
