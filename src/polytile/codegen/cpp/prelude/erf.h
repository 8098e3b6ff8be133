// erf: the error function, its complement and its inverse.
// needs: log
// gives: erf erfc erfinv
namespace pt {
namespace {

PT_LIBM1(erf) PT_LIBM1(erfc)

#if defined(PT_AVX512)
// table[at mod 16], lane by lane.
template <int L> PT_FN V<float, L> pick(Raw<float, 16> table, V<i32, L> at) {
  if constexpr (wide<float, L>) return {pick(table, at.lo), pick(table, at.hi)};
  else if constexpr (L < 16) return low(pick(table, join(at, at)));
#if defined(__clang__)
  else return {__builtin_ia32_permvarsf512(table, at.n)};
#else
  else return {__builtin_ia32_permvarsf512_mask(table, at.n, table, u16(-1))};
#endif
}
// P(r), r = |x| - k/4, with a polynomial for each k = round(4·|x|); for k = 0, r itself is added at the end. This takes half the
// instructions of the polynomials and the power of 2 below, since one register holds a coefficient of all sixteen.
template <int L> PT_FN V<float, L> erf_by_pieces(V<float, L> x) {
  constexpr Raw<float, 16> c5 = {
      0.111089066, 0.0808317, 0.008159737, -0.05247701, -0.06873214, -0.047109887, -0.01503214, 0.00643182,
      0.012984852, 0.010636649, 0.006134174, 0.002775955, 0.001028763, 0.00031912766, 8.3945546e-05, 1.9161418e-05};
  constexpr Raw<float, 16> c4 = {
      0.00025757818, 0.12604228, 0.18191253, 0.15005864, 0.06929013, -0.005662466, -0.044146877, -0.047891866,
      -0.034433782, -0.019151011, -0.008687847, -0.0032969925, -0.0010617521, -0.00029278026, -6.9554466e-05,
      -8.171835e-06};
  constexpr Raw<float, 16> c3 = {
      -0.37613952, -0.3091912, -0.14647838, 0.026779726, 0.13836518, 0.16753557, 0.13875373, 0.09015911, 0.048223913,
      0.021724747, 0.008349934, 0.002760202, 0.00078898726, 0.0001957602, 4.2278505e-05, 1.1013757e-05};
  constexpr Raw<float, 16> c2 = {
      2.2321008e-07, -0.2649981, -0.43938446, -0.48219463, -0.4151081, -0.2956543, -0.17839809, -0.09235748,
      -0.041334037, -0.016069822, -0.005445327, -0.0016120346, -0.00041765737, -9.4827876e-05, -1.8887205e-05,
      -2.730471e-06};
  constexpr Raw<float, 16> c1 = {
      0.12837917, 1.0600142, 0.87878263, 0.6429311, 0.41510752, 0.23652112, 0.11893029, 0.05277499, 0.020666983,
      0.0071423184, 0.0021782846, 0.0005862777, 0.00013925333, 2.9189148e-05, 5.3994686e-06, 9.291585e-07};
  constexpr Raw<float, 16> c0 = {
      0.0, 0.2763264, 0.5204999, 0.71115565, 0.8427008, 0.92290014, 0.96610516, 0.9866717, 0.9953223, 0.9985373,
      0.999593, 0.9998994, 0.9999779, 0.9999957, 0.9999993, 0.9999999};
  using F = V<float, L>;
  const F a = lesser(F(3.87f), abs(x)), at = mad(a, F(4.0f), F(magic<float>));
  const F r = a - (at - F(magic<float>)) * F(0.25f);
  const V<i32, L> k = as<i32>(at);  // the low bits of `at`
  F p = mad(pick(c5, k), r, pick(c4, k));
  p = mad(p, r, pick(c3, k));
  p = mad(p, r, pick(c2, k));
  p = mad(p, r, pick(c1, k));
  return copysign(mad(p, r, select(at == F(magic<float>), r, pick(c0, k))), x);
}
#endif

// float: x + x·P(x²) up to 1; beyond it 1 - 2^Q(|x|), where Q approximates log2(erfc).
template <class T, int L> PT_FN V<T, L> erf(V<T, L> x) {
  if constexpr (!same<T, float>) return libm_erf(x);
#if defined(PT_AVX512)
  else return erf_by_pieces(x);
#else
  else {
    const V<T, L> a = lesser(V<T, L>(4.0f), abs(x)), one(1.0f), z = x * x;
    const V<T, L> near = mad(x, horner(z, 7.84228832e-5, -8.00679321e-4, 5.18796267e-3, -2.68536434e-2, 0.112835824,
                                       -0.37612626, 0.128379166), x);
    const V<T, L> q = horner(a, 2.6781109e-4, -4.24172729e-3, 3.14612873e-2, -0.148657069, -0.920759022, -1.62597847,
                             -5.09516627e-4);
    const V<T, L> n = q + V<T, L>(magic<T>) - V<T, L>(magic<T>);
    const V<T, L> p = horner(q - n, 1.32733211e-3, 9.67159681e-3, 5.55070266e-2, 0.240222409, 0.693147004, 1);
    return select(a < one, near, copysign(one - p * scale_one(n), x));
  }
#endif
}

// float, in double: e^-x²·P(x)/Q(x) for x >= 0 (relative error 2^-33), 2 - erfc(-x) below.
template <class T, int L> PT_FN V<T, L> erfc(V<T, L> x) {
  if constexpr (!same<T, float>) return libm_erfc(x);
  else {
    using D = V<double, L>;
    const D a = cast<double>(lesser(V<T, L>(10.2f), abs(x)));
    const D p = horner(a, 0.0100549729, 0.09308456041, 0.4031872988, 1.001958513, 1.435266103, 0.9999999999);
    const D q = horner(a, 0.01782199772, 0.1649870289, 0.7235642654, 1.858137466, 2.89472266, 2.563645259, 1);
    const D y = exp(-(a * a)) * p / q;
    return cast<float>(select(x < V<T, L>(0.0f), D(2.0) - y, y));
  }
}

// erfinv(x)/x as a function of w = -log(1 - x²), after Giles, "Approximating the erfinv function", 2010, with other
// coefficients.
template <int L> PT_FN V<float, L> erfinv_of_float(V<float, L> x) {
  using F = V<float, L>;
  const F one(1.0f), w = -log((one - x) * (one + x)), near = w - F(2.5f), far = sqrt(w) - F(3.0f);
  const F p = horner(near, 2.82600539e-8, 3.43620428e-7, -3.52520419e-6, -4.39571295e-6, 2.18586239e-4, -1.25371024e-3,
                     -4.17768257e-3, 0.246640727, 1.50140941);
  const F q = horner(far, -1.69388455e-4, 8.40454086e-5, 1.30557467e-3, -3.65559151e-3, 5.76028973e-3, -7.62785645e-3,
                     9.43534449e-3, 1.00167453, 2.83297706);
  return select(abs(x) == one, x * F(infinity<float>), x * select(w < F(5.0f), p, q));
}

// double: an initial value of a few digits, then Halley's method on erf, or on erfc where erf is too close to 1.
inline __attribute__((noinline)) double erfinv_of_double(double y) {
  const double a = y < 0 ? -y : y;
  if (!(a < 1)) return a == 1 ? y * __builtin_inf() : __builtin_nan("");
  if (a < 1e-9) return y * 0.88622692545275801;  // sqrt(π)/2
  const double w = -__builtin_log((1 - a) * (1 + a)), s = w < 5 ? w - 2.5 : __builtin_sqrt(w);
  double x = s - 0.1 - 0.35 / s;
  if (w < 5) x = a * (1.50140941 + s * (0.246640727 + s * (-4.17768257e-3 + s * -1.25371024e-3)));
  for (int i = 0; i < (w < 5 ? 3 : 5); ++i) {
    const double slope = 1.1283791670955126 * __builtin_exp(-x * x);  // 2/sqrt(π)
    const double step = (a < 0.5 ? __builtin_erf(x) - a : (1 - a) - __builtin_erfc(x)) / slope;
    x -= step / (1 + x * step);
  }
  return y < 0 ? -x : x;
}

template <class T, int L> PT_FN V<T, L> erfinv(V<T, L> x) {
  if constexpr (same<T, float>) return erfinv_of_float(x);
  else return each([](double v) { return erfinv_of_double(v); }, x);
}

PT_SCALAR1(erf) PT_SCALAR1(erfc) PT_SCALAR1(erfinv)

}  // namespace
}  // namespace pt
