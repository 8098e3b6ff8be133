// special: rare functions. Floats are computed in vectors of double; doubles lane by lane, accurately but slowly.
// needs: log trig
// gives: lgamma digamma hypot
namespace pt {
namespace {

PT_LIBM2(hypot)

// log Γ and its derivative. -------------------------------------------------------------------------------------------
// Both use their asymptotic series from 8 on. Smaller arguments are raised by 8; those below 1/2 (or 0) are reflected.
template <int L> PT_FN V<double, L> shifted(V<double, L> z, V<i64, L> low) {
  return select(low, z + V<double, L>(8.0), z);
}

// Sine and cosine of π/2 times the distance from x to the nearest integer. The sine is exactly 0 at integers.
template <int L> struct HalfAngle { V<double, L> s, c; };
template <int L> PT_FN HalfAngle<L> half_angle(V<double, L> x) {
  const V<double, L> r = (x - round(x)) * V<double, L>(1.57079632679489661923);
  return {sin_near(r), cos_near(r)};
}

template <int L> PT_FN V<double, L> lgamma_in_double(V<double, L> x) {
  using D = V<double, L>;
  const D one(1.0), half(0.5);
  const auto reflected = x < half;
  const D z = select(reflected, one - x, x);
  const auto low = z < D(8.0);
  D p = z;
  PT_UNROLL for (int k = 1; k < 8; ++k) p = p * (z + D(double(k)));
  p = select(low, p, one);
  const D y = shifted(z, low), v = one / y, w = v * v, log_y = log(y);
  const D series = horner(w, 1. / 156, -691. / 360360, 1. / 1188, -1. / 1680, 1. / 1260, -1. / 360, 1. / 12);
  const D stirling = mad(y - half, log_y, D(0.91893853320467274178) - y) + series * v;
  const auto [s, c] = half_angle(x);
  const D rest = log(select(reflected, D(3.14159265358979323846) * p / abs(D(2.0) * s * c), p));
  const D r = select(reflected, rest - stirling, stirling - rest);
  return select(isinf(x), D(infinity<double>), select((x == one) | (x == D(2.0)), D(0.0), r));
}

template <int L> PT_FN V<double, L> digamma_in_double(V<double, L> x) {
  using D = V<double, L>;
  const D zero(0.0), one(1.0);
  const auto reflected = x < zero;
  const D z = select(reflected, one - x, x);
  const auto low = z < D(8.0);
  D over = one, under = z;  // Σ 1/(z + k), k < 8, as one fraction
  PT_UNROLL for (int k = 1; k < 8; ++k) {
    const D next = z + D(double(k));
    over = mad(over, next, under), under = under * next;
  }
  const D y = shifted(z, low), v = one / y, w = v * v;
  const D series = w * horner(w, 1. / 12, -691. / 32760, 1. / 132, -1. / 240, 1. / 252, -1. / 120, 1. / 12);
  const auto [s, c] = half_angle(x);
  const D cotangent = D(1.57079632679489661923) * (c * c - s * s) / (s * c);
  const D r = log(y) - D(0.5) * v - series - select(low, over / under, zero) - select(reflected, cotangent, zero);
  // As in torch: at 0, infinity with the opposite sign; at the other poles, NaN.
  const D elsewhere = select(reflected & (s == zero), D(not_a_number<double>), r);
  return select(x == zero, copysign(D(infinity<double>), -x), elsewhere);
}

// The same for double. ------------------------------------------------------------------------------------------------
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
  const double z = 1 / (x * x);  // coefficients: Bernoulli numbers divided by 2k
  const double end = 1. / 240 - z * (1. / 132 - z * (691. / 32760 - z / 12));
  const double s = z * (1. / 12 - z * (1. / 120 - z * (1. / 252 - z * end)));
  return x == __builtin_inf() ? x : y + __builtin_log(x) - 0.5 / x - s;
}

#define PT_BY_DOUBLE(name, vectors, one)                                                         \
  template <class T, int L> PT_FN V<T, L> name(V<T, L> v) {                                      \
    if constexpr (same<T, float>) return cast<float>(vectors(cast<double>(v)));                  \
    else return each([](double x) { return one(x); }, v);                                        \
  }
PT_BY_DOUBLE(lgamma, lgamma_in_double, __builtin_lgamma)
PT_BY_DOUBLE(digamma, digamma_in_double, digamma_of)
#undef PT_BY_DOUBLE

// Others. -------------------------------------------------------------------------------------------------------------
// sqrt(a² + b²) without intermediate overflow: floats are computed in double.
template <class T, int L> PT_FN V<T, L> hypot(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (!same<T, float>) return libm_hypot<T, L>(a, b);
  else {
    const V<double, L> x = cast<double>(a), y = cast<double>(b);
    return select(isinf(a) | isinf<T, L>(b), V<T, L>(infinity<T>), cast<float>(sqrt(x * x + y * y)));
  }
}

PT_SCALAR1(lgamma) PT_SCALAR1(digamma) PT_SCALAR2(hypot)

}  // namespace
}  // namespace pt
